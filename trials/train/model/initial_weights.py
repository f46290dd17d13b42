"""Initial weights: each named tensor is drawn whole from its own seeded generator and then sliced."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class WeightSource:
    """Draws full tensors by name, so that every layout starts from bit-identical weights on the same kind of device.

    Drawn on `device` itself: on a GPU that costs nothing, and no rank holds more than one whole tensor at a time.
    """

    seed: int
    device: torch.device

    def normal(self, name: str, shape: tuple[int, ...], std: float) -> torch.Tensor:
        generator = torch.Generator(self.device)
        # 32 bits on purpose: the CPU generator ignores the upper half of a longer seed.
        generator.manual_seed(zlib.crc32(f"{self.seed}.{name}".encode()))
        return torch.empty(shape, device=self.device).normal_(0.0, std, generator=generator)
