"""Differences and verdicts of the selftest without any rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import (
    RankTraining,
    ReferenceTraining,
    counting_fault,
    judge_case,
    largest_difference,
    tolerance_of,
)

STAGES = named_case("pp2", pipeline_parallel=2)
REFERENCE = ReferenceTraining((3.0, 2.0), (1.5, 1.25))


def ranks(losses: tuple[float, ...] = (3.0, 2.0), norms: tuple[float, ...] = (1.5, 1.25)) -> list[RankTraining]:
    """Two stages: only the last has a loss."""
    whole, half = STAGES.model.parameters, STAGES.model.parameters // 2
    micro_batches = 2.0 * STAGES.layout.grad_accum_steps
    return [
        RankTraining((None, None), (1.5, 1.25), half, half, micro_batches),
        RankTraining(losses, norms, whole - half, whole - half, micro_batches),
    ]


@pytest.mark.parametrize(
    ("trained", "what", "step", "value"),
    [
        (ranks(losses=(3.0, 2.125)), "loss", 2, 0.125),
        (ranks(norms=(1.25, 1.25)), "gradient norm", 1, 0.25),  # not only the first rank's
        # The mean of data ranks.
        ([RankTraining((loss,), (1.5,), 1, 1, 1.0) for loss in (2.5, 3.75)], "loss", 1, 0.125),
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


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (ranks(losses=(3.0, 2.0 + 1e-6)), None),
        (ranks(losses=(3.0, 2.25)), "differs by 2.5e-01 (loss of step 2), the tolerance is 1e-05"),
        (ranks(losses=(math.nan, 2.0), norms=(9.0, 1.25)), "differs by nan"),
        ([ranks()[0], replace(ranks()[1], parameters=1)], "parameters"),
    ],
    ids=["close", "different", "not-a-number", "counts"],
)
def test_only_what_agrees_and_counts_right_passes_and_the_reason_is_told(trained, words):
    result = judge_case(STAGES, "cpu", trained, REFERENCE, 2.5)
    assert (result.name, result.ranks, result.passed) == ("pp2", 2, words is None)
    assert result.message is words is None or words in result.message
    assert words is not None or result.difference == pytest.approx(1e-6)
