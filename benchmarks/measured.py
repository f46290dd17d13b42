"""Measured tables: their problems, the machines that they were measured on, and what a search learns from a row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from orchestrator.search.samplers.base import Sampler, TrialFeedback
from orchestrator.search.samplers.cost_model_posterior import TuningTask
from orchestrator.search.samplers.factory import make_sampler
from orchestrator.search.samplers.fallback import FallbackSampler
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import Layout
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.presets import CLUSTERS, preset
from search_spaces.schema.validation import validate
from search_spaces.tables.benchmark_problem import BenchmarkProblem
from search_spaces.tables.measured_table import Observation, read_table
from trials.trial import FailureReason

OTHERS_TRIALS = 60
"""Prior trials from a machine's other models, as of a few searches."""


def observations_in(paths: Iterable[Path]) -> list[Observation]:
    """Rows of the tables; a file that is not there is reported as skipped."""
    found: list[Observation] = []
    for path in paths:
        if path.is_file():
            found += read_table(path)
        else:
            print(f"{path} is not there: skipped", file=sys.stderr)
    return found


# -- machines


def links_of(cluster_name: str) -> Links | None:
    """Links of the preset cluster of this name; None without one."""
    try:
        return validate(ClusterSection, preset(CLUSTERS, cluster_name)).cluster().links
    except InputError:
        return None


# vTrain's A100 nodes have four HDR200 adapters, half of a DGX's (its tables say so).
_VTRAIN = Links((LinkDomain("node", 8, 235, 10.2),), Fabric(nic_gb_per_s=100, latency_us=5, p2p_gb_per_s=25))

# Machine of each source's rows. A row that names its cluster needs none.
_BY_SOURCE = {"ultrascale-playbook": links_of("playbook-h100"), "vtrain": _VTRAIN}


def with_links(row: Observation) -> Cluster:
    """Cluster of a row with the links of the machine it was measured on.

    A part of a node, and an unknown machine, have the accelerator's default links.
    """
    links = _BY_SOURCE.get(row.source) if row.cluster_name is None else links_of(row.cluster_name)
    return linked(row.cluster, links)


def linked(cluster: Cluster, links: Links | None) -> Cluster:
    """Cluster with these links where they are of nodes with the same size."""
    is_whole_node = links is not None and links.domains[-1].num_ranks == cluster.gpus_per_node
    return replace(cluster, given_links=links) if is_whole_node else cluster


# -- searches


def first_of(problem: BenchmarkProblem) -> Observation:
    return next(iter(problem.results.values()))


def task_of(row: Observation, prior_trials: Sequence[Observation] = ()) -> TuningTask:
    """Task of the problem that the row is of."""
    return TuningTask(row.model, with_links(row), prior_trials=tuple(prior_trials))


def others_of(name: str, problems: Mapping[str, BenchmarkProblem], seed: int) -> tuple[Observation, ...]:
    """Random rows of the same source's other models on such a device, equally many of each problem."""
    first = first_of(problems[name])
    others = [list(problem.results.values()) for problem in problems.values() if _is_other(first, first_of(problem))]
    rng = np.random.default_rng(seed)
    shuffled = [iter([rows[index] for index in rng.permutation(len(rows))]) for rows in others]
    drawn = [next(shuffled[turn % len(shuffled)], None) for turn in range(OTHERS_TRIALS if others else 0)]
    return tuple(replace(row, cluster=with_links(row)) for row in drawn if row is not None)


def _is_other(one: Observation, other: Observation) -> bool:
    is_same_machine = (one.source, one.cluster.accelerator) == (other.source, other.cluster.accelerator)
    return is_same_machine and one.model_name != other.model_name


def strict_sampler(name: str, layouts: Sequence[Layout], task: TuningTask, seed: int) -> Sampler:
    """Make a sampler whose failure is raised; a search would go on with its fallback."""
    sampler = make_sampler(name, layouts, task, seed)
    return sampler.first if isinstance(sampler, FallbackSampler) else sampler


def feedback_of(row: Observation) -> TrialFeedback:
    if row.step_time_s is not None:
        value = row.global_batch_size * row.model.seq_length / row.step_time_s
        return TrialFeedback(row.layout, value=value, peak_memory_gib=row.peak_memory_gib)
    reason = FailureReason.GPU_OOM if row.outcome == "oom" else FailureReason.SCRIPT_ERROR
    return TrialFeedback(row.layout, reason=reason)


def first_trials(sampler: Sampler, results: Mapping[str, Observation], count: int) -> list[Observation]:
    """First rows, by layout key, that a sampler tries, in order."""
    rows: list[Observation] = []
    while len(rows) < min(count, len(results)):
        asked = sampler.ask(1, [feedback_of(row) for row in rows])
        rows.append(results[asked[0].key])
    return rows
