"""Inputs of a forecast: the trials of a search, or rows of a measured table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.forecast import ForecastInput
from orchestrator.planning.plan import task_of
from orchestrator.records.observations import observed_trials
from orchestrator.search.samplers.cost_model_posterior import TuningTask
from search_spaces.errors import InputError, did_you_mean
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import DERIVED, LAYOUT_FIELDS, Layout
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import mixed_engines_problem
from search_spaces.search_space import search_space
from search_spaces.tables.measured_table import Observation, positions_and_norm
from trials.ledger.events import SearchRecord
from trials.trainers.registry import ENGINE_RULES

_NOT_COMPARED = ("num_nodes", *DERIVED)


def input_from_search(
    record: SearchRecord, spec: SearchSpec, prior_trials: Sequence[Observation] = (), cluster: Cluster | None = None
) -> ForecastInput:
    """Measured trials of a search, with the search's own space on other numbers of nodes.

    `prior_trials` are trials of other searches that it learns from. `cluster` replaces the search's description with a
    better one; InputError if its nodes differ. A search over the layouts of a table has every combination of their
    values as its space.
    """
    if cluster is not None:
        spec = replace(spec, cluster=_matching_cluster(cluster, spec.cluster))
    model = spec.model
    # A table without columns for positions and norm has none for features either, and assumes both.
    if spec.launcher.kind == "simulated" and not model.features:
        position_embedding, norm = positions_and_norm(model.gated_mlp)
        model = replace(model, position_embedding=position_embedding, norm=norm)

    def layouts_on(num_nodes: int, batch: int) -> Sequence[Layout]:
        if spec.candidates is not None:
            return _combinations(model, spec.cluster, spec.candidates, num_nodes, batch)
        found = candidates_of(_at_scale(spec, num_nodes, batch)).layouts
        return found.take(found.global_batch_size == batch)

    rows = observed_trials(record, spec).rows
    return ForecastInput.of(task_of(spec, prior_trials), rows, layouts_on, spec.global_batch_size, spec.search.seed)


def input_from_table(
    rows: Sequence[Observation], problems: Sequence[str], cluster: Cluster | None = None
) -> ForecastInput:
    """These problems of a table, or the whole table. `cluster` adds what its rows lack: the links of the machine.

    The space is every combination of the rows' values. InputError for an unknown problem, for rows of several models or
    kinds of node, and for a cluster of other nodes.
    """
    chosen = _select_rows(rows, problems)
    machine = chosen[0].cluster if cluster is None else _matching_cluster(cluster, chosen[0].cluster)
    model = chosen[0].model

    def layouts_on(num_nodes: int, batch: int) -> Sequence[Layout]:
        return _combinations(model, machine, [row.layout for row in chosen], num_nodes, batch)

    return ForecastInput.of(TuningTask(model, machine), chosen, layouts_on)


def _at_scale(spec: SearchSpec, num_nodes: int, batch: int) -> SearchSpec:
    """The search on `num_nodes` nodes, without baseline and node limit, which are not defined there."""
    return replace(
        spec,
        cluster=replace(spec.cluster, num_nodes=num_nodes),
        global_batch_size=batch,
        baseline=None,
        space=spec.space.model_copy(update={"num_nodes": (num_nodes,)}),
        constraints=spec.constraints.model_copy(update={"max_nodes": None}),
    )


def _combinations(
    model: ModelShape, cluster: Cluster, layouts: Sequence[Layout], num_nodes: int, batch: int
) -> Sequence[Layout]:
    """Every valid combination of these layouts' values on `num_nodes` nodes."""
    axes: dict[str, tuple[Any, ...]] = {
        name: tuple(dict.fromkeys(getattr(layout, name) for layout in layouts))
        for name in LAYOUT_FIELDS
        if name not in _NOT_COMPARED
    }
    workload = Workload(
        model,
        replace(cluster, num_nodes=num_nodes),
        batch,
        allow_tensor_parallel_across_nodes=max(axes["tensor_parallel"]) > cluster.gpus_per_node,
    )
    engines = {name: ENGINE_RULES[name] for name in axes["engine"]}
    return search_space(workload, axes | {"num_nodes": (num_nodes,)}, engines=engines, sample_seed=0).layouts


def _select_rows(rows: Sequence[Observation], problems: Sequence[str]) -> list[Observation]:
    names = list(dict.fromkeys(row.problem for row in rows))
    for problem in problems:
        if problem not in names:
            raise InputError.of(
                "problem",
                f"the table has no problem {problem!r}",
                fix=did_you_mean(problem, names) or "one of " + ", ".join(names[:20]),
                key="--problem",
                value=problem,
            )
    chosen = [row for row in rows if row.problem in (problems or names)]
    if not chosen:
        raise InputError.of("no_measurement", "the table has no rows", fix="give a table written by parlay export")
    kinds = {(row.model, row.cluster.accelerator.name, row.cluster.gpus_per_node) for row in chosen}
    if len(kinds) > 1:
        raise InputError.of(
            "problem",
            f"{len(problems or names)} problems have {len(kinds)} models or kinds of node",
            rule="a forecast is for one model on one kind of node",
            fix="give problems that differ only in nodes and batch: --problem " + names[0],
            key="--problem",
        )
    accelerator = chosen[0].cluster.accelerator.name
    engines = (row.layout.engine for row in chosen)
    mixed = mixed_engines_problem(engines, accelerator, "keep the rows of one engine", "engine")
    if mixed is not None:
        raise InputError(mixed)
    return chosen


def _matching_cluster(cluster: Cluster, of_rows: Cluster) -> Cluster:
    """The described cluster; InputError if its nodes are not those of the trials."""
    described, measured = (_node(c) for c in (cluster, of_rows))
    if described != measured:
        raise InputError.of(
            "cluster",
            f"has nodes of {described}, but the trials ran on nodes of {measured}",
            rule="the cluster is the one that the trials ran on",
            fix=f"give a cluster with nodes of {measured}, or leave it out",
            key="--cluster",
        )
    return cluster


def _node(cluster: Cluster) -> str:
    return f"{cluster.gpus_per_node} {cluster.accelerator.name}"
