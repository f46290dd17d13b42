"""What the benchmark of samplers counts."""

from __future__ import annotations

from benchmarks.search_efficiency import run, summaries
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.layout import Layout
from search_spaces.measured import Observation
from search_spaces.measured_problem import MeasuredProblem, problems_in
from search_spaces.model_shape import ModelShape

MODEL = ModelShape(2, 64, 4, 4, 256, False, 1000, 128, True, "learned", "layernorm")


def problem(*step_times_s: float | None) -> MeasuredProblem:
    """Two nodes of four GPUs and layouts that took these step times, None for one that ran out of memory."""
    cluster = Cluster(ACCELERATORS["a100-40gb"], 4, 2)
    rows = [
        Observation(
            problem="p",
            source="s",
            model_name="m",
            model=MODEL,
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
    assert (line["trials_to_5pct"], line["trials_to_2pct"]) == (3, 4)
    assert line["candidates"] == 5
    durations = (60, 60 + 15 * 2.0, 60 + 15 * 1.04, 60 + 15 * 1.01)
    assert line["node_seconds_to_2pct"] == round(2 * sum(durations), 1)


def test_a_best_a_quarter_faster_than_the_second_is_a_lone_outlier():
    assert run("p", problem(1.25, 1.0), "grid", 0)["lone_outlier"]
    assert not run("p", problem(1.24, 1.0), "grid", 0)["lone_outlier"]


def test_sources_weigh_the_same_and_small_problems_stand_apart():
    lines = [
        {"candidates": candidates, "sampler": "grid", "source": source, "problem": source, "lone_outlier": False}
        | {"trials_to_2pct": trials}
        for source, candidates, trials in (("a", 30, 2), ("a", 30, 4), ("a", 30, 6), ("b", 30, 12), ("b", 5, 1))
    ]
    found = {(row["candidates"], row["source"]): row["mean"] for row in summaries(lines)}
    assert found == {(">=20", "a"): 4, (">=20", "b"): 12, (">=20", "macro"): 8, ("<20", "b"): 1, ("<20", "macro"): 1}
