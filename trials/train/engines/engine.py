"""Engine: runs one optimizer step of a layout. One interface over all engines of Parlay's trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.routing import ROUTERS_CHOICE, Routing
from trials.train.data import Batch
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.model.chunk import ChunkExecution, ChunkPlan
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.process_groups import World

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Torch type by precision."""


@dataclass(frozen=True)
class TrainingConfig:
    """Configuration of a training: model, layout, initial weights, optimizer settings and the routing of experts."""

    model: ModelShape
    layout: Layout
    weights: WeightSource
    optimizer: OptimizerConfig
    routing: Routing = ROUTERS_CHOICE

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights in computation, and of activations."""
        return DTYPES[self.layout.precision]

    @property
    def num_chunks(self) -> int:
        """Model chunks of the whole pipeline."""
        return self.layout.pipeline_parallel * self.layout.virtual_pipeline_stages

    def chunk_arguments(self, index: int, world: World) -> tuple:
        """Arguments of `ModelChunk` for the chunk of this index in the whole pipeline."""
        plan = ChunkPlan.of(self.model, index, self.num_chunks)
        layout = self.layout
        execution = ChunkExecution(layout.activation_checkpointing, layout.torch_compile, self.routing)
        return self.model, plan, world.tensor_ranks, self.weights, execution


@dataclass(frozen=True)
class StepResult:
    """`loss`: mean over at least this data-parallel rank's samples, None without a head; `grad_norm`: before
    clipping."""

    loss: torch.Tensor | None
    grad_norm: torch.Tensor


@dataclass(frozen=True)
class GroupSizes:
    """Sizes of the process groups that really train, by axis."""

    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    context_parallel: int = 1


@dataclass(frozen=True)
class EngineCounts:
    """Counts of this rank's parameters, micro-batches and samples since it was built: the proof that the layout took
    effect.

    `parameters`: the model's parameters whose weights this rank holds and counts; all tensor-parallel ranks and stages
    together hold the model once, with ZeRO 3 all data-parallel ranks together too. `optimizer_parameters`: those whose
    optimizer state it holds; from ZeRO 1 on the data-parallel ranks shard them. `trainable_parameters`: those of its
    chunks that require gradients, whole where others share them. `micro_batches`: through each model chunk.
    """

    parameters: int
    optimizer_parameters: int
    trainable_parameters: int
    micro_batches: float
    samples: int


class TrainedChunk(Protocol):
    """A model chunk as measurement sees it: a module that counts the micro-batches and samples passed through it."""

    micro_batches: int
    samples: int

    def register_forward_pre_hook(self, hook: Callable[..., None]) -> object: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Engine(ABC):
    """Trains this rank's model chunks (`chunks`, in the model's order; one without interleaving).

    Every rank calls the same methods in the same order, from one thread. Errors of torch and of the device propagate
    unchanged.
    """

    chunks: Sequence[TrainedChunk]

    @abstractmethod
    def train_step(self, batch: Batch) -> StepResult:
        """Forward, backward, all reductions, clipping and the update for one global batch; may return before the device
        is done.

        The number of micro-batches is the batch's number of sequences over the layout's micro-batch size.
        """

    def counts(self) -> EngineCounts:
        """Counts from what was built and what ran, not from the layout."""
        micro_batches = sum(chunk.micro_batches for chunk in self.chunks) / len(self.chunks)
        trainable = sum(p.numel() for chunk in self.chunks for p in chunk.parameters() if p.requires_grad)
        return EngineCounts(*self.parameter_counts(), trainable, micro_batches, self.chunks[0].samples)

    @abstractmethod
    def parameter_counts(self) -> tuple[int, int]:
        """`parameters` and `optimizer_parameters` of the counts."""

    def expert_tokens(self) -> Mapping[int, torch.Tensor]:
        """Tokens that this rank has given to each expert since it was built, by layer: of every forward pass, also a
        recomputed one, and also where other ranks give the same tokens to theirs. Empty without experts."""
        return {}

    @abstractmethod
    def group_sizes(self) -> GroupSizes:
        """Sizes from the process groups that train, not from the layout."""
