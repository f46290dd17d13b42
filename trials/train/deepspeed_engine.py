"""The DeepSpeed engine: PipelineModule for stages, the plain engine without, ZeRO 0 and 1; our own layers inside.

Written for DeepSpeed 0.19.8, whose defaults give wrong numbers or hang in several places; each guard says which.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

from trials.train.data import Batch
from trials.train.engine import Engine, EngineCounts, GroupSizes, StepResult, Training, counts_of
from trials.train.gradients import clip_gradients
from trials.train.layers import vocab_parallel_cross_entropy
from trials.train.model import Stage
from trials.train.optimizer import build_adamw
from trials.train.world import World, group_size
from trials.trainers.deepspeed_config import ds_config


def build_deepspeed_engine(training: Training, world: World) -> Engine:
    _join_deepspeed(training)
    topology = PipeModelDataParallelTopology(
        num_pp=training.layout.pipeline_parallel,
        num_mp=training.layout.tensor_parallel,
        num_dp=training.layout.data_parallel,
    )
    if world.stages is None:
        return _PlainEngine(training, world, topology)
    return _PipelineEngine(training, world, topology)


class _DeepSpeedEngine(Engine):
    """What both kinds share: the wrapped engine, and the gradient norm, which ZeRO 0 does not tell."""

    def __init__(self, training: Training, world: World, module: torch.nn.Module, mpu: Any):
        self._training = training
        self._world = world
        self.stage = local_stage(module)
        self.stages = (self.stage,)
        _mark_parameters(self.stage)
        optimizer = build_adamw(self.stage.parameters(), training.optimisation, training.device)
        self._clipped_norm: torch.Tensor | None = None
        if training.layout.zero_stage == 0:
            optimizer.register_step_pre_hook(self._clip)
        with _nothing_compiled():
            self._engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=_configuration(training), mpu=mpu, dist_init_required=False
            )

    def counts(self) -> EngineCounts:
        return counts_of(self.stages)

    def group_sizes(self) -> GroupSizes:
        grid = self._engine.mpu
        return GroupSizes(
            group_size(self._world.tensor),
            group_size(grid.get_pipe_parallel_group()),
            group_size(grid.get_data_parallel_group()),
        )

    def _grad_norm(self) -> torch.Tensor:
        if self._clipped_norm is not None:
            return self._clipped_norm
        return torch.as_tensor(self._engine.get_global_grad_norm())

    def _clip(self, *_: Any) -> None:
        """Just before ZeRO 0's update. DeepSpeed's own clipping counts only the first stage, and tied weights twice."""
        max_norm = self._training.optimisation.max_grad_norm
        self._clipped_norm = clip_gradients(self.stage, max_norm, self._world)


class _PlainEngine(_DeepSpeedEngine):
    """One stage: DeepSpeed's engine with our tensor parallelism told to it by the grid."""

    def __init__(self, training: Training, world: World, topology: PipeModelDataParallelTopology):
        stage = Stage(*training.stage_arguments(0, world))
        super().__init__(training, world, stage, PipelineParallelGrid(topology=topology))

    def train_step(self, batch: Batch) -> StepResult:
        total = torch.zeros((), device=self._training.device)
        for ids, targets in _micro_batches(batch, self._training):
            loss = self.stage.loss(self._engine(ids), targets)
            self._engine.backward(loss)
            self._engine.step()
            total += loss.detach()
        return StepResult(total / self._training.layout.grad_accum_steps, self._grad_norm())


class _PipelineEngine(_DeepSpeedEngine):
    """Several stages: DeepSpeed's 1F1B over a PipelineModule with one layer a stage, so that stages may be uneven."""

    def __init__(self, training: Training, world: World, topology: PipeModelDataParallelTopology):
        super().__init__(training, world, _StagePipeline(training, world, topology), mpu=None)

    def train_step(self, batch: Batch) -> StepResult:
        loss = self._engine.train_batch(data_iter=_micro_batches(batch, self._training))
        return StepResult(loss.detach(), self._grad_norm())


class _StagePipeline(PipelineModule):
    """Builds only the local stage, and tells DeepSpeed of the token table that first and last stage share."""

    def __init__(self, training: Training, world: World, topology: PipeModelDataParallelTopology):
        self._ends = world.ends
        stages = range(training.layout.pipeline_parallel)
        super().__init__(
            layers=[LayerSpec(Stage, *training.stage_arguments(stage, world)) for stage in stages],
            topology=topology,
            loss_fn=partial(vocab_parallel_cross_entropy, ranks=world.tensor_ranks),
            partition_method="uniform",
        )

    def get_tied_weights_and_groups(self) -> list[tuple[torch.nn.Parameter, dist.ProcessGroup]]:
        """Whose gradients DeepSpeed sums after backward."""
        tied = local_stage(self).tied_weight
        return [] if tied is None or self._ends is None else [(tied, self._ends)]


def local_stage(module: torch.nn.Module) -> Stage:
    return next(part for part in module.modules() if isinstance(part, Stage))


def _join_deepspeed(training: Training) -> None:
    if training.device.type == "cpu":
        # Else it compiles a C++ operator at every first start, and hangs for ever on the lock of a killed build.
        # The submodule `deepspeed.comm.torch` is hidden behind a name of the real torch, hence sys.modules.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False)


@contextmanager
def _nothing_compiled() -> Iterator[None]:
    """ZeRO imports an optimizer we do not use whose functions are decorated with torch.compile: importing the compiler
    for it takes each rank a second or two."""
    compile_function = torch.compile
    torch.compile = lambda function=None, **_: function or (lambda decorated: decorated)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = compile_function


def _mark_parameters(stage: Stage) -> None:
    """Tell ZeRO's norm which parameters this rank answers for: by itself it misses all shards but the first tensor
    rank's, and counts the token table of a tied pipeline twice."""
    counted = {id(parameter) for parameter in stage.counted_parameters()}
    for parameter in stage.parameters():
        parameter.model_parallel = id(parameter) in counted  # type: ignore[attr-defined]
        parameter.ds_pipe_replicated = id(parameter) not in counted  # type: ignore[attr-defined]


def _configuration(training: Training) -> dict[str, Any]:
    """What the recipe exports, but for what is ours: the clipping of ZeRO 0 (`_clip`) and the recomputation, which a
    stage does by itself. DeepSpeed's own reports are off."""
    layout = replace(training.layout, activation_checkpointing="none")
    max_grad_norm = training.optimisation.max_grad_norm if layout.zero_stage else 0.0
    return ds_config(layout, layout.global_batch_size, max_grad_norm) | {"steps_per_print": 10**9}


def _micro_batches(batch: Batch, training: Training) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    count = training.layout.grad_accum_steps
    return zip(batch.ids.chunk(count), batch.targets.chunk(count), strict=True)
