"""The cases of the parity suite cover what they claim; what they leave out, a rule rejects."""

from __future__ import annotations

import pytest

from search_spaces.layouts.covering_array import value_combinations
from tests.trials.diagnostics.pairs_left_out import exclusion_reasons, pairs_left_out
from trials.diagnostics.named_parity_cases import COMPILED, FEATURES, SILENT_ERRORS, TIED
from trials.diagnostics.parity_cases import (
    COVERED_AXES,
    TRIPLE_AXES,
    axis_values,
    covering_cases,
    failing_cases,
    full_cases,
    named_case,
    valid_cases,
    violated_rules,
)
from trials.diagnostics.selftest import Case, ExpectedResult

pytestmark = [pytest.mark.slow, pytest.mark.walks]


@pytest.fixture(scope="module")
def valid() -> list[Case]:
    return valid_cases("cpu")


@pytest.fixture(scope="module")
def chosen() -> list[Case]:
    return covering_cases("cpu")


def in_fp32(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.layout.precision == "fp32"]


def shown(cases: list[Case], axes: tuple[str, ...], size: int) -> set:
    return {found for case in cases for found in value_combinations(axis_values(case), axes, size)}


def test_every_case_keeps_every_rule_and_the_most_ranks(chosen):
    assert all(not violated_rules(case, "cpu") and case.layout.num_gpus <= 8 for case in chosen)


def test_no_two_cases_have_a_name_or_a_training_in_common(chosen):
    once = [case for case in chosen if case.name not in SILENT_ERRORS]
    assert len({case.name for case in chosen}) == len(chosen)
    assert len({(case.shape, case.layout.key) for case in once}) == len(once)


def test_all_pairs_of_axis_values_that_are_valid_in_fp32_are_trained_in_fp32(valid, chosen):
    assert shown(in_fp32(chosen), COVERED_AXES, 2) >= shown(in_fp32(valid), COVERED_AXES, 2)


def test_every_axis_value_is_trained_in_every_precision_that_may_have_it(valid, chosen):
    pairs = {pair for pair in shown(valid, (*COVERED_AXES, "precision"), 2) if pair[1][0] == "precision"}
    assert shown(chosen, (*COVERED_AXES, "precision"), 2) >= pairs


def test_all_triples_of_tensor_pipeline_zero_and_schedule_are_trained_in_fp32(valid, chosen):
    assert shown(in_fp32(chosen), TRIPLE_AXES, 3) >= shown(in_fp32(valid), TRIPLE_AXES, 3)


def test_what_a_valid_layout_may_have_is_more_than_enough_to_choose_from(valid, chosen):
    assert len(valid) > 20 * len(chosen)


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
    assert name not in MUST_TRAIN or not refusing, refusing


MUST_TRAIN = {name for name in SILENT_ERRORS if name != "bf16-zero0-deepspeed"}


def test_deepspeeds_bf16_without_zero_is_refused_and_its_pipeline_is_not():
    data = named_case("x", engine="deepspeed", precision="bf16", data_parallel=2)
    assert any(rule.startswith("deepspeed.") for rule in violated_rules(data, "cpu"))
    assert not violated_rules(named_case("x", engine="deepspeed", precision="bf16", pipeline_parallel=2), "cpu")


def test_on_fewer_ranks_the_cases_that_fit_cover_what_fits(valid):
    fitting = [case for case in valid if case.layout.num_gpus <= 2]
    chosen = [case for case in covering_cases("cpu", most_ranks=2) if case.name not in FEATURES]
    assert max(case.layout.num_gpus for case in chosen) == 2
    assert shown(in_fp32(chosen), COVERED_AXES, 2) == shown(in_fp32(fitting), COVERED_AXES, 2)


def test_in_full_every_shape_and_engine_has_every_triple_it_may_have(valid):
    def by_shape(cases: list[Case]) -> set:
        return {
            (case.layout.engine, case.shape, triple)
            for case in in_fp32(cases)
            for triple in value_combinations(axis_values(case), TRIPLE_AXES, 3)
        }

    assert by_shape(full_cases("cpu")) >= by_shape(valid)


@pytest.mark.slow
def test_sequence_parallelism_by_megatron_core_is_in_half_precision_on_gpus():
    cases = covering_cases("h100-80gb", engines=("megatron-core",))
    assert {case.layout.precision for case in cases if case.layout.sequence_parallel} <= {"bf16", "fp16"}
    assert any(case.layout.sequence_parallel for case in cases)


@pytest.mark.slow
def test_cases_of_flex_attention_on_a_gpu_have_heads_that_it_takes():
    cases = covering_cases("h100-80gb", engines=("torchtitan",))
    assert {case.layout.precision for case in cases} == {"fp32", "bf16"}
    assert {case.model.head_size for case in cases} == {16}
    assert {case.name for case in cases} >= set(TIED)


def test_accelerators_without_bf16_have_no_bf16_cases():
    assert {case.layout.precision for case in covering_cases("v100-16gb", 2)} == {"fp32", "fp16"}


@pytest.mark.parametrize("most_ranks", [1, 2, 8])
def test_the_cases_that_must_fail_fit_as_well(most_ranks):
    failing = failing_cases(most_ranks)
    assert [case.expected for case in failing] == [ExpectedResult.GPU_OOM, ExpectedResult.HANG]
    assert all(case.layout.num_gpus <= most_ranks and not violated_rules(case, "cpu") for case in failing)
