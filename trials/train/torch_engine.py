"""The torch-native engine: torch.distributed.pipelining for stages, our own reductions for everything else."""

from __future__ import annotations

from typing import Any

import torch

from trials.train.data import Batch
from trials.train.engine import Engine, EngineCounts, GroupSizes, StepResult, Training, counts_of
from trials.train.gradients import GradientBuffer, sum_tied_gradients
from trials.train.model import Stage
from trials.train.optimizer import build_adamw
from trials.train.world import World, group_size


class TorchEngine(Engine):
    def __init__(self, training: Training, world: World):
        self._training = training
        self._world = world
        self.stage = Stage(*training.stage_arguments(world.at.stage, world))
        self.stages = (self.stage,)
        self._gradients = GradientBuffer(self.stage)
        self._optimizer = build_adamw(self.stage.parameters(), training.optimisation, training.device)
        self._schedule = None if world.stages is None else _build_schedule(self.stage, training, world)

    def train_step(self, batch: Batch) -> StepResult:
        self._gradients.zero()
        loss = self._accumulate(batch) if self._schedule is None else self._run_pipeline(self._schedule, batch)
        sum_tied_gradients(self.stage, self._world)
        self._gradients.average_over_data_ranks(self._world)
        grad_norm = self._gradients.clip(self._training.optimisation.max_grad_norm, self._world)
        self._optimizer.step()
        return StepResult(loss, grad_norm)

    def counts(self) -> EngineCounts:
        return counts_of(self.stages)

    def group_sizes(self) -> GroupSizes:
        world = self._world
        return GroupSizes(group_size(world.tensor), group_size(world.stages), group_size(world.data))

    def _accumulate(self, batch: Batch) -> torch.Tensor:
        """Micro-batches one after another on the only stage; returns their mean loss."""
        accumulation = self._training.layout.grad_accum_steps
        total = torch.zeros((), device=self._training.device)
        for ids, targets in zip(batch.ids.chunk(accumulation), batch.targets.chunk(accumulation), strict=True):
            loss = self.stage.loss(self.stage(ids), targets) / accumulation
            loss.backward()
            total += loss.detach()
        return total

    def _run_pipeline(self, schedule: Any, batch: Batch) -> torch.Tensor | None:
        """The schedule cuts the batch into micro-batches and averages their gradients itself."""
        inputs = (batch.ids,) if self.stage.embedding is not None else ()
        if self.stage.head is None:
            schedule.step(*inputs)
            return None
        losses: list[torch.Tensor] = []
        schedule.step(*inputs, target=batch.targets, losses=losses)
        return torch.stack([loss.detach() for loss in losses]).mean()


def _build_schedule(stage: Stage, training: Training, world: World) -> Any:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    inputs, outputs = _stage_shapes(stage, training)
    pipeline_stage = PipelineStage(
        stage,
        world.at.stage,
        training.layout.pipeline_parallel,
        training.device,
        # With both given torch need not run the stage to learn them, which would count as a micro-batch.
        input_args=inputs,
        output_args=outputs,
        group=world.stages,
    )
    schedule = ScheduleGPipe if training.layout.pipeline_schedule == "gpipe" else Schedule1F1B
    return schedule(pipeline_stage, training.layout.grad_accum_steps, loss_fn=stage.loss)


def _stage_shapes(stage: Stage, training: Training) -> tuple[torch.Tensor, torch.Tensor]:
    """What one micro-batch looks like before and after this stage, as tensors without memory."""
    model, sequences = training.model, training.layout.micro_batch_size
    ids = torch.empty((sequences, model.seq_length), dtype=torch.long, device="meta")
    hidden = torch.empty((*ids.shape, model.hidden_size), device="meta", requires_grad=True)
    # Between stages the residual stream stays in fp32; the head's product is the autocast's.
    logits_type = torch.bfloat16 if stage.running.autocast_bf16 else torch.float32
    shape = (*ids.shape, model.vocab_size // stage.ranks.size)
    logits = torch.empty(shape, dtype=logits_type, device="meta", requires_grad=True)
    return (
        ids if stage.embedding is not None else hidden,
        hidden if stage.head is None else logits,
    )
