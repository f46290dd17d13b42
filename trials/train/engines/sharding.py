"""Sharding: the weights and gradients that one rank holds, and the part of them that it updates, by ZeRO stage.

ZeRO (Rajbhandari et al., arXiv 1910.02054): stage 0 replicates everything on the data-parallel ranks; stage 1 shards
the optimizer's state, stage 2 the gradients too, stage 3 the weights as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trials.train.model.chunk import ModelChunk
from trials.train.parallel.tensor_parallel import has_partial_gradient


@dataclass(frozen=True)
class ParamTraits:
    """Properties of a parameter that training needs, recorded before an engine replaces the parameter.

    `is_counted`: this rank counts it; `has_partial_gradient`: each tensor-parallel rank has the gradient of its own
    positions or heads only; `is_tied`: first and last stage both hold it.
    """

    is_counted: bool
    has_partial_gradient: bool
    is_tied: bool


@dataclass(frozen=True)
class ShardSlice:
    """The part of one parameter's gradient that this rank updates: any shape, fp32."""

    gradient: torch.Tensor
    traits: ParamTraits


class Sharding(ABC):
    """The weights of a rank's model chunks. Every rank calls the same methods in the same order.

    `weights` are what this rank updates, in the type they are held in; `masters` the same in fp32, in the same order,
    and the same tensors where the weights are fp32 already; `Update` takes them over. `loss_divisor` is what a
    data-parallel rank divides its mean loss by, so that the gradients summed over the data-parallel ranks are the mean
    over all their samples. `shares_gradients`: each data-parallel rank has the sums of its own part only.
    """

    weights: Sequence[torch.Tensor]
    masters: Sequence[torch.Tensor]
    loss_divisor: int
    shares_gradients: bool

    @abstractmethod
    def begin_step(self, micro_batches: int) -> None:
        """Reset the gradients; `micro_batches` backward passes follow."""

    @abstractmethod
    def finish_backward(self) -> None:
        """Return when the gradients this rank updates are summed over the data-parallel ranks."""

    @abstractmethod
    def gradients(self) -> Sequence[torch.Tensor]:
        """Gradients in fp32, one for each of `weights`; valid from `finish_backward` to `begin_step`."""

    @abstractmethod
    def slices(self) -> Sequence[ShardSlice]:
        """The same gradients parameter by parameter, as views."""

    @abstractmethod
    def publish(self) -> None:
        """Distribute `weights` after their update to every rank that computes with them."""

    @abstractmethod
    def held_parameters(self) -> int:
        """Counted parameters whose weights are on this rank from a forward pass to its backward pass, after the first
        one."""

    @abstractmethod
    def updated_parameters(self) -> int:
        """Counted parameters that this rank updates."""


def named_param_traits(
    chunk: ModelChunk, is_wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, ParamTraits]]:
    """Traits of a chunk's parameters by name, each once. Only the wanted ones need their marks."""
    tied = chunk.tied_weight_name
    for name, parameter in chunk.named_parameters():
        if is_wanted(name):
            yield (
                name,
                ParamTraits(chunk.counts_parameter(name, parameter), has_partial_gradient(parameter), name == tied),
            )


def round_frozen(part: nn.Module, dtype: torch.dtype) -> None:
    """Keep weights that do not train, unless they are shards already, in the type of the computation alone."""
    for parameter in part.parameters():
        if not (parameter.requires_grad or isinstance(parameter, DTensor)) and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
