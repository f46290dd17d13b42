"""ModelChunk: consecutive blocks of a GPT, with optional embedding and head. The engines torch and DeepSpeed run it.

GPT-2's architecture (Radford et al., 2019): learned positions, layernorm, GELU (tanh), biases. Llama's (Touvron et al.,
arXiv 2302.13971, and 2307.09288 for grouped heads): rotary positions, RMS norm, gated SiLU, no biases. Qwen's (arXiv
2407.10671, 2505.09388): biases of queries, keys and values; normalised queries and keys. Gemma 3's (arXiv 2503.19786):
sliding windows, normalised outputs. gpt-oss's (arXiv 2508.10925): attention sinks. Mixtral's (arXiv 2401.04088) and
DeepSeek's (arXiv 2401.06066): experts, and one that is shared. Any mix of them, tied or untied.
A chunk computes in the type of its weights; norms and the loss are computed in fp32 inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from search_spaces.layouts.pipeline_split import stage_layers
from search_spaces.model_shape import NORM_EPSILON, ModelShape
from search_spaces.routing import ROUTERS_CHOICE, Routing
from trials.train.model.adapters import add_adapters
from trials.train.model.attention import Documents, Rotary, attention, attention_by_document, supports_gqa
from trials.train.model.initial_weights import InitialMatrices, WeightSource, qkv_parts
from trials.train.model.mlp import Experts, Mlp
from trials.train.parallel.collectives import Reduction
from trials.train.parallel.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    TensorParallelRanks,
    VocabParallelEmbedding,
    column_parallel,
    is_sharded,
    replicated,
    sharded,
    shared_by_heads,
    vocab_parallel_cross_entropy,
)


@dataclass(frozen=True)
class ChunkPlan:
    """The part of the model that a chunk holds: layers `first_layer` to `end_layer`, exclusive."""

    first_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool

    @classmethod
    def of(cls, model: ModelShape, index: int, num_chunks: int) -> ChunkPlan:
        counts = stage_layers(model, num_chunks)
        first = sum(counts[:index])
        return cls(first, first + counts[index], index == 0, index == num_chunks - 1)


@dataclass(frozen=True)
class ChunkExecution:
    """Execution options of a chunk. `recompute`: the part recomputed in the backward pass: `none`, the attention scores
    and their product with the values (`selective`), or whole blocks (`full`). `routing` is that of experts."""

    recompute: str = "none"
    compile_blocks: bool = False
    routing: Routing = ROUTERS_CHOICE


class ModelChunk(nn.Module):
    """Token ids (B, S), or the hidden states (B, S', H) of the chunk before -> hidden states, or logits (B, S, V / T).

    Counts the micro-batches and samples that pass through, the proof that the engine really ran them. Where attention
    is by document, `begin_step` is given the documents of the micro-batches that follow, in their order. `on_part` is
    called with each block once built, so that an engine can shard it before the next one takes memory.
    """

    def __init__(
        self,
        model: ModelShape,
        plan: ChunkPlan,
        ranks: TensorParallelRanks,
        weights: WeightSource,
        execution: ChunkExecution,
        on_part: Callable[[nn.Module], None] = lambda part: None,
    ):
        super().__init__()
        self.ranks = ranks
        self.plan = plan
        self.micro_batches = 0
        self.samples = 0
        self.embedding = Embedding(model, ranks, weights) if plan.has_embedding else None
        self.blocks = nn.ModuleList()
        rotary = Rotary(model, weights.device) if model.position_embedding == "rotary" else None
        for layer in range(plan.first_layer, plan.end_layer):
            block = Block(model, layer, ranks, weights, rotary, execution)
            on_part(block)
            self.blocks.append(block)
        self.head = Head(model, ranks, weights) if plan.has_head else None
        if model.tied_embeddings and self.embedding and self.head:
            self.head.weight = self.embedding.tokens.weight
        for end in (self.embedding, self.head):
            if end is not None:
                end.requires_grad_(model.trainable is None)
        self._is_tied = model.tied_embeddings
        self._recomputes_blocks = execution.recompute == "full"
        self._documents: list[Documents] = []
        if execution.compile_blocks:
            for part in self.blocks:
                part.compile()

    def begin_step(self, documents: Sequence[Documents] | None) -> None:
        """Note the documents of the next micro-batches; None where tokens attend to their whole sequence."""
        self._documents = list(documents or ())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        documents = self._documents.pop(0) if self._documents else None
        self.micro_batches += 1
        self.samples += x.shape[0]
        x = x if self.embedding is None else self.embedding(x, documents=documents)
        for part in self.blocks:
            x = self._run_block(part, x, documents)
        return x if self.head is None else self.head(x)

    def _run_block(self, block: nn.Module, x: torch.Tensor, documents: Documents | None) -> torch.Tensor:
        # By keyword: DeepSpeed's hooks warn of positional inputs that are no tensors.
        run = partial(block, documents=documents)
        return checkpointed(run, x) if self._recomputes_blocks else run(x)

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy of this chunk's logits (B, S, V / T) against token ids (B, S)."""
        return vocab_parallel_cross_entropy(logits, targets, self.ranks)

    def expert_tokens(self) -> dict[int, torch.Tensor]:
        """Tokens that each expert was given, by layer."""
        layers = enumerate((block.mlp for block in self.blocks), start=self.plan.first_layer)
        return {layer: mlp.tokens_of_experts.clone() for layer, mlp in layers if isinstance(mlp, Experts)}

    @property
    def tied_weight_name(self) -> str | None:
        """Name of a tied model's token table, which first and last chunk both hold."""
        if not self._is_tied:
            return None
        if self.embedding is not None:
            return "embedding.tokens.weight"
        return None if self.head is None else "head.weight"

    @property
    def tied_weight(self) -> nn.Parameter | None:
        return None if self.tied_weight_name is None else self.get_parameter(self.tied_weight_name)

    def counts_parameter(self, name: str, parameter: nn.Parameter) -> bool:
        """True if this rank counts the parameter, so that the ranks of a replica count each of the model's once."""
        is_replica = self.embedding is None and name == self.tied_weight_name
        return not is_replica and (self.ranks.rank == 0 or is_sharded(parameter))

    def counted_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that this rank counts."""
        return (parameter for name, parameter in self.named_parameters() if self.counts_parameter(name, parameter))


class Embedding(nn.Module):
    """ids (B, S) -> (B, S', H): tokens, plus learned positions where the model has them."""

    def __init__(self, model: ModelShape, ranks: TensorParallelRanks, weights: WeightSource):
        super().__init__()
        self.ranks = ranks
        self.tokens = VocabParallelEmbedding(ranks, InitialMatrices(model, weights).tokens())
        self.positions = None
        if model.position_embedding == "learned":
            self.positions = replicated(InitialMatrices(model, weights).positions(), ranks)

    def forward(self, ids: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        tokens = self.tokens(ids)
        if self.positions is None:
            return tokens
        if documents is not None:
            return tokens + self.positions[self.ranks.sequence_slice_of(documents.positions, 1)]
        return tokens + self.ranks.sequence_slice_of(self.positions[: ids.shape[1]], 0)


class Block(nn.Module):
    """Hidden states (B, S', H) -> the same: causal attention and MLP, each on a normalised copy, each added."""

    def __init__(
        self,
        model: ModelShape,
        layer: int,
        ranks: TensorParallelRanks,
        weights: WeightSource,
        rotary: Rotary | None,
        execution: ChunkExecution,
    ):
        super().__init__()
        matrices = InitialMatrices(model, weights, layer)

        self.head_size = model.head_size
        self.qkv_parts = [part // ranks.size for part in qkv_parts(model)]
        self.rotary = rotary
        self.recompute_scores = execution.recompute == "selective"
        self.window = model.window_of(layer)
        self.sinks = _sinks(model, ranks, weights.device) if model.attention_sinks else None
        # NVIDIA GPUs since Ampere have it; AMD's report 9.0.
        self.has_flash = weights.device.type != "cuda" or torch.cuda.get_device_capability(weights.device) >= (8, 0)
        self.attention_by_document = attention_by_document
        if execution.compile_blocks:  # documents differ from step to step, and would be compiled again each time
            self.attention_by_document = torch.compiler.disable(attention_by_document)
        self.attention_norm = Norm(model, ranks, weights.device)
        self.query_norm = HeadNorm(model, ranks, weights.device) if model.qk_norm else None
        self.key_norm = HeadNorm(model, ranks, weights.device) if model.qk_norm else None
        self.qkv = ColumnParallelLinear(ranks, matrices.qkv(), qkv_parts(model), model.has_biases or model.qkv_bias)
        self.attention_out = RowParallelLinear(ranks, matrices.attention_out(), model.has_biases)
        self.mlp_norm = Norm(model, ranks, weights.device)
        self.mlp = (
            Experts(model, ranks, matrices, execution.routing)
            if model.has_experts(layer)
            else Mlp(model, ranks, matrices)
        )
        self.attention_post_norm = Norm(model, ranks, weights.device) if model.post_norms else nn.Identity()
        self.mlp_post_norm = Norm(model, ranks, weights.device) if model.post_norms else nn.Identity()
        if model.adapters is not None:
            add_adapters(self, model, matrices)

    def forward(self, x: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        attended = self.attention_out(self._attend(self.qkv(self.attention_norm(x)), documents))
        x = x + self.attention_post_norm(attended)
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))

    def _attend(self, qkv: torch.Tensor, documents: Documents | None) -> torch.Tensor:
        """(B, S, (heads + 2 key-value heads) x D / T) -> (B, S, heads x D / T), over this rank's own heads."""
        query, key, value = (self._split_heads(part) for part in qkv.split(self.qkv_parts, -1))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            query, key = self.rotary(query, documents), self.rotary(key, documents)
        heads, mask = (query, key, value), (self.window, self.sinks)
        if documents is None:
            mixed = self._run(attention, *heads, supports_gqa(query, self.has_flash), *mask)
        else:
            mixed = self._run(self.attention_by_document, *heads, self.has_flash, *mask, documents)
        return mixed.transpose(1, 2).flatten(2)

    def _run(self, function: Callable[..., torch.Tensor], *inputs: Any) -> torch.Tensor:
        return checkpointed(function, *inputs) if self.recompute_scores else function(*inputs)

    def _split_heads(self, part: torch.Tensor) -> torch.Tensor:
        """(B, S, heads x head size) -> (B, heads, S, head size)."""
        return part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class Head(nn.Module):
    """Hidden states (B, S', H) -> this rank's logits (B, S, V / T)."""

    def __init__(self, model: ModelShape, ranks: TensorParallelRanks, weights: WeightSource):
        super().__init__()
        self.ranks = ranks
        self.norm = Norm(model, ranks, weights.device)
        self.weight = sharded(ranks.slice_of(InitialMatrices(model, weights).head(), 0), ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return column_parallel(self.norm(x), self.weight, None, self.ranks, Reduction.HEAD_INPUT_GRADIENT)


class Norm(nn.Module):
    """Normalisation over H, replicated on every tensor-parallel rank: layer norm with gain and shift, or RMS norm with
    gain."""

    def __init__(self, model: ModelShape, ranks: TensorParallelRanks, device: torch.device):
        super().__init__()
        ones = torch.ones(self._width(model), device=device)
        self.weight = self._parameter(ones, ranks)
        self.bias = self._parameter(torch.zeros_like(ones), ranks) if model.norm == "layernorm" else None

    def _width(self, model: ModelShape) -> int:
        return model.hidden_size

    def _parameter(self, values: torch.Tensor, ranks: TensorParallelRanks) -> nn.Parameter:
        return replicated(values, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return F.rms_norm(x, self.weight.shape, self.weight, NORM_EPSILON)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, NORM_EPSILON)


class HeadNorm(Norm):
    """Normalisation of each head of queries or keys, with the same gain for all heads of the model."""

    def _width(self, model: ModelShape) -> int:
        return model.head_size

    def _parameter(self, values: torch.Tensor, ranks: TensorParallelRanks) -> nn.Parameter:
        return shared_by_heads(values, ranks)


def _sinks(model: ModelShape, ranks: TensorParallelRanks, device: torch.device) -> nn.Parameter:
    """A logit for each of this rank's heads."""
    return sharded(ranks.slice_of(torch.zeros(model.num_attention_heads, device=device), 0), ranks)


def checkpointed(function: Callable[..., torch.Tensor], *inputs: Any) -> torch.Tensor:
    """Run `function` and store only its inputs; the backward pass runs it again."""
    # The forward pass has no randomness, so no RNG state needs to be saved for the recomputation.
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
