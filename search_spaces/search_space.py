"""SearchSpace: all valid layouts of the axes, and every rejected one with its rule and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from search_spaces.errors import InputError, Problem, format_value
from search_spaces.layouts.axes import complete_axes
from search_spaces.layouts.layout import LAYOUT_FIELDS, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.layouts.workload import Workload
from search_spaces.rules.check import engine_violations, rules_of
from search_spaces.rules.layout_rules import LAYOUT_RULES, first_problems, with_derived
from search_spaces.rules.rule import EngineRules, violations
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
class SearchSpace:
    """The closed set of candidates, in canonical form, each once, in the order of the layout fields.

    `num_points` counts the combinations of the axes before duplicates are removed; `is_sampled` is true if only a
    sample of them was checked. Of the rejected layouts `_violated` has the index of the first of the `_problems` that
    each has.
    """

    workload: Workload
    layouts: LayoutTable
    num_points: int
    is_sampled: bool
    _rejected: LayoutTable
    _violated: np.ndarray
    _problems: Sequence[Problem]
    _varying: tuple[str, ...]
    baseline: Layout | None = None

    @property
    def rejected_by_rule(self) -> dict[str, int]:
        """Number of rejected layouts by the first rule each violates, in the rules' order."""
        found = Counter[str]()
        for rejected, count in self._firsts:
            found[rejected.problem.code] += count
        return dict(found)

    def examples(self) -> dict[str, RejectedLayout]:
        """The first rejected layout of each rule in `rejected_by_rule`."""
        found: dict[str, RejectedLayout] = {}
        for rejected, _ in self._firsts:
            found.setdefault(rejected.problem.code, rejected)
        return found

    def rejected(self, rows: np.ndarray | slice = slice(None)) -> Iterator[RejectedLayout]:
        """Every rejected layout with the first rule it violates, or those of some rows; generated lazily."""
        for fields, index in zip(self._rejected.take(rows).rows(), self._violated[rows].tolist(), strict=True):
            yield RejectedLayout(fields, self._problems[index], self._varying)

    @cached_property
    def _firsts(self) -> list[tuple[RejectedLayout, int]]:
        """The first rejected layout of each problem, those of engines' rules in the order of the layouts, and how many
        there are."""
        indices, rows, counts = np.unique(self._violated, return_index=True, return_counts=True)
        order = np.lexsort((rows, _places(self._problems)[indices]))
        return [*zip(self.rejected(rows[order]), counts[order].tolist(), strict=True)]


def _places(problems: Sequence[Problem]) -> np.ndarray:
    """Place of each problem's rule among those of every layout; one behind them for an engine's."""
    codes = [rule.code for rule in LAYOUT_RULES]
    return np.array([codes.index(each.code) if each.code in codes else len(codes) for each in problems], dtype=int)


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
    none, listed = np.zeros(0, dtype=int), _require_listed(baseline, layouts)
    return SearchSpace(workload, layouts, len(candidates), False, layouts.take(none), none, (), (), listed)


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
    problems = [*violations(LAYOUT_RULES, baseline, replace(workload, batch_is_free=False))]
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
    of_engines = ((engine, rule) for engine in sorted(table.values("engine")) for rule in rules_of(engine, engines))
    every = [*(("", rule) for rule in LAYOUT_RULES), *of_engines]
    problems, violated = first_problems(table, workload, every)
    rejected = np.flatnonzero(violated >= 0)
    is_of_engine = _places(problems) == len(LAYOUT_RULES)
    rejected = rejected[np.argsort(is_of_engine[violated[rejected]], kind="stable")]
    varying = tuple(name for name in given if len(table) and table[name].min() != table[name].max())
    return SearchSpace(
        workload,
        table.take(violated < 0),
        num_points=total,
        is_sampled=total > MAX_POINTS,
        _rejected=table.take(rejected),
        _violated=violated[rejected],
        _problems=problems,
        _varying=varying,
    )


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
