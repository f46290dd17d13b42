"""Initial weights: each named tensor is drawn whole from its own seeded generator and then sliced."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch

from search_spaces.adapters import module_sizes
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
class InitialMatrices:
    """Matrices of a model, and of a layer of it, each (out, in). V is the vocabulary, S the sequence length, H the
    hidden size, Q the size of all queries, KV that of all keys, F the width of the MLP, E the number of experts, X the
    width of one, Y that of the shared one. The gate's rows come before the value's."""

    model: ModelShape
    source: WeightSource
    layer: int = 0

    def tokens(self) -> torch.Tensor:
        """(V, H)."""
        return self.source.normal("tokens", (self.model.vocab_size, self.model.hidden_size), WEIGHT_STD)

    def positions(self) -> torch.Tensor:
        """(S, H)."""
        return self.source.normal("positions", (self.model.seq_length, self.model.hidden_size), WEIGHT_STD)

    def head(self) -> torch.Tensor:
        """(V, H): the token table where weights are tied."""
        if self.model.tied_embeddings:
            return self.tokens()
        return self.source.normal("head", (self.model.vocab_size, self.model.hidden_size), WEIGHT_STD)

    def qkv(self) -> torch.Tensor:
        """(Q + 2 KV, H)."""
        return self._into("qkv", sum(qkv_parts(self.model)))

    def attention_out(self) -> torch.Tensor:
        """(H, Q)."""
        return self._out_of("attention_out", self.model.query_size)

    def mlp_in(self) -> torch.Tensor:
        """(F, H), with a gate (2 F, H)."""
        return self._into("mlp_in", sum(gated_parts(self.model, self.model.ffn_hidden_size)))

    def mlp_out(self) -> torch.Tensor:
        """(H, F)."""
        return self._out_of("mlp_out", self.model.ffn_hidden_size)

    def adapter_a(self, name: str) -> torch.Tensor:
        """(rank, in) of a linear module's adapter."""
        of_input, _ = module_sizes(self.model, name)
        return self.source.normal(f"{self.layer}.{name}.a", (self._rank, of_input), of_input**-0.5)

    def adapter_b(self, name: str) -> torch.Tensor:
        """(out, rank). Not zero as in LoRA, since A would have no gradient in the first step."""
        _, of_output = module_sizes(self.model, name)
        return self.source.normal(f"{self.layer}.{name}.b", (of_output, self._rank), WEIGHT_STD)

    def router(self) -> torch.Tensor:
        """(E, H)."""
        return self._into("router", self._num_experts)

    def experts_in(self) -> torch.Tensor:
        """(E, X, H), with a gate (E, 2 X, H)."""
        rows = sum(gated_parts(self.model, self.model.expert_width))
        return self._into("experts_in", self._num_experts * rows).unflatten(0, (self._num_experts, rows))

    def experts_out(self) -> torch.Tensor:
        """(E, H, X)."""
        drawn = self._out_of("experts_out", self.model.expert_width, self._num_experts)
        return drawn.unflatten(0, (self._num_experts, -1))

    def shared_in(self) -> torch.Tensor:
        """(Y, H), with a gate (2 Y, H)."""
        return self._into("shared_in", sum(gated_parts(self.model, self._shared_width)))

    def shared_out(self) -> torch.Tensor:
        """(H, Y)."""
        return self._out_of("shared_out", self._shared_width)

    @property
    def _rank(self) -> int:
        return self.model.adapters.rank if self.model.adapters else 0

    @property
    def _num_experts(self) -> int:
        return self.model.num_experts or 0

    @property
    def _shared_width(self) -> int:
        return self.model.shared_expert_ffn_hidden_size or 0

    def _into(self, name: str, rows: int) -> torch.Tensor:
        """(rows, H)."""
        return self.source.normal(f"{self.layer}.{name}", (rows, self.model.hidden_size), WEIGHT_STD)

    def _out_of(self, name: str, columns: int, matrices: int = 1) -> torch.Tensor:
        """(matrices H, columns). The 2 L outputs added to the residual stream are smaller by sqrt(2 L), as in GPT-2."""
        std = WEIGHT_STD / math.sqrt(2 * self.model.num_layers)
        return self.source.normal(f"{self.layer}.{name}", (matrices * self.model.hidden_size, columns), std)


def qkv_parts(model: ModelShape) -> tuple[int, int, int]:
    """Rows of `qkv` that are queries, keys and values."""
    return (model.query_size, model.key_value_size, model.key_value_size)


def gated_parts(model: ModelShape, width: int) -> tuple[int, ...]:
    """Rows of a matrix into an MLP of this width: the gate and the value, or the value alone."""
    return (width,) * (2 if model.gated_mlp else 1)
