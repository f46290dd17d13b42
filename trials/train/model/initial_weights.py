"""Initial weights: each named tensor is drawn whole from its own seeded generator and then sliced."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from search_spaces.model_shape import ModelShape


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


def rows_by_group(qkv: torch.Tensor, model: ModelShape) -> torch.Tensor:
    """Rows (H + 2 KV, H) of all queries, keys, values -> the same by key-value head: its queries, key and value."""
    kv = model.num_key_value_heads * model.head_size
    parts = qkv.split([model.hidden_size, kv, kv])
    groups = [part.unflatten(0, (model.num_key_value_heads, -1)) for part in parts]
    return torch.cat(groups, 1).flatten(0, 1)
