"""SearchSpace: all valid layouts of the axes, and every rejected one with its rule and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from search_spaces.errors import InputError, Problem, format_value
from search_spaces.layouts.axes import complete_axes
from search_spaces.layouts.layout import CHOICES, LAYOUT_FIELDS, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_checks, engine_violations
from search_spaces.rules.engine_rules import EngineRules
from search_spaces.rules.layout_rules import LAYOUT_RULES, LayoutRule, first_violation, layout_violations, with_derived
from search_spaces.rules.trainer_rules import OWN_RULES

MAX_POINTS = 1_000_000
SAMPLED_POINTS = 100_000
"""Combinations drawn from a larger space; checking one takes a fraction of a millisecond, a search tries a few
hundred."""

Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class RejectedLayout:
    """A layout that cannot run. A derived field that is not whole is None in `fields`.

    `varying` names the fields in which the layouts of the space differ.
    """

    fields: Mapping[str, Any]
    problem: Problem
    varying: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The layout's varying fields and the violated rule."""
        listed = ", ".join(f"{name} {_format(self.fields[name])}" for name in self.varying)
        return f"{listed}: {self.problem.message}" if listed else self.problem.message


@dataclass(frozen=True, eq=False)
class Rejections:
    """Rejected layouts: for each row the index of the first rule that it violates. Of the rules, those of every layout
    come first; a rule of an engine is there as the problem that it has."""

    workload: Workload
    layouts: LayoutTable
    violated: np.ndarray
    rules: Sequence[LayoutRule | Problem]
    varying: tuple[str, ...]

    def of_rows(self, rows: np.ndarray | slice) -> Iterator[RejectedLayout]:
        """The rejected layouts of these rows, each with its problem."""
        for fields, index in zip(self.layouts.take(rows).rows(), self.violated[rows].tolist(), strict=True):
            rule = self.rules[index]
            problem = rule.problem(fields, self.workload) if isinstance(rule, LayoutRule) else rule
            yield RejectedLayout(fields, problem, self.varying)

    def by_rule(self) -> dict[str, int]:
        """Number of layouts by the id of the rule."""
        found: dict[str, int] = {}
        for row, count in zip(*self.in_order_of_rules(), strict=True):
            code = self.rules[self.violated[row]].code
            found[code] = found.get(code, 0) + int(count)
        return found

    def in_order_of_rules(self) -> tuple[np.ndarray, np.ndarray]:
        """The first row of each rule, those of engines in the order of the rows, and how many rows violate it."""
        indices, rows, counts = np.unique(self.violated, return_index=True, return_counts=True)
        order = np.lexsort((rows, np.minimum(indices, len(LAYOUT_RULES))))
        return rows[order], counts[order]


@dataclass(frozen=True)
class SearchSpace:
    """The closed set of candidates, in canonical form, each once, in the order of the layout fields.

    `rejected_by_rule` counts the rejected layouts by the first rule each violates, in the rules' order. `num_points`
    counts the combinations of the axes before duplicates are removed; `is_sampled` is true if only a sample of them was
    checked.
    """

    workload: Workload
    layouts: LayoutTable
    num_points: int
    baseline: Layout | None = None
    is_sampled: bool = False
    _rejections: Rejections | None = field(default=None, repr=False, compare=False)

    @property
    def rejected_by_rule(self) -> dict[str, int]:
        return {} if self._rejections is None else self._rejections.by_rule()

    def rejected(self) -> Iterator[RejectedLayout]:
        """Every rejected layout with the first rule it violates; generated lazily."""
        return iter(()) if self._rejections is None else self._rejections.of_rows(slice(None))

    def examples(self) -> dict[str, RejectedLayout]:
        """The first rejected layout of each rule in `rejected_by_rule`."""
        found: dict[str, RejectedLayout] = {}
        if self._rejections is not None:
            for rejected in self._rejections.of_rows(self._rejections.in_order_of_rules()[0]):
                found.setdefault(rejected.problem.code, rejected)
        return found


def search_space(
    workload: Workload,
    axes: Axes,
    baseline: Layout | None = None,
    *,
    engines: EngineRules = OWN_RULES,
    sample_seed: int | None = None,
) -> SearchSpace:
    """All layouts of these axes that a trainer with these engines can run; fields without an axis keep their default.

    With `sample_seed`, more than `MAX_POINTS` combinations are allowed and `SAMPLED_POINTS` are drawn, the same for the
    same seed. InputError when there are too many, when none is valid, or when the baseline violates a rule.
    """
    if baseline is not None:
        require_valid(baseline, workload, engines)
    axes = complete_axes(axes, workload.cluster.num_nodes)
    total = prod(len(values) for values in axes.values())
    table = LayoutTable.from_indices(axes, _axis_indices(axes, total, sample_seed))
    space = _filter(workload, engines, with_derived(table, workload).canonical().distinct(), list(axes), total)
    _require_candidates(space)
    return space if baseline is None else _with_baseline(space, baseline.canonical())


def closed_space(workload: Workload, candidates: Sequence[Layout], baseline: Layout | None = None) -> SearchSpace:
    """The candidates of a measured table as they are; no rule is checked, since they were run."""
    layouts = _distinct(candidates)
    return SearchSpace(workload, layouts, len(candidates), _require_listed(baseline, layouts))


def runnable_space(
    workload: Workload,
    candidates: Sequence[Layout],
    baseline: Layout | None = None,
    *,
    engines: EngineRules = OWN_RULES,
) -> SearchSpace:
    """The candidates of a measured table that a trainer with these engines can run on this workload, in the table's
    order.

    InputError when there is none, or when the baseline is not in the table or violates a rule.
    """
    listed = _distinct(candidates)
    canonical = _require_listed(baseline, listed)
    if canonical is not None:
        require_valid(canonical, workload, engines)
    space = _filter(workload, engines, listed, LAYOUT_FIELDS, len(candidates))
    _require_candidates(space)
    return replace(space, baseline=canonical)


def require_valid(baseline: Layout, workload: Workload, engines: EngineRules) -> None:
    """InputError with every rule that the baseline violates.

    It has to train the search's global batch even where that is free, else it cannot be compared.
    """
    problems = layout_violations(baseline, replace(workload, batch_is_free=False))
    problems += engine_violations(baseline, workload.model, engines)
    if problems:
        raise InputError(*problems).at(key="baseline")


def _distinct(candidates: Sequence[Layout]) -> LayoutTable:
    """The candidates in canonical form, each once, in their order."""
    return LayoutTable.of({layout.key: layout.canonical() for layout in candidates}.values())


def _require_listed(baseline: Layout | None, candidates: LayoutTable) -> Layout | None:
    """The baseline in canonical form; InputError where it is not among the candidates."""
    if baseline is None:
        return None
    if baseline.canonical() not in candidates:
        raise InputError.of(
            "baseline",
            "is not a layout of the table",
            rule="the baseline is one of space.candidates",
            fix="give a layout of the table, or remove the baseline",
            key="baseline",
        )
    return baseline.canonical()


def _axis_indices(axes: Axes, total: int, sample_seed: int | None) -> Sequence[np.ndarray]:
    """Index into each axis for every point: all combinations, or a sample drawn with replacement."""
    sizes = [len(values) for values in axes.values()]
    if total <= MAX_POINTS:
        return np.unravel_index(np.arange(total), sizes)
    if sample_seed is None:
        raise InputError.of(
            "too_many_points",
            f"{total} combinations of " + " x ".join(f"{len(v)} {name}" for name, v in axes.items() if len(v) > 1),
            rule=f"at most {MAX_POINTS} combinations are enumerated",
            fix=f"shorten an axis, or set search.sample_space to draw {SAMPLED_POINTS} of them at random",
            key="space",
            value=total,
        )
    rng = np.random.default_rng(sample_seed)
    return [rng.integers(size, size=SAMPLED_POINTS) for size in sizes]


def _filter(
    workload: Workload, engines: EngineRules, table: LayoutTable, given: Sequence[str], total: int
) -> SearchSpace:
    """The space of the rows that satisfy all rules; `given` names the fields that distinguish the rows."""
    violated = first_violation(table, workload, LAYOUT_RULES)
    valid = np.flatnonzero(violated == len(LAYOUT_RULES))
    of_engines, problems = _first_problems(table.take(valid), workload.model, engines)
    violated[valid] += of_engines
    unable = valid[of_engines < len(problems)]
    rejected = np.concatenate([np.flatnonzero(violated < len(LAYOUT_RULES)), unable])
    varying = tuple(name for name in given if len(table) and table[name].min() != table[name].max())
    return SearchSpace(
        workload,
        layouts=table.take(valid[of_engines == len(problems)]),
        num_points=total,
        is_sampled=total > MAX_POINTS,
        _rejections=Rejections(workload, table.take(rejected), violated[rejected], (*LAYOUT_RULES, *problems), varying),
    )


def _first_problems(table: LayoutTable, model: ModelShape, engines: EngineRules) -> tuple[np.ndarray, list[Problem]]:
    """For each row the index of the first problem that its engine has with it, and the problems; their number for rows
    without one."""
    first, problems = np.full(len(table), -1), []
    for engine in np.unique(table["engine"]).tolist():
        for check in engine_checks(CHOICES["engine"][engine], model, engines):
            left = np.flatnonzero((table["engine"] == engine) & (first < 0))
            found, of_row = table.answers(lambda layout, check=check: next(check(layout), None), left)
            indices = [-1 if problem is None else len(problems) + place for place, problem in enumerate(found)]
            first[left] = np.array(indices, dtype=int)[of_row]
            problems += found
    first[first < 0] = len(problems)
    return first, problems


def _with_baseline(space: SearchSpace, baseline: Layout) -> SearchSpace:
    """The space with the baseline as a candidate, also where the axes do not contain it."""
    candidates = space.layouts if baseline in space.layouts else space.layouts.with_row(baseline)
    return replace(space, layouts=candidates, baseline=baseline)


def _require_candidates(space: SearchSpace) -> None:
    if (space.layouts.global_batch_size == space.workload.global_batch_size).any():
        return
    if len(space.layouts):
        raise _no_competitor_error(space)
    removed = space.rejected_by_rule
    listed = ", ".join(f"{code} rejected {count}" for code, count in sorted(removed.items(), key=lambda item: -item[1]))
    raise InputError.of(
        "space_empty",
        f"none of {space.num_points} layouts is valid: {listed}",
        rule="a search space has at least one valid layout besides the baseline",
        fix=_relaxation_advice(space),
        key="space",
    )


def _no_competitor_error(space: SearchSpace) -> InputError:
    batches = np.unique(space.layouts.global_batch_size).tolist()
    return InputError.of(
        "space_empty",
        f"no layout has the global batch {space.workload.global_batch_size}; they have {batches[:10]}",
        rule="where grad_accum_steps is an axis, only layouts of global_batch_size compete to be the best",
        fix="add values to space.grad_accum_steps, or change global_batch_size",
        key="space.grad_accum_steps",
    )


def _format(value: Any) -> str:
    return value if isinstance(value, str) else format_value(value)


def _relaxation_advice(space: SearchSpace) -> str:
    """The fixes of the rules that rejected most layouts."""
    removed, examples = space.rejected_by_rule, space.examples()
    problems = {code: examples[code].problem for code in sorted(removed, key=lambda code: -removed[code])[:3]}
    return "; ".join(f"{code}: {problem.fix or problem.rule or ''}" for code, problem in problems.items())
