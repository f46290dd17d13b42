"""One pipeline stage of a GPT: optional embedding, some transformer blocks, optional head. Both engines run it.

GPT-2's shape (Radford et al., 2019): learned positions, pre-layernorm, GELU (tanh), biases, tied or untied head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from search_spaces.model_shape import ModelShape
from search_spaces.stages import stage_layers
from trials.train.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorRanks,
    VocabParallelEmbedding,
    enter_sharded,
    is_sharded,
    replicated,
    sharded,
    vocab_parallel_cross_entropy,
)
from trials.train.reductions import Reduction
from trials.train.weights import WeightSource

WEIGHT_STD = 0.02


@dataclass(frozen=True)
class StagePlan:
    """Which part of the model a stage holds: layers `first_layer` to `last_layer`, the end not included."""

    first_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool

    @classmethod
    def of(cls, model: ModelShape, stage: int, num_stages: int) -> StagePlan:
        counts = stage_layers(model, num_stages)
        first = sum(counts[:stage])
        return cls(first, first + counts[stage], stage == 0, stage == num_stages - 1)


@dataclass(frozen=True)
class Running:
    """How a stage computes: blocks run again in the backward pass; matrix products in bf16 on fp32 weights."""

    recompute_blocks: bool = False
    autocast_bf16: bool = False


class Stage(nn.Module):
    """Token ids (B, S), or the hidden states (B, S, H) of the stage before -> hidden states, or logits (B, S, V / T).

    It counts the micro-batches and samples that pass through: the proof that the engine really ran them.
    """

    def __init__(self, model: ModelShape, plan: StagePlan, ranks: TensorRanks, weights: WeightSource, running: Running):
        super().__init__()
        self.ranks = ranks
        self.running = running
        self.micro_batches = 0
        self.samples = 0
        self.embedding = Embedding(model, ranks, weights) if plan.has_embedding else None
        layers = range(plan.first_layer, plan.end_layer)
        self.blocks = nn.ModuleList(Block(model, layer, ranks, weights) for layer in layers)
        self.head = Head(model, ranks, weights) if plan.has_head else None
        if model.tied_embeddings and self.embedding and self.head:
            self.head.weight = self.embedding.tokens.weight
        self._is_tied = model.tied_embeddings

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.micro_batches += 1
        self.samples += x.shape[0]
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.running.autocast_bf16):
            return self._compute(x)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks:
            x = self._run_block(block, x)
        return x if self.head is None else self.head(x)

    def _run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if not self.running.recompute_blocks:
            return block(x)
        # Nothing in a block is random, so its generator state need not be kept for running it again.
        return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of this stage's logits (B, S, V / T) against token ids (B, S)."""
        return vocab_parallel_cross_entropy(logits, targets, self.ranks)

    @property
    def tied_weight(self) -> nn.Parameter | None:
        """The token table of a tied model: first and last stage both hold it."""
        if not self._is_tied:
            return None
        if self.embedding is not None:
            return self.embedding.tokens.weight
        return None if self.head is None else self.head.weight

    def counted_parameters(self) -> Iterator[nn.Parameter]:
        """Those this rank answers for when all ranks of a replica are added up: each of the model's exactly once."""
        replica = self.tied_weight if self.embedding is None else None
        for parameter in self.parameters():
            if parameter is not replica and (self.ranks.rank == 0 or is_sharded(parameter)):
                yield parameter


class Embedding(nn.Module):
    """ids (B, S) -> (B, S, H): token plus learned position."""

    def __init__(self, model: ModelShape, ranks: TensorRanks, weights: WeightSource):
        super().__init__()
        self.tokens = VocabParallelEmbedding(ranks, _token_table(model, weights))
        shape = (model.seq_length, model.hidden_size)
        self.positions = replicated(weights.normal("positions", shape, WEIGHT_STD))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions[: ids.shape[1]]


class Block(nn.Module):
    """Hidden states (B, S, H) -> the same: causal attention and MLP, each on a normalised copy, each added."""

    def __init__(self, model: ModelShape, layer: int, ranks: TensorRanks, weights: WeightSource):
        super().__init__()
        h, ffn = model.hidden_size, model.ffn_hidden_size
        # What is added to the residual stream 2 L times starts smaller by sqrt(2 L), as in GPT-2.
        residual_std = WEIGHT_STD / math.sqrt(2 * model.num_layers)
        self.head_size = model.head_size
        self.attention_norm = LayerNorm(h, weights.device)
        self.qkv = ColumnParallelLinear(ranks, weights.normal(f"{layer}.qkv", (3 * h, h), WEIGHT_STD), blocks=3)
        self.attention_out = RowParallelLinear(ranks, weights.normal(f"{layer}.attention_out", (h, h), residual_std))
        self.mlp_norm = LayerNorm(h, weights.device)
        self.mlp_in = ColumnParallelLinear(ranks, weights.normal(f"{layer}.mlp_in", (ffn, h), WEIGHT_STD))
        self.mlp_out = RowParallelLinear(ranks, weights.normal(f"{layer}.mlp_out", (h, ffn), residual_std))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_out(self._attend(self.qkv(self.attention_norm(x))))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """(B, S, 3 H / T) -> (B, S, H / T), over this rank's own heads."""
        query, key, value = (self._split_heads(part) for part in qkv.chunk(3, -1))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return attended.transpose(1, 2).flatten(2)

    def _split_heads(self, part: torch.Tensor) -> torch.Tensor:
        """(B, S, H / T) -> (B, heads / T, S, head size)."""
        return part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class Head(nn.Module):
    """Hidden states (B, S, H) -> this rank's logits (B, S, V / T)."""

    def __init__(self, model: ModelShape, ranks: TensorRanks, weights: WeightSource):
        super().__init__()
        self.ranks = ranks
        self.norm = LayerNorm(model.hidden_size, weights.device)
        full_weight = _token_table(model, weights) if model.tied_embeddings else _output_matrix(model, weights)
        self.weight = sharded(ranks.slice_of(full_weight, 0), ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = enter_sharded(self.norm(x), self.ranks, Reduction.HEAD_INPUT_GRADIENT)
        return F.linear(x, self.weight)


class LayerNorm(nn.Module):
    """Normalisation over H with gain and shift, whole on every tensor rank."""

    def __init__(self, hidden_size: int, device: torch.device):
        super().__init__()
        self.weight = replicated(torch.ones(hidden_size, device=device))
        self.bias = replicated(torch.zeros(hidden_size, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


def _token_table(model: ModelShape, weights: WeightSource) -> torch.Tensor:
    return weights.normal("tokens", (model.vocab_size, model.hidden_size), WEIGHT_STD)


def _output_matrix(model: ModelShape, weights: WeightSource) -> torch.Tensor:
    return weights.normal("head", (model.vocab_size, model.hidden_size), WEIGHT_STD)
