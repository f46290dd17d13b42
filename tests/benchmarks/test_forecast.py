"""The forecast benchmark on a small table."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import forecast as benchmark
from search_spaces.tables.measured_table import Observation, render_table
from tests.orchestrator.planning.test_forecast import measured, truth


def rows_on(*node_counts: int) -> list[Observation]:
    return [row for count in node_counts for row in measured(count, truth(data_parallel=2))]


@pytest.mark.slow
def test_the_command_prints_lines_and_summaries_and_skips_what_is_not_there(tmp_path, monkeypatch, capsys):
    (tmp_path / "table.csv").write_text(render_table(rows_on(1, 2)))
    words = ["forecast", str(tmp_path / "table.csv"), str(tmp_path / "absent.csv"), "--trials", "3", "--seeds", "1"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    benchmark.main()
    told = capsys.readouterr()
    line, summary = map(json.loads, told.out.splitlines())
    assert (line["base_nodes"], line["times"], line["trials"]) == (1, 2, 3)
    assert (summary["summary"], summary["forecasts"]) == (True, 1)
    assert "absent.csv is not there: skipped" in told.err
