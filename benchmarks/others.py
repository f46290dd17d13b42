"""Leave-one-model-out: prior trials from a machine's other models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.machines import with_links
from search_spaces.tables.benchmark_problem import BenchmarkProblem
from search_spaces.tables.measured_table import Observation

OTHERS_TRIALS = 60
"""Number of prior trials, as of a few searches."""


def others_of(name: str, problems: Mapping[str, BenchmarkProblem], seed: int) -> tuple[Observation, ...]:
    """Random rows of the same source's other models on such a device, equally many of each problem."""
    first = _first(problems[name])
    others = [list(problem.results.values()) for problem in problems.values() if _is_other(first, _first(problem))]
    rng = np.random.default_rng(seed)
    shuffled = [iter([rows[index] for index in rng.permutation(len(rows))]) for rows in others]
    drawn = [next(shuffled[turn % len(shuffled)], None) for turn in range(OTHERS_TRIALS if others else 0)]
    return tuple(replace(row, cluster=with_links(row)) for row in drawn if row is not None)


def _first(problem: BenchmarkProblem) -> Observation:
    return next(iter(problem.results.values()))


def _is_other(one: Observation, other: Observation) -> bool:
    is_same_machine = (one.source, one.cluster.accelerator) == (other.source, other.cluster.accelerator)
    return is_same_machine and one.model_name != other.model_name
