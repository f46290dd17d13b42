"""Counts of the benchmark of real searches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.real_search import Run, line_of, summaries, typical_s
from search_spaces.tables.measured_table import Observation
from tests.search_spaces.example_tables import only


def rows(*step_times_s: float | None) -> tuple[Observation, ...]:
    """Trials of as many layouts, None for one that failed, that held their node ten seconds each."""
    changes = [{"micro_batch_size": str(2**i), "grad_accum_steps": str(128 // 2**i)} for i in range(len(step_times_s))]
    return tuple(
        replace(row, outcome="failed" if s is None else "ok", step_time_s=s, recorded_duration_s=10.0)
        for row, s in zip(only(*changes), step_times_s, strict=True)
    )


def test_a_layout_is_worth_the_median_of_its_runs_in_all_searches():
    first, second = rows(1.0, 2.0), rows(3.0, None)
    found = typical_s([Run("a", 1, "converged", first), Run("b", 1, "max_trials", second, repeats=(first[0],))])
    assert sorted(found.values()) == [1.0, 2.0]


def test_trials_and_node_seconds_are_counted_until_near_the_best():
    trials = rows(None, 1.2, 1.04, 1.0)
    run = Run("guided", 3, "converged", trials)
    line = line_of(run, typical_s([run]))
    assert (line["trials"], line["node_seconds"], line["regret"]) == (4, 40.0, 0.0)
    assert (line["trials_to_2pct"], line["trials_to_5pct"], line["node_seconds_to_5pct"]) == (4, 3, 30.0)


def test_a_search_that_never_came_near_counts_with_all_it_took():
    good, bad = Run("a", 1, "converged", rows(1.0)), Run("b", 1, "max_trials", rows(1.0, 1.5, 1.6)[1:])
    lines = [line_of(run, typical_s([good, bad])) for run in (good, bad)]
    assert lines[1]["trials_to_10pct"] is None
    assert lines[1]["regret"] == pytest.approx(0.5)
    of_good, of_bad = summaries(lines)
    assert (of_good["reached_5pct"], of_good["trials_to_5pct"]) == (1, 1)
    assert (of_bad["reached_5pct"], of_bad["trials_to_5pct"], of_bad["node_seconds_to_5pct"]) == (0, 2, 20)
