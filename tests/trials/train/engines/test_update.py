"""Flat buffers, fp16's loss scale, the norm, and a step's record. For several ranks see the parity tests."""

from __future__ import annotations

import math
import weakref
from itertools import pairwise

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import MODEL, make_spec
from trials.measurement.step_log import StepPhase, StepRecord
from trials.train.engines import flat_buffers
from trials.train.engines.flat_buffers import FlatSharding, make_buckets
from trials.train.engines.gradients import clip_factor, square_sum
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.sharding import ParamTraits
from trials.train.engines.update import LossScale, Update
from trials.train.measurement.loop import skipped_steps_error, step_record
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.gather import RankStep
from trials.train.parallel.process_groups import World
from trials.train.parallel.tensor_parallel import TensorParallelRanks

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


CPU = torch.device("cpu")
ALONE = World(Layout(), {"tp": 0, "dp": 0, "pp": 0}, None, None, None, None)


def make_chunk() -> ModelChunk:
    return ModelChunk(MODEL, ChunkPlan.of(MODEL, 0, 1), TensorParallelRanks(), WeightSource(1, CPU), ChunkExecution())


def flat(chunk: ModelChunk) -> FlatSharding:
    """Its weights in bf16, on one rank."""
    return FlatSharding((chunk,), ALONE, torch.bfloat16, shares_update=False, overlaps=False, bucket_mib=None)


@pytest.mark.parametrize(
    ("sizes", "most", "is_tied", "found"),
    [
        ((5, 4, 9, 1), 9, False, [[5, 4], [9], [1]]),
        ((2, 50, 2), 10, False, [[2], [50], [2]]),
        ((2, 3, 4), None, False, [[2, 3, 4]]),
        ((2, 3, 4), None, True, [[2, 3], [4]]),
    ],
    ids=["limit", "larger", "no-limit", "tied"],
)
def test_buckets_follow_one_another_within_their_size_and_a_tied_parameter_has_its_own(sizes, most, is_tied, found):
    traits = [ParamTraits(True, False, is_tied and size == sizes[-1]) for size in sizes]
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    buckets = make_buckets(list(zip(parameters, traits, strict=True)), most=most, ranks=3)
    assert [[parameter.numel() for parameter, _ in bucket.members] for bucket in buckets] == found
    assert all(first.end == second.begin for first, second in pairwise(buckets))
    assert all((bucket.end - bucket.begin) % 3 == 0 for bucket in buckets), "equal shares of the ranks"


def test_sixteen_bit_weights_have_exact_masters_and_gradients_that_add_up_in_fp32():
    chunk, exact = make_chunk(), [values.detach().clone() for values in make_chunk().parameters()]
    sharding = flat(chunk)
    next(chunk.parameters()).sum().backward()  # of the step before
    assert {p.dtype for p in chunk.parameters()} == {torch.bfloat16}
    total = sum(values.sum() for values in exact)
    assert torch.stack([master.sum() for master in sharding.masters]).sum() == pytest.approx(float(total), rel=1e-5)
    sharding.begin_step(micro_batches=6)
    assert not any(gradient.any() for gradient in sharding.gradients())
    parameter = next(chunk.parameters())
    for _ in range(3):
        # Added up in bf16, 256 and a half and a half would stay 256.
        (parameter * torch.full_like(parameter, 256.0)).sum().backward()
        (parameter * torch.full_like(parameter, 0.5)).sum().backward()
    largest = max(float(gradient.max()) for gradient in sharding.gradients())
    assert largest == 3 * 256.5
    assert parameter.grad is None


def test_with_the_optimizer_offloaded_no_masters_stay_on_the_device():
    sharding = flat(make_chunk())
    on_device = [weakref.ref(master) for master in sharding.masters]
    update = Update(sharding, ALONE, OptimizerConfig(), uses_fp16=False, is_offloaded=True)
    assert [master() for master in on_device] == [None]
    sharding.begin_step(micro_batches=1)
    before = sharding.weights[0].clone()
    sharding.gradients()[0].fill_(1.0)
    update.step()
    assert not torch.equal(sharding.weights[0], before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zero_1_takes_no_more_memory_for_gradients_than_zero_0(monkeypatch, dtype):
    monkeypatch.setattr(flat_buffers, "group_size", lambda group: 2)
    pair = World(Layout(data_parallel=2), {"tp": 0, "dp": 1, "pp": 0}, None, object(), None, None)
    chunk = make_chunk()
    sharding = FlatSharding((chunk,), pair, dtype, shares_update=True, overlaps=False, bucket_mib=1)
    elements = sum(parameter.numel() for parameter in chunk.parameters())
    buffers = {gradient.untyped_storage().data_ptr(): gradient for gradient in sharding.gradients()}
    assert [buffer.untyped_storage().nbytes() for buffer in buffers.values()] == [4 * elements]
    assert sum(gradient.numel() for gradient in sharding.gradients()) == elements // 2
    are_masters = [m is w for m, w in zip(sharding.masters, sharding.weights, strict=True)]
    assert set(are_masters) == {dtype == torch.float32}, "fp32 weights are their own masters"
