"""Gradients of one rank: where they lie, what sums them over the world, their global norm and clipping."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trials.train.model import Stage
from trials.train.reductions import Reduction, reduce_in_place
from trials.train.world import World


class GradientBuffer:
    """All gradients of a stage side by side in one flat tensor, so that data ranks sum them in one collective.

    Each parameter's `grad` is a view of it, into which autograd accumulates. The parameters this rank answers for in
    the global norm come first.
    """

    def __init__(self, stage: Stage):
        counted = list(stage.counted_parameters())
        known = {id(parameter) for parameter in counted}
        others = [parameter for parameter in stage.parameters() if id(parameter) not in known]
        self._num_counted = sum(parameter.numel() for parameter in counted)
        self._flat = torch.zeros(sum(p.numel() for p in counted + others), device=next(stage.parameters()).device)
        self._give_views(counted + others)

    def zero(self) -> None:
        self._flat.zero_()

    def average_over_data_ranks(self, world: World) -> None:
        """Each data rank's gradient is the mean over its own samples; the step's is the mean over all."""
        reduce_in_place(Reduction.DATA_PARALLEL_GRADIENT, self._flat, world.data)
        if world.layout.data_parallel > 1:
            self._flat.div_(world.layout.data_parallel)

    def clip(self, max_norm: float, world: World) -> torch.Tensor:
        """Scale all gradients so that their norm over the whole model is at most this; returns it as it was."""
        norm = global_norm(self._flat[: self._num_counted].square().sum(), world)
        self._flat.mul_(clip_factor(norm, max_norm))
        return norm

    def _give_views(self, parameters: Iterable[nn.Parameter]) -> None:
        first = 0
        for parameter in parameters:
            end = first + parameter.numel()
            parameter.grad = self._flat[first:end].view_as(parameter)
            first = end


def sum_tied_gradients(stage: Stage, world: World) -> None:
    """First and last stage each have half of the token table's gradient; afterwards both have all of it."""
    if stage.tied_weight is not None:
        reduce_in_place(Reduction.TIED_GRADIENT, gradient_of(stage.tied_weight), world.ends)


def clip_gradients(stage: Stage, max_norm: float, world: World) -> torch.Tensor:
    """The same as `GradientBuffer.clip` for gradients that lie apart; returns the norm as it was."""
    squares = [gradient_of(parameter).square().sum() for parameter in stage.counted_parameters()]
    norm = global_norm(torch.stack(squares).sum(), world)
    factor = clip_factor(norm, max_norm)
    for parameter in stage.parameters():
        gradient_of(parameter).mul_(factor)
    return norm


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """RuntimeError when the step passed the parameter by."""
    if parameter.grad is None:
        raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} got no gradient")
    return parameter.grad


def global_norm(square: torch.Tensor, world: World) -> torch.Tensor:
    """The norm over the whole model from each rank's sum of squares of the parameters it answers for."""
    reduce_in_place(Reduction.NORM_OVER_TENSOR_RANKS, square, world.tensor)
    reduce_in_place(Reduction.NORM_OVER_STAGES, square, world.stages)
    return square.sqrt()


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """What gradients are multiplied by; torch's clip_grad_norm_ has the same epsilon."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
