"""Engine: what runs one optimizer step of a layout. One interface over torch-native and DeepSpeed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.train.data import Batch
from trials.train.model import Running, Stage, StagePlan
from trials.train.optimizer import Optimisation
from trials.train.weights import WeightSource
from trials.train.world import World


@dataclass(frozen=True)
class Training:
    """What is trained: the model, how it is laid out, from which weights and with which settings."""

    model: ModelShape
    layout: Layout
    weights: WeightSource
    optimisation: Optimisation

    @property
    def device(self) -> torch.device:
        return self.weights.device

    def stage_arguments(self, stage: int, world: World) -> tuple:
        """Arguments of `Stage` for this stage of the pipeline."""
        plan = StagePlan.of(self.model, stage, self.layout.pipeline_parallel)
        running = Running(
            recompute_blocks=self.layout.activation_checkpointing == "full",
            autocast_bf16=self.layout.precision == "bf16",
        )
        return self.model, plan, world.tensor_ranks, self.weights, running


@dataclass(frozen=True)
class StepResult:
    """`loss`: mean over this data rank's samples at least, None without a head; `grad_norm`: before clipping."""

    loss: torch.Tensor | None
    grad_norm: torch.Tensor


@dataclass(frozen=True)
class GroupSizes:
    """How many ranks really share each axis with this one."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int


class Engine(ABC):
    """Trains the local stage. Every rank calls the same methods in the same order, from one thread.

    Errors of torch and of the device pass through as they are.
    """

    stage: Stage

    @abstractmethod
    def train_step(self, batch: Batch) -> StepResult:
        """Forward, backward, all reductions, clipping and the update for one global batch; may return before it ran."""

    @abstractmethod
    def group_sizes(self) -> GroupSizes:
        """Asked from the process groups that train, not from the layout."""


def build_engine(training: Training, world: World) -> Engine:
    """The layout's engine, imported only now: a trial pays for one."""
    if training.layout.engine == "deepspeed":
        from trials.train.deepspeed_engine import build_deepspeed_engine

        return build_deepspeed_engine(training, world)
    from trials.train.torch_engine import TorchEngine

    return TorchEngine(training, world)
