"""`parlay forecast` of a search and of a table, and its errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.orchestrator.cli.simulated import write_simulated_search

pytestmark = pytest.mark.slow

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, {"step_time_s": "5.5"})


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Folder with a search of three layouts on one node and its table."""
    monkeypatch.chdir(tmp_path)
    write_simulated_search(tmp_path, *ROWS)
    return tmp_path


def test_a_search_is_forecast_at_twice_four_and_eight_times_its_nodes(place, parlay):
    search_id = parlay("run", "search.yaml")[1]["search_id"]
    code, answer, err = parlay("forecast", search_id[:7])
    assert code == 0, err
    assert answer["schema"] == "parlay.forecast/1"
    assert (answer["search_id"], answer["table"], answer["trials"]) == (search_id, None, 3)
    assert (answer["base"]["num_nodes"], answer["base"]["step_time_s"]) == (1, 3.5)
    cells = [(f["scaling"], f["num_nodes"], f["global_batch_size"]) for f in answer["forecasts"]]
    assert cells == [
        *(("weak", nodes, 256 * nodes) for nodes in (2, 4, 8)),
        *(("strong", nodes, 256) for nodes in (2, 4, 8)),
    ]
    for found in answer["forecasts"]:
        assert found["step_time_low_s"] < found["step_time_s"] < found["step_time_high_s"]
