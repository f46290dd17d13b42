"""Differences and verdicts of the selftest without any rank, and the check before it forks: no device was used."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from trials.diagnostics.parity_cases import failing_cases, named_case
from trials.diagnostics.selftest import (
    RankTraining,
    ReferenceTraining,
    counting_fault,
    largest_difference,
    tolerance_of,
)
from trials.train.selftest.judge import judge_agreement, judge_failure
from trials.train.selftest.program import importable_before_forks, require_untouched_devices

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


@pytest.mark.parametrize(
    ("trained", "what", "step", "value"),
    [
        (ranks(losses=(3.0, 2.125)), "loss", 2, 0.125),
        (ranks(norms=(1.25, 1.25)), "gradient norm", 1, 0.25),  # not only the first rank's
        ([RankTraining((loss,), (1.5,), 1, 1.0) for loss in (2.5, 3.75)], "loss", 1, 0.125),  # the mean of data ranks
    ],
    ids=["loss", "norm", "data-ranks"],
)
def test_a_difference_says_what_differs_at_which_step_and_by_how_much(trained, what, step, value):
    difference = largest_difference(trained, REFERENCE)
    assert (difference.what, difference.step, difference.value) == (what, step, value)
    assert f"({what} of step {step})" in str(difference)


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


SHORT = [ranks()[0], replace(ranks()[1], parameters=1)]


@pytest.mark.parametrize(
    ("trained", "outcome", "words"),
    [
        (ranks(losses=(3.0, 2.0 + 1e-6)), None, None),
        (ranks(losses=(3.0, 2.25)), None, "differs by 2.5e-01 (loss of step 2), the tolerance is 1e-05"),
        (ranks(losses=(math.nan, 2.0), norms=(9.0, 1.25)), None, "differs by nan"),
        (SHORT, None, "parameters"),
        (ranks()[:1], failed("script_error", "Traceback\nValueError: no\n"), "rank 1: script_error: ValueError: no"),
        (ranks()[:1], None, "1 of 2 ranks ended without an outcome"),
    ],
    ids=["close", "different", "not-a-number", "counts", "failed", "lost"],
)
def test_only_what_agrees_and_counts_right_passes_and_the_reason_is_told(trained, outcome, words):
    result = judge_agreement(STAGES, "cpu", trained, REFERENCE, outcome, 2.5)
    assert (result.name, result.ranks, result.passed) == ("pp2", 2, words is None)
    assert result.message is words is None or words in result.message
    assert words is not None or result.difference == pytest.approx(1e-6)


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


@pytest.mark.parametrize(
    ("accelerator", "imported"), [("cpu", {"deepspeed", "megatron-core"}), ("h100", {"deepspeed"})]
)
def test_what_asks_for_a_device_or_is_patched_while_it_is_imported_is_left_to_the_children(accelerator, imported):
    assert importable_before_forks({"deepspeed", "megatron-core", "torchtitan"}, accelerator) == imported


@pytest.mark.parametrize("what_tells", ["is_initialized", "_is_in_bad_fork"])
def test_where_cuda_was_used_before_the_fork_the_selftest_refuses(monkeypatch, what_tells):
    require_untouched_devices()
    monkeypatch.setattr(torch.cuda, what_tells, lambda: True)
    with pytest.raises(RuntimeError, match="CUDA was used while torch and the engines were imported"):
        require_untouched_devices()
