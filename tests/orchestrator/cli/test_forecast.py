"""`parlay forecast` of a search and of a table, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from search_spaces.layouts.layout import LAYOUT_FIELDS
from tests.orchestrator.cli.simulated import write_simulated_search

pytestmark = pytest.mark.slow

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, {"step_time_s": "5.5"})
FIELDS = {
    *("scaling", "num_nodes", "global_batch_size", "layout", "layout_key", "step_time_s", "step_time_low_s"),
    *("step_time_high_s", "tokens_per_sec", "tokens_per_sec_per_gpu", "efficiency", "fits", "contenders"),
    "uncertain_terms",
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Folder with a search of three layouts on one node and its table."""
    monkeypatch.chdir(tmp_path)
    write_simulated_search(tmp_path, *ROWS)
    return tmp_path


@pytest.fixture
def search_id(place, parlay) -> str:
    """The search, which has ended."""
    return parlay("run", "search.yaml")[1]["search_id"]


@pytest.fixture
def asked(parlay) -> Callable[..., dict]:
    def answered(*words: str) -> dict:
        code, answer, err = parlay("forecast", *words)
        assert code == 0, err
        return answer

    return answered


def test_a_search_is_forecast_at_twice_four_and_eight_times_its_nodes(search_id, asked):
    answer = asked(search_id[:7])
    assert answer["schema"] == "parlay.forecast/1"
    assert (answer["search_id"], answer["table"], answer["trials"]) == (search_id, None, 3)
    assert (answer["base"]["num_nodes"], answer["base"]["step_time_s"]) == (1, 3.5)
    cells = [(f["scaling"], f["num_nodes"], f["global_batch_size"]) for f in answer["forecasts"]]
    assert cells == [
        *(("weak", nodes, 256 * nodes) for nodes in (2, 4, 8)),
        *(("strong", nodes, 256) for nodes in (2, 4, 8)),
    ]
    for found in answer["forecasts"]:
        assert set(found) == FIELDS
        assert set(found["layout"]) == set(LAYOUT_FIELDS)
        assert found["step_time_low_s"] < found["step_time_s"] < found["step_time_high_s"]


def test_a_table_is_forecast_without_a_search(place, asked):
    answer = asked("table.csv", "--problem", "1B-8gpu", "--cluster", "playbook-h100", "--nodes", "128")
    assert (answer["search_id"], answer["table"], answer["problems"]) == (None, "table.csv", ["1B-8gpu"])
    assert any("measured up to 64 nodes" in note for note in answer["notes"])
    assert not any("the links" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["table.csv", "--problem", "2B"], "no problem '2B'"),
        (["table.csv", "--cluster", "frontier"], "--cluster: has nodes of 8 mi250x-gcd-64gb"),
        (["table.csv", "--cluster", "nowhere"], "--cluster: no preset is called 'nowhere'"),
        (["table.csv", "--nodes", "2,x"], "--nodes: is '2,x'"),
        (["table.csv", "--nodes", "0"], "whole numbers from 1 to 100000"),
        (["table.csv", "--nodes", "9" * 5000], "whole numbers from 1 to 100000"),
        (["absent.csv"], "absent.csv: cannot be read"),
        (["--problem", "1B"], "--problem: is for a table"),
    ],
)
def test_what_cannot_be_forecast_is_refused(place, capfd, words, told):
    assert run(["forecast", *words]) == 2
    assert told in capfd.readouterr().err
