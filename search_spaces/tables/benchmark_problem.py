"""Benchmark problem: the closed set of measured layouts of one workload, with one result for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.rules.layout_rules import is_valid, rules_named
from search_spaces.tables.measured_table import Observation

# Rules without exception: most trainers pad the vocabulary themselves, and key-value heads may be replicated.
_ENGINE_INDEPENDENT_RULES = rules_named("heads", "ffn", "layers")


@dataclass(frozen=True)
class BenchmarkProblem:
    """The measured layouts of one model on one cluster with one global batch.

    `results` maps a layout's key to its result: the median of the rows that ran, or a failure where none did.
    `rule_rows` counts the failed rows left out because they violate a rule of every engine.
    """

    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    results: Mapping[str, Observation]
    rule_rows: int = 0

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The closed set of candidates, in the table's order."""
        return tuple(answer.layout for answer in self.results.values())

    def result(self, layout: Layout) -> Observation | None:
        """The table's result for this layout; None where it has none."""
        return self.results.get(layout.key)


def problems_in(observations: Iterable[Observation]) -> dict[str, BenchmarkProblem]:
    """Every problem of a table by its name; InputError where the rows of one differ in more than their layout."""
    by_name: dict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        by_name[observation.problem].append(observation)
    for name, rows in by_name.items():
        if len({_workload(row) for row in rows}) > 1:
            raise InputError.of(
                "problem",
                f"the rows of {name} have more than one model, cluster or global batch",
                rule="the rows of a problem differ in their layout alone",
                fix="give the rows of each model, cluster and global batch a problem of their own",
                key="problem",
                value=name,
            )
    return {name: _problem_of(rows) for name, rows in by_name.items()}


def problem_for(
    observations: Iterable[Observation], model: ModelShape, cluster: Cluster, global_batch_size: int
) -> BenchmarkProblem:
    """All rows of this workload, under whatever problem name; InputError where there are none.

    Not every table records position embedding, norm, dropout and a fused loss, so these need not match.
    """
    wanted = (_sizes(model), cluster, global_batch_size)
    names: dict[str, None] = {}
    rows = []
    for observation in observations:
        names[observation.problem] = None
        if _workload(observation) == wanted:
            rows.append(observation)
    if not rows:
        raise InputError.of(
            "no_measurement",
            f"the table has no row of this model on {cluster.num_nodes} x {cluster.gpus_per_node}"
            f" {cluster.accelerator.name} with global batch {global_batch_size}",
            fix="make model, cluster and global_batch_size those of one of its problems: " + ", ".join([*names][:20]),
        )
    problem = _problem_of(rows)
    if not problem.results:
        raise InputError.of(
            "no_measurement",
            f"the table's {len(rows)} rows of this workload all failed, and violate a rule of every engine",
            fix="use a table in which a layout ran",
        )
    return problem


def measured_on(observations: Iterable[Observation], cluster: Cluster) -> tuple[Observation, ...]:
    """The rows of such a machine, on any number of its nodes or a part of one; InputError where there are none."""
    rows = tuple(row for row in observations if _is_part_of(row.cluster, cluster))
    if not rows:
        raise InputError.of(
            "no_measurement",
            f"the table has no row of {cluster.accelerator.name} with {cluster.gpus_per_node} GPUs a node",
            rule="measurements of another machine do not apply",
            fix="name a table that was measured on such nodes",
        )
    return rows


def _is_part_of(measured: Cluster, cluster: Cluster) -> bool:
    is_node = measured.gpus_per_node == cluster.gpus_per_node
    is_less = measured.num_nodes == 1 and measured.gpus_per_node < cluster.gpus_per_node
    return measured.accelerator.name == cluster.accelerator.name and (is_node or is_less)


def _workload(observation: Observation) -> tuple[tuple[Any, ...], Cluster, int]:
    return _sizes(observation.model), observation.cluster, observation.global_batch_size


def _sizes(model: ModelShape) -> tuple[Any, ...]:
    """All fields but those that not every table records."""
    return tuple(value for name, value in model.to_json().items() if name not in _NOT_RECORDED)


_NOT_RECORDED = ("position_embedding", "norm", "has_dropout", "fuses_loss")


def _problem_of(rows: list[Observation]) -> BenchmarkProblem:
    first = rows[0]
    kept = [
        row for row, is_bound_to_fail in zip(rows, _violates_every_engine(rows), strict=True) if not is_bound_to_fail
    ]
    by_key: dict[str, list[Observation]] = defaultdict(list)
    for row in kept:
        by_key[row.layout.key].append(row)
    results = {key: _result(same) for key, same in by_key.items()}
    return BenchmarkProblem(first.model, first.cluster, first.global_batch_size, results, len(rows) - len(kept))


def _violates_every_engine(rows: list[Observation]) -> list[bool]:
    """Mask of the rows that failed and violate a rule of every engine; rows that ran are right whatever the rules
    say."""
    first = rows[0]
    table = LayoutTable.of(row.layout for row in rows)
    workload = Workload(first.model, first.cluster, first.global_batch_size)
    ranks, batch = table.num_gpus, table.global_batch_size
    broken = ~is_valid(table, workload, _ENGINE_INDEPENDENT_RULES)
    broken |= (ranks != first.cluster.num_gpus) | (batch != first.global_batch_size)
    return (broken & np.array([row.outcome != "ok" for row in rows])).tolist()


def _result(rows: list[Observation]) -> Observation:
    ran = [row for row in rows if row.outcome == "ok"]
    if not ran:
        return next((row for row in rows if row.outcome == "oom"), rows[0])
    return replace(
        ran[0],
        step_time_s=median(row.step_time_s for row in ran if row.step_time_s is not None),
        peak_memory_gib=max((row.peak_memory_gib for row in ran if row.peak_memory_gib is not None), default=None),
    )
