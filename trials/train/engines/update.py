"""Optimizer step: gradients summed over tensor-parallel ranks where they saw parts, global norm, clipping, AdamW.

Weights of 16 bits are updated through fp32 masters, as in Micikevicius et al. (arXiv 1710.03740); with fp16 the loss is
scaled so that small gradients do not vanish. With an offloaded optimizer masters and moments are in host memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trials.train.engines.gradients import clip_factor, global_norm, square_sum, sum_partial
from trials.train.engines.optimizer import OptimizerConfig, build_adamw
from trials.train.engines.sharding import Sharding
from trials.train.parallel.process_groups import World

CHUNK_ELEMENTS = 2**24
"""64 MiB in fp32: large enough for a bus's full speed."""


class LossScale:
    """fp16's dynamic loss scale, 2**`power` at first: halved when gradients overflow, doubled after many steps without.
    1 where not needed."""

    GROWS_AFTER_STEPS = 1000

    def __init__(self, is_needed: bool, power: int):
        self.value = 2.0**power if is_needed else 1.0
        self._is_needed = is_needed
        self._good_steps = 0

    def overflowed(self, norm: torch.Tensor) -> bool:
        """True if the gradients of this step, whose norm is given, overflowed; every rank sees the same norm."""
        if not self._is_needed:
            return False
        overflowed = not bool(torch.isfinite(norm))
        self._good_steps = 0 if overflowed else self._good_steps + 1
        if overflowed:
            self.value /= 2
        elif self._good_steps % self.GROWS_AFTER_STEPS == 0:
            self.value *= 2
        return overflowed


class Update:
    """Updates the weights of a sharding from its gradients. Collective over the ranks of a replica."""

    def __init__(
        self, sharding: Sharding, world: World, settings: OptimizerConfig, uses_fp16: bool, is_offloaded: bool
    ):
        self.loss_scale = LossScale(uses_fp16, settings.loss_scale_power)
        self._sharding = sharding
        self._world = world
        self._max_grad_norm = settings.max_grad_norm
        self._shares_gradients = sharding.shares_gradients
        self._masters = [_on_host(m) for m in sharding.masters] if is_offloaded else sharding.masters
        sharding.masters = ()  # frees the masters on the device once they are on the host
        self._host_gradients = [torch.zeros_like(m, pin_memory=m.is_pinned()) for m in self._masters if is_offloaded]
        self._parameters = [torch.nn.Parameter(master) for master in self._masters]
        self._optimizer = build_adamw(self._parameters, settings)

    def step(self) -> torch.Tensor:
        """Update the weights after the backward passes; returns the gradients' norm over the whole model, before
        clipping.

        The norm is infinite when fp16 overflowed: then nothing was updated, and the scale is smaller from now on.
        """
        parts = [piece.gradient for piece in self._sharding.slices() if piece.traits.has_partial_gradient]
        sum_partial(parts, self._world.tensor)
        norm = self._norm()
        if not self.loss_scale.overflowed(norm):
            factor = clip_factor(norm, self._max_grad_norm) / self.loss_scale.value
            self._apply(factor)
        return norm

    def _norm(self) -> torch.Tensor:
        counted = [piece.gradient for piece in self._sharding.slices() if piece.traits.is_counted]
        device = self._sharding.weights[0].device
        norm = global_norm(square_sum(counted, device), self._world, self._shares_gradients)
        return norm / self.loss_scale.value

    def _apply(self, factor: torch.Tensor) -> None:
        gradients = list(self._sharding.gradients())
        torch._foreach_mul_(gradients, factor)
        if self._host_gradients:
            _copy(self._host_gradients, gradients)
            gradients = self._host_gradients
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        if self._masters[0] is not self._sharding.weights[0]:
            _copy(self._sharding.weights, self._masters)
        self._sharding.publish()


@torch.no_grad()
def _copy(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy between devices and types, with one synchronisation at the end where there are two devices.

    In chunks, since what comes to a GPU in another type is there in both for a moment.
    """
    for target, source in zip(targets, sources, strict=True):
        for piece, values in zip(target.split(CHUNK_ELEMENTS), source.split(CHUNK_ELEMENTS), strict=True):
            piece.copy_(values, non_blocking=True)
    if any(target.device != source.device for target, source in zip(targets, sources, strict=True)):
        torch.cuda.current_stream().synchronize()


def _on_host(master: torch.Tensor) -> torch.Tensor:
    """A copy in host memory, pinned where a GPU reads it."""
    return torch.empty_like(master, device="cpu", pin_memory=master.is_cuda).copy_(master)
