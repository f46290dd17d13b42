"""MLP of a layer, and its experts, the MLPs among which each token's router chooses, with their activations.

Every tensor-parallel rank has a slice of each expert, as of an MLP, and routes all tokens. Forced routing chooses
experts by a token's position alone, so that all steps have the same loads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from search_spaces.model_shape import ModelShape
from search_spaces.routing import Routing
from trials.train.model.initial_weights import InitialMatrices, gated_parts
from trials.train.parallel.collectives import Reduction
from trials.train.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorParallelRanks,
    enter_tensor_region,
    reduce_partial,
    sharded,
    shared_by_heads,
)


class Mlp(nn.Module):
    """Hidden states (B, S', H) -> the same: two matrices with the activation between them."""

    def __init__(self, model: ModelShape, ranks: TensorParallelRanks, matrices: InitialMatrices):
        super().__init__()
        self.activation = activation_of(model)
        parts = gated_parts(model, model.ffn_hidden_size)
        self.linear_in = ColumnParallelLinear(ranks, matrices.mlp_in(), parts, model.has_biases)
        self.linear_out = RowParallelLinear(ranks, matrices.mlp_out(), model.has_biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear_out(self.activation(self.linear_in(x)))


class Experts(nn.Module):
    """Hidden states (B, S', H) -> the same: the sum of a token's `experts_per_token` best experts, weighted by the
    softmax of their logits, and of the shared expert. With forced routing the experts are not the best ones.

    `tokens_of_experts` counts the tokens that each expert was given, in every forward pass."""

    def __init__(self, model: ModelShape, ranks: TensorParallelRanks, matrices: InitialMatrices, routing: Routing):
        super().__init__()
        assert model.experts_per_token is not None
        self.ranks = ranks
        self.top_k = model.experts_per_token
        self.routing = routing
        self.activation = activation_of(model)
        router = matrices.router()
        inner = ranks.slice_of_parts(matrices.experts_in(), gated_parts(model, model.expert_width), dim=1)
        self.router = shared_by_heads(router, ranks)
        self.tokens_of_experts = torch.zeros(len(router), dtype=torch.int64, device=router.device)
        self.experts_in = sharded(inner, ranks)
        self.experts_out = sharded(ranks.slice_of(matrices.experts_out(), 2), ranks)
        self.router_bias = self.experts_in_bias = self.experts_out_bias = None
        if model.has_biases:
            self.router_bias = shared_by_heads(router.new_zeros(len(router)), ranks)
            self.experts_in_bias = sharded(inner.new_zeros(inner.shape[:2]), ranks)
            self.experts_out_bias = shared_by_heads(router.new_zeros(router.shape), ranks)
        self.shared_in = self.shared_out = None
        if (width := model.shared_expert_ffn_hidden_size) is not None:
            shared_in = ranks.slice_of_parts(matrices.shared_in(), gated_parts(model, width), dim=0)
            self.shared_in = sharded(shared_in, ranks)
            self.shared_out = sharded(ranks.slice_of(matrices.shared_out(), 1), ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = enter_tensor_region(x, self.ranks, Reduction.EXPERT_INPUT_GRADIENT)
        tokens = x.flatten(0, 1)
        mixed = self._route(tokens)
        if self.shared_in is not None and self.shared_out is not None:
            mixed = mixed + F.linear(self.activation(F.linear(tokens, self.shared_in)), self.shared_out)
        return reduce_partial(mixed.view_as(x), self.ranks, Reduction.EXPERT_OUTPUT)

    def _route(self, tokens: torch.Tensor) -> torch.Tensor:
        """(N, H) -> this rank's part (N, H) of the experts' weighted sum. Logits and weights are in fp32."""
        bias = None if self.router_bias is None else self.router_bias.float()
        logits, chosen = self._choose(F.linear(tokens.float(), self.router.float(), bias))
        order = chosen.flatten().argsort(stable=True)
        rows = order // self.top_k
        counts = chosen.flatten().bincount(minlength=len(self.router))
        self.tokens_of_experts.add_(counts)
        passed = self._pass(tokens[rows], counts.tolist())
        weighted = passed * logits.softmax(-1).flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, rows, weighted.to(tokens.dtype))

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, E) -> the logits of each token's experts, (N, k), and the experts."""
        if self.routing.skew is None:
            return logits.topk(self.top_k, -1)
        chosen = forced_choice(self.routing, len(logits), logits.shape[1], self.top_k, logits.device)
        return logits.gather(1, chosen), chosen

    def _pass(self, sorted_tokens: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Tokens (N k, H), sorted by expert, through their experts; `counts` of each."""
        inside = self.activation(grouped_linear(sorted_tokens, self.experts_in, self.experts_in_bias, counts))
        # One rank adds the bias to the sum over the ranks; the others use it, too, so that all have its gradient.
        out_bias = None if self.experts_out_bias is None else self.experts_out_bias * (self.ranks.rank == 0)
        return grouped_linear(inside, self.experts_out, out_bias, counts)


def grouped_linear(
    x: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor | None, counts: Sequence[int]
) -> torch.Tensor:
    """Rows (N, in), `counts` of them for each expert, times that expert's weight of (E, out, in) -> (N, out)."""
    parts = zip(x.split(list(counts)), weights, biases if biases is not None else [None] * len(weights), strict=True)
    return torch.cat([F.linear(rows, weight, bias) for rows, weight, bias in parts])


def forced_choice(routing: Routing, tokens: int, num_experts: int, top_k: int, device: torch.device) -> torch.Tensor:
    """Different experts of each of these tokens, (N, k), for a routing that is balanced or skewed.

    Balanced experts take turns, as in torchtitan/models/common/moe.py `_debug_force_load_balance_routing`. Skewed, the
    first expert has its share of tokens, evenly among them, and the others take turns.
    """
    assert routing.skew is not None
    slots = torch.arange(top_k, device=device)
    if routing.skew == 1:
        return (torch.arange(tokens, device=device)[:, None] * top_k + slots) % num_experts
    passes_first = min(tokens, round(routing.skew * tokens * top_k / num_experts))
    due = torch.arange(tokens + 1, device=device) * passes_first // tokens
    is_due = due.diff()
    others = num_experts - 1
    before = torch.arange(tokens, device=device) * top_k - due[:-1]
    chosen = 1 + (before[:, None] + slots) % others
    chosen[:, -1] = torch.where(is_due > 0, 0, chosen[:, -1])
    return chosen


Activation = Callable[[torch.Tensor], torch.Tensor]

SWIGLU_SCALE, SWIGLU_LIMIT = 1.702, 7.0
"""Constants of `clamped_swiglu`; openai/gpt-oss, gpt_oss/torch/model.py, swiglu."""


def activation_of(model: ModelShape) -> Activation:
    """The model's activation: (..., 2 F) -> (..., F) of a gated MLP, whose gate comes first, else elementwise."""
    if model.mlp_activation == "clamped_swiglu":
        return _clamped_swiglu
    activation = _ACTIVATIONS[model.mlp_activation]
    return partial(_gated, activation) if model.gated_mlp else activation


def _gated(activation: Activation, x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    return activation(gate) * value


def _clamped_swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, value = x.chunk(2, -1)
    gate, value = gate.clamp(max=SWIGLU_LIMIT), value.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * torch.sigmoid(SWIGLU_SCALE * gate) * (value + 1)


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x).square()


_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared_relu": _squared_relu,
}
