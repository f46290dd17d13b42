"""The cases of the parity suite cover what they claim; what they leave out, a rule rejects."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from trials.diagnostics.covering_array import value_combinations
from trials.diagnostics.named_parity_cases import COMPILED, FEATURES, SILENT_ERRORS, TIED
from trials.diagnostics.parity_cases import (
    COVERED_AXES,
    GLOBAL_BATCH_SIZE,
    MOST_RANKS,
    TRIPLE_AXES,
    VALUES,
    case_from_layout,
    case_values,
    covered,
    covering_cases,
    named_case,
    valid_cases,
    violated_rules,
)
from trials.diagnostics.selftest import Case

pytestmark = [pytest.mark.slow, pytest.mark.walks, pytest.mark.timeout(300)]


Pair = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def covered_by_shape(case: Case, axes: Sequence[str]) -> list[Hashable]:
    """What a case covers, with the triples of each engine and shape separate."""
    values = case_values(case)
    triples = [] if case.layout.precision != "fp32" else value_combinations(values, TRIPLE_AXES, 3)
    return covered(case, axes) + [(case.layout.engine, case.shape, triple) for triple in triples]


def pairs_left_out(cases: Iterable[Case]) -> list[Pair]:
    """Pairs of axis values that none of these cases covers."""
    had = {pair for case in cases for pair in value_combinations(case_values(case), tuple(VALUES), 2)}
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
    if any(case_values(changed)[axis] != value for axis, value in pair):
        return frozenset({"canonical"})
    world = ["world"] * (changed.layout.num_gpus > MOST_RANKS)
    return frozenset([*world, *violated_rules(changed, accelerator)])


def _changed(base: Case, values: Mapping[str, Any]) -> Case:
    """The case with these axis values replaced."""
    fields = base.layout.to_json() | {axis: value for axis, value in values.items() if axis != "shape"}
    fields["grad_accum_steps"] = GLOBAL_BATCH_SIZE // (fields["micro_batch_size"] * fields["data_parallel"])
    return case_from_layout(values.get("shape", base.shape), Layout.from_json(fields).canonical())


@pytest.fixture(scope="module")
def valid() -> list[Case]:
    return valid_cases("cpu")


@pytest.fixture(scope="module")
def chosen() -> list[Case]:
    return covering_cases("cpu")


def in_fp32(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.layout.precision == "fp32"]


def shown(cases: list[Case], axes: tuple[str, ...], size: int) -> set:
    return {found for case in cases for found in value_combinations(case_values(case), axes, size)}


def test_every_case_keeps_every_rule_and_no_two_are_alike(chosen):
    assert all(not violated_rules(case, "cpu") and case.layout.num_gpus <= 8 for case in chosen)
    once = [case for case in chosen if case.name not in SILENT_ERRORS]
    assert len({case.name for case in chosen}) == len(chosen)
    assert len({(case.shape, case.layout.key) for case in once}) == len(once)


def test_all_valid_pairs_and_the_triples_of_tensor_pipeline_zero_and_schedule_are_trained_in_fp32(valid, chosen):
    assert shown(in_fp32(chosen), COVERED_AXES, 2) >= shown(in_fp32(valid), COVERED_AXES, 2)
    assert shown(in_fp32(chosen), TRIPLE_AXES, 3) >= shown(in_fp32(valid), TRIPLE_AXES, 3)


def test_every_axis_value_is_trained_in_every_precision_that_may_have_it(valid, chosen):
    pairs = {pair for pair in shown(valid, (*COVERED_AXES, "precision"), 2) if pair[1][0] == "precision"}
    assert shown(chosen, (*COVERED_AXES, "precision"), 2) >= pairs


def test_in_full_every_shape_and_engine_has_every_triple_it_may_have(valid):
    kinds = {(case.layout.engine, case.shape) for case in valid}
    full = covering_cases("cpu", covers=covered_by_shape)
    for kind in kinds:
        of_kind = [[c for c in in_fp32(cases) if (c.layout.engine, c.shape) == kind] for cases in (full, valid)]
        assert shown(of_kind[0], TRIPLE_AXES, 3) >= shown(of_kind[1], TRIPLE_AXES, 3), kind


def test_pairs_that_no_case_has_are_refused_by_a_rule(chosen):
    refused = {pair: exclusion_reasons(pair, chosen, "cpu") for pair in pairs_left_out(chosen)}
    assert [pair for pair, rules in refused.items() if not rules] == []
    assert refused[("tensor_parallel", 1), ("sequence_parallel", True)] == {"canonical"}
    assert refused[("pipeline_parallel", 4), ("data_parallel", 4)] == {"world"}
    assert refused[("pipeline_schedule", "gpipe"), ("engine", "deepspeed")] == {"deepspeed.pipeline_schedule"}


@pytest.mark.parametrize("name", [*SILENT_ERRORS, *COMPILED])
def test_each_known_silent_error_is_a_case_or_refused(name, chosen):
    shape, fields = {**SILENT_ERRORS, **COMPILED}[name]
    refusing = violated_rules(named_case(name, shape, **fields), "cpu")
    assert (name in {case.name for case in chosen}) == (not refusing and name in SILENT_ERRORS)
    assert name not in SILENT_ERRORS or name == "bf16-zero0-deepspeed" or not refusing, refusing


def test_on_fewer_ranks_the_cases_that_fit_cover_what_fits(valid):
    fitting = [case for case in valid if case.layout.num_gpus <= 2]
    chosen = [case for case in covering_cases("cpu", most_ranks=2) if case.name not in FEATURES]
    assert max(case.layout.num_gpus for case in chosen) == 2
    assert shown(in_fp32(chosen), COVERED_AXES, 2) == shown(in_fp32(fitting), COVERED_AXES, 2)


def test_cases_of_flex_attention_on_a_gpu_have_heads_that_it_takes():
    cases = covering_cases("h100-80gb", engines=("torchtitan",))
    assert {case.layout.precision for case in cases} == {"fp32", "bf16"}
    assert {case.model.head_size for case in cases} == {16}
    assert {case.name for case in cases} >= set(TIED)
