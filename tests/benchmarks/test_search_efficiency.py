"""Counts of the sampler benchmark."""

from __future__ import annotations

from benchmarks.search_efficiency import run, summaries
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import BenchmarkProblem, problems_in
from search_spaces.tables.measured_table import Observation
from tests.kit import TINY


def problem(*step_times_s: float | None) -> BenchmarkProblem:
    """Two nodes of four GPUs and layouts that took these step times, None for one that ran out of memory."""
    cluster = Cluster(ACCELERATORS["a100-40gb"], 4, 2)
    rows = [
        Observation(
            problem="p",
            source="s",
            model_name="m",
            model=TINY,
            cluster=cluster,
            global_batch_size=1024,
            layout=Layout(num_nodes=2, data_parallel=8, micro_batch_size=2**i, grad_accum_steps=128 // 2**i),
            outcome="oom" if seconds is None else "ok",
            step_time_s=seconds,
        )
        for i, seconds in enumerate(step_times_s)
    ]
    return problems_in(rows)["p"]


def test_trials_are_counted_until_within_two_percent_failures_included():
    line = run("p", problem(None, 2.0, 1.04, 1.01, 1.0), "grid", 0)
    assert (line["trials_to_2pct"], line["candidates"]) == (4, 5)


def test_sources_weigh_the_same_and_small_problems_stand_apart():
    lines = [
        {"candidates": candidates, "sampler": "grid", "source": source, "problem": source, "lone_outlier": False}
        | {"trials_to_2pct": trials, "mode": "cold"}
        for source, candidates, trials in (("a", 30, 2), ("a", 30, 4), ("a", 30, 6), ("b", 60, 12), ("b", 5, 1))
    ]
    found = {(row["candidates"], row["source"]): row["mean"] for row in summaries(lines)}
    assert found == {
        (">=20", "a"): 4,
        (">=20", "b"): 12,
        (">=20", "macro"): 8,
        (">=50", "b"): 12,
        (">=50", "macro"): 12,
        ("<20", "b"): 1,
        ("<20", "macro"): 1,
    }
