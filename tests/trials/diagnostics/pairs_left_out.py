"""Pairs of axis values that no parity case covers, and the rules that exclude them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import combinations, product
from typing import Any

from search_spaces.layouts.covering_array import value_combinations
from search_spaces.layouts.layout import Layout
from trials.diagnostics.parity_cases import (
    GLOBAL_BATCH_SIZE,
    MOST_RANKS,
    VALUES,
    axis_values,
    case_from_layout,
    violated_rules,
)
from trials.diagnostics.selftest import Case

Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def pairs_left_out(cases: Iterable[Case]) -> list[Pair]:
    """Pairs of axis values that none of these cases covers."""
    had = {pair for case in cases for pair in value_combinations(axis_values(case), tuple(VALUES), 2)}
    every = (
        ((a, value_of_a), (b, value_of_b))
        for a, b in combinations(VALUES, 2)
        for value_of_a, value_of_b in product(VALUES[a], VALUES[b])
    )
    return [pair for pair in every if pair not in had]


def exclusion_reasons(pair: Pair, cases: Iterable[Case], accelerator: str) -> frozenset[str]:
    """The fewest rules that refuse this pair in any of these layouts; `canonical` where it cannot even be written,
    `world` where it takes more ranks than there are. Empty where some layout may have it."""
    refusing = (_refusing(pair, case, accelerator) for case in cases)
    return min(refusing, key=lambda rules: (len(rules), "canonical" in rules, sorted(rules)))


def _refusing(pair: Pair, base: Case, accelerator: str) -> frozenset[str]:
    changed = _changed(base, dict(pair))
    if any(axis_values(changed)[axis] != value for axis, value in pair):
        return frozenset({"canonical"})
    world = ["world"] * (changed.layout.num_gpus > MOST_RANKS)
    return frozenset([*world, *violated_rules(changed, accelerator)])


def _changed(base: Case, values: Mapping[str, Any]) -> Case:
    """The case with these axis values replaced."""
    fields = base.layout.to_json() | {axis: value for axis, value in values.items() if axis != "shape"}
    fields["grad_accum_steps"] = GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * fields["data_parallel"])
    return case_from_layout(values.get("shape", base.shape), Layout.from_json(fields))
