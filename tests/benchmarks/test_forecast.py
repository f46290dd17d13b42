"""Scores of the forecast benchmark, on tables with known truth."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import forecast as benchmark
from benchmarks.forecast import score
from orchestrator.planning.forecast import Forecast, LayoutSpeed, Scaling
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import Observation, render_table
from tests.orchestrator.planning.test_forecast import measured, truth


def rows_on(*node_counts: int) -> list[Observation]:
    return [row for count in node_counts for row in measured(count, truth(data_parallel=2))]


def forecast_of(layout: Layout, step_time_s: float = 1.0) -> Forecast:
    """Within a fifth, and with nothing else that may be the best."""
    speed = LayoutSpeed(layout, step_time_s, 2048)
    return Forecast(Scaling.STRONG, speed, step_time_s / 1.2, step_time_s * 1.2, 1.0, None, (), ())


def three_layouts(*seconds: float | None) -> BenchmarkProblem:
    rows = [
        replace(row, step_time_s=s, outcome="failed" if s is None else "ok")
        for row, s in zip(rows_on(2), seconds, strict=False)
    ]
    return problems_in(rows)["2-nodes"]


@pytest.mark.parametrize(("best_s", "is_covered"), [(1.1, True), (1.3, False), (0.85, True), (0.8, False)])
def test_the_best_that_was_measured_is_covered_or_not(best_s, is_covered):
    problem = three_layouts(5.0, best_s, 2 * best_s)
    scored = score(forecast_of(problem.layouts[2]), problem)
    assert (scored["measured_s"], scored["is_covered"]) == (best_s, is_covered)
    assert scored["error"] == pytest.approx(1 / best_s - 1, abs=1e-4)
    assert (scored["regret"], scored["best_is_contender"]) == (1.0, False)
    assert scored["chosen_is_covered"] is False


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
