"""Where the weights and gradients of one rank lie, and which part of them it updates: what a ZeRO stage decides.

ZeRO (Rajbhandari et al., arXiv 1910.02054): stage 0 gives every data rank everything; stage 1 shares the optimizer's
state, stage 2 the gradients too, stage 3 the weights as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from trials.train.model.chunk import Stage
from trials.train.parallel.tensor_parallel import sees_part_of_sequence


@dataclass(frozen=True)
class ParamTraits:
    """What has to be known of a parameter to train it, taken down before an engine puts another in its place.

    `is_counted`: this rank answers for it; `sees_part_of_sequence`: each tensor rank has the gradient of its own
    positions only; `is_tied`: first and last stage both hold it.
    """

    is_counted: bool
    sees_part_of_sequence: bool
    is_tied: bool


@dataclass(frozen=True)
class ShardSlice:
    """The gradient of one parameter as far as this rank updates it: any shape, fp32."""

    gradient: torch.Tensor
    traits: ParamTraits


class Sharding(ABC):
    """The weights of a rank's model chunks. Every rank calls the same methods in the same order.

    `weights` are what this rank updates, in the type they are held in; `masters` the same in fp32, in the same order,
    and the same tensors where the weights are fp32 already; `Update` takes them over. `loss_divisor` is what a data
    rank divides its mean loss by, so that the gradients summed over the data ranks are the mean over all their samples.
    `shares_gradients`: each data rank has the sums of its own part only.
    """

    weights: Sequence[torch.Tensor]
    masters: Sequence[torch.Tensor]
    loss_divisor: int
    shares_gradients: bool

    @abstractmethod
    def begin_step(self, micro_batches: int) -> None:
        """Forget the last step's gradients; so many backward passes follow."""

    @abstractmethod
    def finish_backward(self) -> None:
        """Returns when the gradients this rank updates are sums over the data ranks."""

    @abstractmethod
    def gradients(self) -> Sequence[torch.Tensor]:
        """In fp32, one for each of `weights`; valid from `finish_backward` to `begin_step`."""

    @abstractmethod
    def slices(self) -> Sequence[ShardSlice]:
        """The same gradients parameter by parameter, as views."""

    @abstractmethod
    def publish(self) -> None:
        """After `weights` have changed: every rank that computes with them has them."""

    @abstractmethod
    def held_parameters(self) -> int:
        """Counted parameters whose weights lie on this rank from a forward pass to its backward pass, once there was
        one."""

    @abstractmethod
    def updated_parameters(self) -> int:
        """Counted parameters that this rank updates."""


def named_param_traits(
    stage: Stage, is_wanted: Callable[[str], bool] = lambda name: True
) -> Iterator[tuple[str, ParamTraits]]:
    """The traits of a chunk's parameters by name, each once. Only those that are wanted need have their marks."""
    tied = stage.tied_weight_name
    for name, parameter in stage.named_parameters():
        if is_wanted(name):
            yield (
                name,
                ParamTraits(stage.counts_parameter(name, parameter), sees_part_of_sequence(parameter), name == tied),
            )
