"""Differences and verdicts of the selftest, without any rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trials.diagnostics.parity_cases import failing_cases, named_case
from trials.diagnostics.selftest import (
    CaseResult,
    RankTraining,
    ReferenceTraining,
    Results,
    case_spec,
    counting_fault,
    largest_difference,
    read_cases,
    tolerance_of,
    write_cases,
)
from trials.train.selftest.judge import judge_agreement, judge_failure

STAGES = named_case("pp2", pipeline_parallel=2)
REFERENCE = ReferenceTraining((3.0, 2.0), (1.5, 1.25))


def ranks(losses: tuple[float, ...] = (3.0, 2.0), norms: tuple[float, ...] = (1.5, 1.25)) -> list[RankTraining]:
    """Two stages: only the last has a loss."""
    whole, half = STAGES.model.parameters, STAGES.model.parameters // 2
    micro_batches = 2.0 * STAGES.layout.grad_accum_steps
    return [
        RankTraining((None, None), (1.5, 1.25), half, micro_batches),
        RankTraining(losses, norms, whole - half, micro_batches),
    ]


def failed(reason: str, excerpt: str = "") -> dict:
    return {"reason": reason, "rank": 1, "excerpt": excerpt}


def test_a_difference_says_what_differs_at_which_step_and_by_how_much():
    difference = largest_difference(ranks(losses=(3.0, 2.125)), REFERENCE)
    assert (difference.what, difference.step, difference.value) == ("loss", 2, 0.125)
    assert str(difference) == "1.2e-01 (loss of step 2)"


def test_every_ranks_norm_is_compared_not_only_the_firsts():
    difference = largest_difference(ranks(norms=(1.25, 1.25)), REFERENCE)
    assert (difference.what, difference.step, difference.value) == ("gradient norm", 1, 0.25)


def test_the_loss_is_the_mean_over_the_data_ranks():
    both = [RankTraining((loss,), (1.5,), 1, 1.0) for loss in (2.5, 3.5)]
    assert largest_difference(both, REFERENCE).value == 0.0


def test_what_is_not_a_number_is_the_largest_difference_and_no_agreement():
    trained = ranks(losses=(math.nan, 2.0), norms=(9.0, 1.25))
    assert math.isnan(largest_difference(trained, REFERENCE).value)
    assert not judge_agreement(STAGES, "cpu", trained, REFERENCE, None, 1.0).passed


def test_counts_that_are_another_layouts_are_reported():
    good = ranks()
    assert counting_fault(STAGES, good, steps=2) is None
    assert "parameters, not 1 x" in (counting_fault(STAGES, good[:1], steps=2) or "")
    assert "rank 0 ran 8 micro-batches, not 3 steps of 4" in (counting_fault(STAGES, good, steps=3) or "")


def test_a_gpu_may_differ_by_more_in_fp32_only():
    assert tolerance_of(STAGES, "cpu") == 1e-5
    assert tolerance_of(STAGES, "h100-80gb") == 1e-4
    for precision, tolerance in (("bf16", 1e-3), ("fp16", 1e-2)):
        case = named_case("x", precision=precision)
        assert tolerance_of(case, "cpu") == tolerance_of(case, "h100-80gb") == tolerance


def test_agreement_passes_and_says_how_close():
    result = judge_agreement(STAGES, "cpu", ranks(losses=(3.0, 2.0 + 1e-6)), REFERENCE, None, 2.5)
    assert (result.name, result.ranks, result.passed, result.message) == ("pp2", 2, True, None)
    assert result.difference == pytest.approx(1e-6)


def test_a_difference_beyond_the_tolerance_fails_with_its_step():
    result = judge_agreement(STAGES, "cpu", ranks(losses=(3.0, 2.25)), REFERENCE, None, 1.0)
    assert not result.passed
    assert result.message == "differs by 2.5e-01 (loss of step 2), the tolerance is 1e-05"


def test_a_layout_that_counts_wrong_fails_although_nothing_differs():
    first, last = ranks()
    short = replace(last, parameters=last.parameters - 1)
    result = judge_agreement(STAGES, "cpu", [first, short], REFERENCE, None, 1.0)
    assert not result.passed
    assert "parameters" in (result.message or "")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (failed("script_error", "Traceback\nValueError: no such group\n"), "rank 1: script_error: ValueError: no such"),
        (None, "1 of 2 ranks ended without an outcome"),
    ],
)
def test_a_rank_that_failed_is_reported_in_its_own_words(outcome, words):
    result = judge_agreement(STAGES, "cpu", ranks()[:1], None, outcome, 1.0)
    assert not result.passed
    assert words in (result.message or "")


@pytest.mark.parametrize(
    ("codes", "outcome", "words"),
    [
        ([1, 1], failed("gpu_oom"), None),
        ([1, 1], failed("script_error"), "ended as script_error instead of gpu_oom"),
        ([0, 0], None, "ended without an outcome instead of gpu_oom"),
        ([1, None], failed("gpu_oom"), "ranks that did not end by themselves: [1]"),
        ([0, 1], failed("gpu_oom"), "a rank exited with code 0"),
    ],
)
def test_a_case_that_must_fail_passes_only_when_all_its_ranks_end_for_the_reason(codes, outcome, words):
    oom, _ = failing_cases()
    result = judge_failure(oom, codes, outcome, 1.0)
    assert (result.passed, result.message) == (words is None, words)


def test_cases_and_results_are_read_as_they_were_written(tmp_path):
    cases = [STAGES, *failing_cases()]
    write_cases(tmp_path, cases)
    assert read_cases(tmp_path) == cases
    results = Results((CaseResult("pp2", 2, True, 1e-7, 1e-5, 1.0),), {"torch": "2.13.0"})
    assert Results.read(tmp_path) == Results()
    results.write(tmp_path)
    assert Results.read(tmp_path) == results


def test_cases_of_a_newer_parlay_are_refused(tmp_path):
    write_cases(tmp_path, [STAGES])
    path = tmp_path / "cases.json"
    path.write_text(path.read_text().replace("selftest_cases/1", "selftest_cases/2"))
    with pytest.raises(ValueError, match="selftest_cases/2"):
        read_cases(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_cases(tmp_path / "elsewhere")


def test_a_case_within_a_node_meets_by_file_and_one_across_nodes_by_tcp():
    assert case_spec(STAGES, "cpu", gpus_per_node=2).rendezvous.kind == "file"
    across = case_spec(STAGES, "cpu", gpus_per_node=1)
    assert (across.rendezvous.kind, across.num_nodes) == ("tcp", 2)
