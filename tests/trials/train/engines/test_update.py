"""fp16's loss scale, the norm, and a step's record over all ranks. For the training see the parity tests."""

from __future__ import annotations

import math

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.measurement.step_log import StepPhase, StepRecord
from trials.train.engines import update
from trials.train.engines.gradients import clip_factor, square_sum
from trials.train.engines.update import LossScale
from trials.train.measurement.loop import skipped_steps_error, step_record
from trials.train.parallel.gather import RankStep

FINE, OVERFLOW = torch.tensor(1.0), torch.tensor(float("inf"))


ALMOST = LossScale.GROWS_AFTER_STEPS - 1


@pytest.mark.parametrize(
    ("norms", "seen", "value"),
    [
        ([OVERFLOW, torch.tensor(float("nan"))], [True, True], 2.0**14),
        ([OVERFLOW, *[FINE] * ALMOST], [True, *[False] * ALMOST], 2.0**15),
        ([OVERFLOW, *[FINE] * ALMOST, FINE], [True, *[False] * ALMOST, False], 2.0**16),
        ([*[FINE] * ALMOST, OVERFLOW, FINE], [*[False] * ALMOST, True, False], 2.0**15),
    ],
    ids=["overflows", "almost", "many-good-steps", "counted-anew"],
)
def test_an_overflow_halves_the_scale_and_many_good_steps_after_it_double_it(norms, seen, value):
    scale = LossScale(is_needed=True, power=16)
    assert [scale.overflowed(norm) for norm in norms] == seen
    assert scale.value == value


def test_without_fp16_nothing_is_scaled_and_no_norm_is_waited_for():
    scale = LossScale(is_needed=False, power=16)
    assert not scale.overflowed(OVERFLOW)
    assert scale.value == 1.0


def test_the_norm_of_nothing_is_zero_and_clipping_never_enlarges():
    assert square_sum([], torch.device("cpu")) == 0
    assert square_sum([torch.tensor([3.0]), torch.tensor([[4.0]])], torch.device("cpu")) == pytest.approx(25.0)
    assert clip_factor(torch.tensor(0.5), 1.0) == 1.0
    assert clip_factor(torch.tensor(4.0), 1.0) == pytest.approx(0.25)


def test_weights_are_copied_piece_by_piece_whatever_their_shape(monkeypatch):
    monkeypatch.setattr(update, "CHUNK_ELEMENTS", 3)
    sources = [torch.arange(7.0), torch.arange(8.0).view(4, 2), torch.empty(0)]
    targets = [torch.zeros_like(source, dtype=torch.bfloat16) for source in sources]
    update._copy(targets, sources)
    assert all(torch.equal(target.float(), source) for target, source in zip(targets, sources, strict=True))


def records(*norms: float | None) -> list[StepRecord]:
    times = {"time": "", "step_time_s": 1.0, "fastest_rank_step_time_s": 1.0, "loss": 1.0, "samples": 1}
    warmup = StepRecord(step=1, phase=StepPhase.WARMUP, grad_norm=None, **times)
    return [warmup, *(StepRecord(step=2, phase=StepPhase.MEASURED, grad_norm=norm, **times) for norm in norms)]


def test_some_steps_may_be_passed_over_in_fp16_but_not_many():
    assert skipped_steps_error(records(*[1.0] * 9, None)) is None
    assert "overflowed in 2 of 10 measured steps" in (skipped_steps_error(records(*[1.0] * 8, None, None)) or "")


@pytest.mark.parametrize(
    ("seen", "told"), [([0.5, 1.0], 0.75), ([math.nan, 1.0], 1.0), ([math.nan, math.nan], None)], ids=str
)
def test_a_steps_utilisation_is_the_mean_of_the_gpus_that_were_sampled(seen, told):
    views = [RankStep(0.1, 1.0, 2.0, 1.0, 4, 1.0, 1.0, 1.0, gpu_utilization=value) for value in seen]
    record = step_record(make_spec(Layout(data_parallel=2)), 1, StepPhase.WARMUP, views)
    assert record.gpu_utilization == told
