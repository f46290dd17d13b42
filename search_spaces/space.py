"""SearchSpace: from axes to every feasible layout, and every rejected one with the rule and the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from search_spaces.axes import complete_axes
from search_spaces.engines import broken_engine_rules
from search_spaces.errors import InputError, Problem
from search_spaces.layout import Layout
from search_spaces.layout_rules import LAYOUT_RULES, broken_rules, first_broken, with_derived
from search_spaces.layout_table import LayoutTable
from search_spaces.workload import Workload

MOST_POINTS = 1_000_000

Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Rejected:
    """A layout that cannot be run. A derived field that is no whole number is None in `fields`."""

    fields: Mapping[str, Any]
    problem: Problem


@dataclass(frozen=True)
class SearchSpace:
    """The closed set of candidates, in canonical form, each once, in the order of the layout fields.

    `rejected_by_rule` counts the rejected ones by the first rule each breaks, in the rules' order. `num_points` is
    how many combinations the axes have before layouts that are the same are counted once; `is_sampled` says that
    only a part of them was looked at.
    """

    workload: Workload
    feasible: tuple[Layout, ...]
    rejected_by_rule: Mapping[str, int]
    num_points: int
    baseline: Layout | None = None
    is_sampled: bool = False
    _rejected: LayoutTable | None = field(default=None, repr=False, compare=False)
    _broken_engine_rules: tuple[Rejected, ...] = field(default=(), repr=False, compare=False)

    def rejected(self) -> Iterator[Rejected]:
        """Every rejected layout with the first rule it breaks; made as they are asked for."""
        if self._rejected is not None:
            first = first_broken(self._rejected, self.workload, LAYOUT_RULES).tolist()
            for fields, index in zip(self._rejected.rows(), first, strict=True):
                yield Rejected(fields, LAYOUT_RULES[index].problem(fields, self.workload))
        yield from self._broken_engine_rules


def search_space(
    workload: Workload, axes: Axes, baseline: Layout | None = None, *, sample_seed: int | None = None
) -> SearchSpace:
    """All feasible layouts of these axes; fields without an axis keep their default.

    With `sample_seed`, more than `MOST_POINTS` combinations are allowed and as many are drawn, the same for the same
    seed. InputError when there are too many, when none is legal, or when the baseline breaks a rule.
    """
    if baseline is not None:
        require_legal(baseline, workload)
    axes = complete_axes(axes, workload.cluster.num_nodes)
    total = prod(len(values) for values in axes.values())
    table = LayoutTable.picked(axes, _picks(axes, total, sample_seed))
    space = _sifted(workload, table, total)
    _require_some(space)
    return space if baseline is None else _joined(space, baseline.canonical())


def closed_space(workload: Workload, candidates: Sequence[Layout], baseline: Layout | None = None) -> SearchSpace:
    """The candidates of a measured table as they are: they were run, so no rule is asked."""
    feasible = {layout.key: layout.canonical() for layout in candidates}
    if baseline is not None and baseline.key not in feasible:
        raise InputError.of(
            "baseline", "is not a layout of the table", rule="space.candidates is a closed set", key="baseline"
        )
    canonical = None if baseline is None else baseline.canonical()
    return SearchSpace(workload, tuple(feasible.values()), {}, len(candidates), canonical)


def require_legal(baseline: Layout, workload: Workload) -> None:
    """InputError with every rule that this layout of the user's breaks."""
    problems = broken_rules(baseline, workload)
    problems += broken_engine_rules(baseline, workload.model)
    if baseline.num_gpus != workload.world(baseline.num_nodes):
        problems.insert(0, _other_world(baseline, workload))
    if baseline.global_batch_size != workload.global_batch_size:
        problems.append(_other_batch(baseline, workload))
    if problems:
        raise InputError(*problems).at(key="baseline")


def _other_world(layout: Layout, workload: Workload) -> Problem:
    return Problem(
        "world",
        f"tensor {layout.tensor_parallel} x pipeline {layout.pipeline_parallel} x data {layout.data_parallel}"
        f" = {layout.num_gpus} ranks, but num_nodes {layout.num_nodes} x gpus_per_node {workload.cluster.gpus_per_node}"
        f" = {workload.world(layout.num_nodes)}",
    )


def _other_batch(layout: Layout, workload: Workload) -> Problem:
    return Problem(
        "batch",
        f"micro batch {layout.micro_batch_size} x accumulation {layout.grad_accum_steps} x data {layout.data_parallel}"
        f" = {layout.global_batch_size} sequences, but global_batch_size is {workload.global_batch_size}",
        rule="the baseline trains the same global batch, else there is nothing to compare",
    )


def _picks(axes: Axes, total: int, sample_seed: int | None) -> Sequence[np.ndarray]:
    """Which value of each axis every point takes: all of them, or a sample drawn with replacement."""
    sizes = [len(values) for values in axes.values()]
    if total <= MOST_POINTS:
        return np.unravel_index(np.arange(total), sizes)
    if sample_seed is None:
        raise InputError.of(
            "too_many_points",
            f"{total} combinations of " + " x ".join(f"{len(v)} {name}" for name, v in axes.items() if len(v) > 1),
            rule=f"at most {MOST_POINTS} are listed in full",
            fix=f"shorten an axis, or set search.sample_space to draw {MOST_POINTS} of them at random",
            key="space",
            value=total,
        )
    random = np.random.default_rng(sample_seed)
    return [random.integers(size, size=MOST_POINTS) for size in sizes]


def _sifted(workload: Workload, table: LayoutTable, total: int) -> SearchSpace:
    table = with_derived(table, workload).canonical().distinct()
    first = first_broken(table, workload, LAYOUT_RULES)
    kept = first == len(LAYOUT_RULES)
    feasible, unable = _runnable(table.take(kept).layouts(), workload)
    counts = {rule.code: int((first == index).sum()) for index, rule in enumerate(LAYOUT_RULES)}
    counts |= Counter(rejected.problem.code for rejected in unable)
    return SearchSpace(
        workload,
        feasible=tuple(feasible),
        rejected_by_rule={code: count for code, count in counts.items() if count},
        num_points=total,
        is_sampled=total > MOST_POINTS,
        _rejected=table.take(~kept),
        _broken_engine_rules=tuple(unable),
    )


def _runnable(layouts: Sequence[Layout], workload: Workload) -> tuple[list[Layout], list[Rejected]]:
    """Those that their engine can run, and the others with the first rule that says no."""
    feasible, unable = [], []
    for layout in layouts:
        problem = next(iter(broken_engine_rules(layout, workload.model)), None)
        if problem is None:
            feasible.append(layout)
        else:
            unable.append(Rejected(layout.to_json(), problem))
    return feasible, unable


def _joined(space: SearchSpace, baseline: Layout) -> SearchSpace:
    """The baseline is a candidate like any other, wherever it lies."""
    candidates = space.feasible if baseline in set(space.feasible) else (*space.feasible, baseline)
    return replace(space, feasible=candidates, baseline=baseline)


def _require_some(space: SearchSpace) -> None:
    if any(layout.global_batch_size == space.workload.global_batch_size for layout in space.feasible):
        return
    if space.feasible:
        raise _no_competitor(space)
    removed = space.rejected_by_rule
    told = ", ".join(f"{code} removed {count}" for code, count in sorted(removed.items(), key=lambda item: -item[1]))
    raise InputError.of(
        "space_empty",
        f"no layout of {space.num_points} is legal: {told}",
        rule="a space has at least one layout that can be run, beside the baseline",
        fix=_relaxation(space),
        key="space",
    )


def _no_competitor(space: SearchSpace) -> InputError:
    batches = sorted({layout.global_batch_size for layout in space.feasible})
    return InputError.of(
        "space_empty",
        f"no layout has the global batch {space.workload.global_batch_size}; they have {batches[:10]}",
        rule="where grad_accum_steps is an axis, only layouts of global_batch_size compete to be the best",
        fix="add values to space.grad_accum_steps, or change global_batch_size",
        key="space.grad_accum_steps",
    )


def _relaxation(space: SearchSpace) -> str:
    """What to change first: the advice of the rules that removed most."""
    advice: dict[str, tuple[int, str]] = {}
    for rejected in space.rejected():
        count, _ = advice.get(rejected.problem.code, (0, ""))
        advice[rejected.problem.code] = (count + 1, rejected.problem.fix or rejected.problem.rule or "")
    most = sorted(advice.items(), key=lambda item: -item[1][0])[:3]
    return "; ".join(f"{code}: {fix}" for code, (_, fix) in most)
