"""ZeRO 2 and 3 by torch's FSDP2 (torch.distributed.fsdp.fully_shard), one group of weights per block.

Stage 3 reshards the weights after each forward pass, stage 2 keeps them until the backward pass is over. Gradients are
reduce-scattered after every micro-batch; in a pipeline torch accumulates them and scatters once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trials.train.engines.engine import TrainingConfig
from trials.train.engines.gradients import gradient_of
from trials.train.engines.sharded_weights import elements
from trials.train.engines.sharding import ParamTraits, Sharding, ShardSlice, named_param_traits, round_frozen
from trials.train.model.chunk import ModelChunk
from trials.train.parallel.collectives import Reduction, reduce_in_place
from trials.train.parallel.process_groups import World
from trials.train.parallel.tensor_parallel import has_partial_gradient, is_sharded


class FsdpSharding(Sharding):
    """FSDP2 weights. Builds the chunks itself, so that each block is sharded before the next one takes memory.

    FSDP replaces our parameters by its own, without their marks, so their traits are recorded before.
    """

    loss_divisor = 1  # FSDP averages over the data-parallel ranks
    shares_gradients = True

    def __init__(self, training: TrainingConfig, world: World, indices: Sequence[int]):
        assert world.data is not None
        self._ends = world.ends
        self._held = 0
        self._shard = partial(
            fully_shard,
            mesh=DeviceMesh.from_group(world.data, training.device.type),
            mp_policy=MixedPrecisionPolicy(param_dtype=training.dtype, reduce_dtype=torch.float32),
            reshard_after_forward=training.layout.zero_stage == 3,
        )
        self._known: list[tuple[nn.Parameter, ParamTraits]] = []
        self.chunks = tuple(self._build(training, world, index) for index in indices)
        with torch.no_grad():
            self.weights = self.masters = [_local_shard(parameter) for parameter, _ in self._known]

    def _build(self, training: TrainingConfig, world: World, index: int) -> ModelChunk:
        in_blocks: list[ParamTraits] = []

        def shard(block: nn.Module) -> None:
            in_blocks.extend(_traits_in_block(block, world))
            round_frozen(block, training.dtype)
            self._shard(block)

        model, plan, ranks, weights, execution = training.chunk_arguments(index, world)
        chunk = ModelChunk(model, plan, ranks, weights, execution, on_part=shard)
        outside = dict(named_param_traits(chunk, lambda name: not name.startswith("blocks.")))
        round_frozen(chunk, training.dtype)
        self._shard(chunk)
        left = iter(in_blocks)
        traits = [outside[name] if name in outside else next(left) for name, _ in chunk.named_parameters()]
        self._known += (pair for pair in zip(chunk.parameters(), traits, strict=True) if pair[0].requires_grad)
        self._count_after_forward(chunk, traits)
        return chunk

    def _count_after_forward(self, chunk: ModelChunk, traits: Sequence[ParamTraits]) -> None:
        """Count the elements on this rank between the forward and the backward pass once, after the first forward
        pass."""

        def count(*_: Any) -> None:
            first_only.remove()
            present = zip(chunk.parameters(), traits, strict=True)
            self._held += sum(elements(parameter) for parameter, known in present if known.is_counted)

        first_only = chunk.register_forward_hook(count)

    def begin_step(self, micro_batches: int) -> None:
        for parameter, _ in self._known:
            parameter.grad = None

    def finish_backward(self) -> None:
        for piece in self.slices():
            if piece.traits.is_tied:
                reduce_in_place(Reduction.TIED_GRADIENT, piece.gradient, self._ends)

    def gradients(self) -> Sequence[torch.Tensor]:
        return [_local_gradient(parameter) for parameter, _ in self._known]

    def slices(self) -> Sequence[ShardSlice]:
        return [ShardSlice(_local_gradient(parameter), traits) for parameter, traits in self._known]

    def publish(self) -> None:
        """Nothing to do: FSDP gathers weights when it needs them."""

    def held_parameters(self) -> int:
        return self._held

    @torch.no_grad()
    def updated_parameters(self) -> int:
        return sum(_local_shard(parameter).numel() for parameter, traits in self._known if traits.is_counted)


def _traits_in_block(block: nn.Module, world: World) -> Iterator[ParamTraits]:
    for parameter in block.parameters():
        yield ParamTraits(
            world.coordinates["tp"] == 0 or is_sharded(parameter), has_partial_gradient(parameter), is_tied=False
        )


def _local_shard(parameter: nn.Parameter) -> torch.Tensor:
    """This rank's shard, as stored."""
    return cast(DTensor, parameter).to_local()


def _local_gradient(parameter: nn.Parameter) -> torch.Tensor:
    return cast(DTensor, gradient_of(parameter)).to_local()
