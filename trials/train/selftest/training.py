"""Training of a case for a few clipped steps, by its layout and by the plain GPT: same initial weights, same global
batches."""

from __future__ import annotations

import time

import torch

from trials.diagnostics.selftest import (
    SEED,
    Case,
    RankTraining,
    ReferenceTraining,
)
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.train.data import SyntheticData
from trials.train.engines.engine import TrainingConfig
from trials.train.engines.factory import build_engine
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.torch_engine import TorchEngine
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.device import Device, select_attention_kernel
from trials.train.parallel.process_groups import join_world
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.train.selftest.reference import MicroBatch, PlainGpt, plain_weights, train_plain
from trials.trial import TrialSpec

STEPS = 10

# With AdamW's default epsilon of 1e-8 a gradient that is only rounding error moves its weight as far as a real one, and
# two orders of summation drift apart within ten steps. With this one the plain GPT in float and in double stay within
# 2e-6 of each other; at three times the learning rate they are 1e-5 apart.
_EXACT = OptimizerConfig(learning_rate=1e-3, epsilon=1e-4, max_grad_norm=0.5)
_ROUNDED = OptimizerConfig(learning_rate=4e-3, epsilon=1e-2, max_grad_norm=0.25, loss_scale_power=12)
"""Settings in half precision, where weights lose what is below their last bit, above all the gains of the norms, whose
next value after 1 is 1.008. An epsilon far above the gradients makes steps proportional to them: gains hardly move, the
loss falls. With fp16's usual first scale of 2**16 one of ten steps may overflow, whose norm is infinite and which
updates nothing, as in any training while the scale settles. From 2**12 none does, so that the training itself is
compared."""

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def hang_in_third_step() -> None:
    """Hang as on a frozen node, so that the others wait for this rank in a collective."""
    original, steps = TorchEngine.train_step, []

    def train_step(self, batch):
        steps.append(batch)
        while len(steps) == 3:
            time.sleep(3600)
        return original(self, batch)

    TorchEngine.train_step = train_step  # type: ignore[method-assign]


def optimizer_config(precision: str) -> OptimizerConfig:
    """Settings under which ten steps train and rounding errors stay small."""
    return _EXACT if precision == "fp32" else _ROUNDED


def train_layout(
    spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, device: Device, steps: int
) -> RankTraining:
    """This rank's part of some steps by the layout's engine. Every rank of the world calls it."""
    select_attention_kernel(spec.layout.attention_kernel)
    world = join_world(spec, folder, env, device)
    weights = WeightSource(spec.seed, device.torch_device)
    engine = build_engine(
        TrainingConfig(spec.model, spec.layout, weights, optimizer_config(spec.layout.precision)), world
    )
    data = SyntheticData(spec.model, spec.layout, world.coordinates["dp"], device.torch_device)
    results = [engine.train_step(data.batch(step)) for step in range(steps)]
    counts = engine.counts()
    return RankTraining(
        losses=tuple(None if result.loss is None else float(result.loss) for result in results),
        grad_norms=tuple(float(result.grad_norm) for result in results),
        parameters=counts.parameters,
        trainable_parameters=counts.trainable_parameters,
        micro_batches=counts.micro_batches,
    )


def train_reference(case: Case, device: Device) -> ReferenceTraining:
    """The same steps by the plain GPT on this device alone, under autocast where the case's precision is not fp32."""
    gpt = PlainGpt(case.model).to(device.torch_device)
    weights = WeightSource(SEED, device.torch_device)
    whole = ModelChunk(case.model, ChunkPlan.of(case.model, 0, 1), TensorParallelRanks(), weights, ChunkExecution())
    gpt.load_state_dict(plain_weights(whole.state_dict(), case.model))
    settings = optimizer_config(case.layout.precision)
    losses, norms = train_plain(
        gpt,
        [_micro_batches(case, device, step) for step in range(STEPS)],
        settings.learning_rate,
        settings.epsilon,
        settings.max_grad_norm,
        _AUTOCAST[case.layout.precision],
    )
    return ReferenceTraining(tuple(losses), tuple(norms))


def _micro_batches(case: Case, device: Device, step: int) -> list[MicroBatch]:
    """The global batch of a step, split as for a single data-parallel rank."""
    data, size = SyntheticData(case.model, case.layout, 0, device.torch_device), case.layout.micro_batch_size
    first = step * case.layout.global_batch_size
    batch = data.samples(torch.arange(first, first + case.layout.global_batch_size))
    documents = batch.documents or [(case.model.seq_length,)] * len(batch.ids)
    lengths = [documents[first : first + size] for first in range(0, len(documents), size)]
    return list(zip(batch.ids.split(size), batch.targets.split(size), lengths, strict=True))
