"""Gradient norm over the whole model, and clipping by it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from trials.train.model.chunk import ModelChunk
from trials.train.parallel.collectives import Reduction, reduce_in_place
from trials.train.parallel.process_groups import World


def clip_gradients(chunk: ModelChunk, max_norm: float, world: World) -> torch.Tensor:
    """Scale all gradients of a chunk to a norm over the model of at most `max_norm`; returns the norm before.

    Every data-parallel rank holds all gradients of the chunk.
    """
    counted = [gradient_of(parameter) for parameter in chunk.counted_parameters()]
    norm = global_norm(square_sum(counted, counted[0].device), world)
    torch._foreach_mul_([gradient_of(parameter) for parameter in chunk.parameters()], clip_factor(norm, max_norm))
    return norm


def gradient_of(parameter: nn.Parameter) -> torch.Tensor:
    """The parameter's gradient; RuntimeError where it has none."""
    if parameter.grad is None:
        raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} got no gradient")
    return parameter.grad


def sum_partial(parts: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Sum gradients of which each tensor-parallel rank has a part, in place, in a single collective."""
    if group is None or not parts:
        return
    together = torch.cat([part.flatten() for part in parts])
    reduce_in_place(Reduction.PARTIAL_GRADIENT, together, group)
    for part, total in zip(parts, together.split([part.numel() for part in parts]), strict=True):
        part.copy_(total.view_as(part))


def square_sum(gradients: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Sum of all squares, a scalar on `device`; 0 for none."""
    if not gradients:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(list(gradients))).square().sum()


def global_norm(square: torch.Tensor, world: World, data_ranks_share: bool = False) -> torch.Tensor:
    """Norm over the whole model from each rank's sum of squares of the gradients that it counts.

    `data_ranks_share`: each data-parallel rank has only a part of the gradients.
    """
    reduce_in_place(Reduction.NORM_OVER_TENSOR_RANKS, square, world.tensor)
    reduce_in_place(Reduction.NORM_OVER_STAGES, square, world.stages)
    if data_ranks_share:
        reduce_in_place(Reduction.NORM_OVER_DATA_RANKS, square, world.data)
    return square.sqrt()


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Factor on the gradients, with the epsilon of torch's clip_grad_norm_."""
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
