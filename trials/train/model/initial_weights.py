"""Initial weights: each named tensor is drawn whole from its own seeded generator and then sliced."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch

from search_spaces.model_shape import ModelShape

WEIGHT_STD = 0.02


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


@dataclass(frozen=True)
class LayerMatrices:
    """Matrices of a layer, each (out, in). H is the hidden size, Q the size of all queries, KV that of all keys, F the
    width of the MLP, E the number of experts, X the width of one, Y that of the shared one."""

    model: ModelShape
    source: WeightSource
    layer: int

    @property
    def qkv_parts(self) -> tuple[int, int, int]:
        """Rows of `qkv` that are queries, keys and values."""
        return (self.model.query_size, self.model.key_value_size, self.model.key_value_size)

    @property
    def mlp_parts(self) -> tuple[int, ...]:
        """Rows of `mlp_in` that are the gate and the value, or the value alone."""
        return (self.model.ffn_hidden_size,) * (2 if self.model.gated_mlp else 1)

    def qkv(self) -> torch.Tensor:
        """(Q + 2 KV, H)."""
        return self._draw("qkv", sum(self.qkv_parts), self.model.hidden_size, WEIGHT_STD)

    def attention_out(self) -> torch.Tensor:
        """(H, Q)."""
        return self._draw("attention_out", self.model.hidden_size, self.model.query_size, self._residual_std)

    def mlp_in(self) -> torch.Tensor:
        """(F, H), with a gate (2 F, H)."""
        return self._draw("mlp_in", sum(self.mlp_parts), self.model.hidden_size, WEIGHT_STD)

    def mlp_out(self) -> torch.Tensor:
        """(H, F)."""
        return self._draw("mlp_out", self.model.hidden_size, self.model.ffn_hidden_size, self._residual_std)

    @property
    def expert_parts(self) -> tuple[int, ...]:
        """Rows of an expert's input matrix that are the gate and the value, or the value alone."""
        return (self.model.expert_width,) * (2 if self.model.gated_mlp else 1)

    @property
    def shared_parts(self) -> tuple[int, ...]:
        """Rows of `shared_in` that are the gate and the value, or the value alone."""
        return (self.model.shared_expert_ffn_hidden_size or 0,) * (2 if self.model.gated_mlp else 1)

    def router(self) -> torch.Tensor:
        """(E, H)."""
        return self._draw("router", self._num_experts, self.model.hidden_size, WEIGHT_STD)

    def experts_in(self) -> torch.Tensor:
        """(E, X, H), with a gate (E, 2 X, H)."""
        rows = sum(self.expert_parts)
        drawn = self._draw("experts_in", self._num_experts * rows, self.model.hidden_size, WEIGHT_STD)
        return drawn.unflatten(0, (self._num_experts, rows))

    def experts_out(self) -> torch.Tensor:
        """(E, H, X)."""
        rows, width = self._num_experts * self.model.hidden_size, self.model.expert_width
        return self._draw("experts_out", rows, width, self._residual_std).unflatten(0, (self._num_experts, -1))

    def shared_in(self) -> torch.Tensor:
        """(Y, H), with a gate (2 Y, H)."""
        return self._draw("shared_in", sum(self.shared_parts), self.model.hidden_size, WEIGHT_STD)

    def shared_out(self) -> torch.Tensor:
        """(H, Y)."""
        width = self.model.shared_expert_ffn_hidden_size or 0
        return self._draw("shared_out", self.model.hidden_size, width, self._residual_std)

    @property
    def _num_experts(self) -> int:
        return self.model.num_experts or 0

    @property
    def _residual_std(self) -> float:
        """The 2 L outputs added to the residual stream are smaller by sqrt(2 L), as in GPT-2."""
        return WEIGHT_STD / math.sqrt(2 * self.model.num_layers)

    def _draw(self, name: str, rows: int, columns: int, std: float) -> torch.Tensor:
        return self.source.normal(f"{self.layer}.{name}", (rows, columns), std)


def token_table(model: ModelShape, source: WeightSource) -> torch.Tensor:
    """(V, H)."""
    return source.normal("tokens", (model.vocab_size, model.hidden_size), WEIGHT_STD)


def position_table(model: ModelShape, source: WeightSource) -> torch.Tensor:
    """(S, H)."""
    return source.normal("positions", (model.seq_length, model.hidden_size), WEIGHT_STD)


def output_matrix(model: ModelShape, source: WeightSource) -> torch.Tensor:
    """(V, H): the token table where weights are tied."""
    if model.tied_embeddings:
        return token_table(model, source)
    return source.normal("head", (model.vocab_size, model.hidden_size), WEIGHT_STD)


def rows_by_group(qkv: torch.Tensor, model: ModelShape) -> torch.Tensor:
    """Rows (Q + 2 KV, ...) of all queries, keys, values -> the same by key-value head: its queries, key and value."""
    parts = qkv.split([model.query_size, model.key_value_size, model.key_value_size])
    groups = [part.unflatten(0, (model.num_key_value_heads, -1)) for part in parts]
    return torch.cat(groups, 1).flatten(0, 1)
