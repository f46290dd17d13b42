"""Reference: a plain GPT in plain torch, as GPT-2 or Llama. It shares no layer, loss, clipping or optimizer code with
the trial program and has no parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from search_spaces.model_shape import ModelShape

MicroBatch = tuple[torch.Tensor, torch.Tensor, Sequence[Sequence[int]]]
"""Token ids, the ids that follow them, and the lengths of each sequence's documents."""


class RmsNorm(nn.Module):
    """Root mean square normalisation with gain (Zhang & Sennrich, arXiv 1910.07467)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5)


class PlainAttention(nn.Module):
    def __init__(self, model: ModelShape, layer: int):
        super().__init__()
        heads, groups, width = model.num_attention_heads, model.num_key_value_heads, model.hidden_size
        has_bias = model.has_biases or model.qkv_bias
        self.model = model
        self.query = nn.Linear(width, heads * model.head_size, bias=has_bias)
        self.key = nn.Linear(width, groups * model.head_size, bias=has_bias)
        self.value = nn.Linear(width, groups * model.head_size, bias=has_bias)
        self.out = nn.Linear(heads * model.head_size, width, bias=model.has_biases)
        self.sinks = nn.Parameter(torch.zeros(heads)) if model.attention_sinks else None
        self.layer = layer
        self.query_norm = _norm(model, model.head_size) if model.qk_norm else nn.Identity()
        self.key_norm = _norm(model, model.head_size) if model.qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        model, (batch, length, _) = self.model, x.shape
        query = self.query(x).view(batch, length, model.num_attention_heads, model.head_size)
        key = self.key(x).view(batch, length, model.num_key_value_heads, model.head_size)
        value = self.value(x).view(batch, length, model.num_key_value_heads, model.head_size)
        query, key = self.query_norm(query), self.key_norm(key)
        if model.position_embedding == "rotary":
            query, key = rotate(query, model.rotary_base), rotate(key, model.rotary_base)
        sharing = model.num_attention_heads // model.num_key_value_heads
        key, value = key.repeat_interleave(sharing, 2), value.repeat_interleave(sharing, 2)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(model.head_size)
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        if model.sliding_window and (self.layer + 1) % (model.full_attention_every or model.num_layers + 1):
            hidden |= torch.ones_like(hidden).tril(-model.sliding_window)
        scores = scores.masked_fill(hidden, -math.inf)
        if self.sinks is not None:
            sinks = self.sinks.view(1, -1, 1, 1).expand(batch, -1, length, 1)
            scores = torch.cat([sinks.to(scores.dtype), scores], -1)
        weights = scores.softmax(-1)[..., -length:]
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, -1))


def rotate(x: torch.Tensor, base: float) -> torch.Tensor:
    """(B, S, heads, D): dimensions i and i + D / 2 as one complex number, rotated by position x base^(-2 i / D)."""
    length, size = x.shape[1], x.shape[3]
    frequencies = base ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.outer(torch.arange(length, device=x.device), frequencies)
    real, imaginary = x.float().chunk(2, -1)
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles).view(1, length, 1, size // 2)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


class PlainMlp(nn.Module):
    def __init__(self, model: ModelShape, width: int):
        super().__init__()
        self.activation = model.activation or ("silu" if model.gated_mlp else "gelu")
        self.up = nn.Linear(model.hidden_size, width, bias=model.has_biases)
        self.gate = nn.Linear(model.hidden_size, width, bias=model.has_biases) if model.gated_mlp else None
        self.down = nn.Linear(width, model.hidden_size, bias=model.has_biases)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.gate is not None and self.activation == "clamped_swiglu":
            gate, up = self.gate(x).clamp(max=7), self.up(x).clamp(-7, 7)
            return self.down(gate / (1 + torch.exp(-1.702 * gate)) * (1 + up))
        if self.gate is None:
            return self.down(activate(self.up(x), self.activation))
        return self.down(activate(self.gate(x), self.activation) * self.up(x))


def activate(x: torch.Tensor, name: str) -> torch.Tensor:
    """Activation of this name, elementwise."""
    if name == "gelu":
        return nn.GELU(approximate="tanh")(x)
    if name == "silu":
        return x * torch.sigmoid(x)
    clamped = x.clamp(min=0)
    return clamped * clamped if name == "squared_relu" else clamped


class PlainExperts(nn.Module):
    """Every expert for every token, weighted by 0 where the router did not choose it.

    `smallest_margin` is the least distance so far between the logits of the last expert that was chosen and the first
    that was not: where rounding could have changed the choice. `balancing_loss` is that of the last forward pass.
    """

    def __init__(self, model: ModelShape):
        super().__init__()
        assert model.num_experts is not None
        assert model.experts_per_token is not None
        self.top_k, self.smallest_margin = model.experts_per_token, math.inf
        self.coefficient = model.aux_loss_coefficient or 0.0
        self.balancing_loss = torch.zeros(())
        self.router = nn.Linear(model.hidden_size, model.num_experts, bias=model.has_biases)
        width = model.expert_ffn_hidden_size or model.ffn_hidden_size
        self.experts = nn.ModuleList(PlainMlp(model, width) for _ in range(model.num_experts))
        shared = model.shared_expert_ffn_hidden_size
        self.shared = PlainMlp(model, shared) if shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(dtype), self.router.weight.to(dtype), self.router.bias)
        ranked = logits.sort(-1, descending=True).values
        last_chosen = ranked[..., self.top_k - 1 : self.top_k]
        if self.top_k < len(self.experts):
            margin = (last_chosen - ranked[..., self.top_k : self.top_k + 1]).min().item()
            self.smallest_margin = min(self.smallest_margin, margin)
        weights = logits.masked_fill(logits < last_chosen, -math.inf).softmax(-1)
        shares = (weights > 0).float().flatten(0, -2).mean(0) / self.top_k
        probabilities = logits.softmax(-1).flatten(0, -2).mean(0)
        self.balancing_loss = self.coefficient * len(self.experts) * (shares * probabilities).sum()
        mixed = torch.stack([weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts)]).sum(0)
        return mixed if self.shared is None else mixed + self.shared(x)


class PlainBlock(nn.Module):
    def __init__(self, model: ModelShape, layer: int):
        super().__init__()
        self.attention_norm, self.mlp_norm = _norm(model, model.hidden_size), _norm(model, model.hidden_size)
        self.attention = PlainAttention(model, layer)
        dense, every = model.num_dense_layers, model.expert_layer_every
        has_experts = model.num_experts and layer >= dense and (layer - dense) % every == every - 1
        self.mlp = PlainExperts(model) if has_experts else PlainMlp(model, model.ffn_hidden_size)
        self.attention_post_norm = _norm(model, model.hidden_size) if model.post_norms else nn.Identity()
        self.mlp_post_norm = _norm(model, model.hidden_size) if model.post_norms else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x)))
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


class PlainGpt(nn.Module):
    def __init__(self, model: ModelShape):
        super().__init__()
        self.tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        is_learned = model.position_embedding == "learned"
        self.positions = nn.Embedding(model.seq_length, model.hidden_size) if is_learned else None
        self.blocks = nn.ModuleList(PlainBlock(model, layer) for layer in range(model.num_layers))
        self.norm = _norm(model, model.hidden_size)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        if model.tied_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _norm(model: ModelShape, width: int) -> nn.Module:
    return nn.LayerNorm(width) if model.norm == "layernorm" else RmsNorm(width)


def plain_weights(theirs: Mapping[str, torch.Tensor], model: ModelShape) -> dict[str, torch.Tensor]:
    """State of a `PlainGpt` from that of the whole model in one chunk of the trial program.

    There query, key and value are one matrix, and so are gate and up.
    """
    qkv_widths = [heads * model.head_size for heads in (model.num_attention_heads, *(model.num_key_value_heads,) * 2)]
    plain: dict[str, torch.Tensor] = {}
    for name, tensor in theirs.items():
        part = name.rsplit(".", 1)[-1]
        if ".qkv." in name:
            stem = name.removesuffix(f"qkv.{part}") + "attention"
            parts = tensor.split(qkv_widths)
            plain |= {f"{stem}.{which}.{part}": p for which, p in zip(("query", "key", "value"), parts, strict=True)}
        elif ".linear_in." in name:
            stem = name.removesuffix(f".linear_in.{part}")
            names = ("gate", "up") if model.gated_mlp else ("up",)
            plain |= {f"{stem}.{n}.{part}": p for n, p in zip(names, tensor.chunk(len(names)), strict=True)}
        elif ".mlp." in name and ".linear_" not in name:
            plain |= _plain_experts(name, tensor, model)
        else:
            plain[_plain_name(name)] = tensor
    return plain


def _plain_experts(name: str, tensor: torch.Tensor, model: ModelShape) -> dict[str, torch.Tensor]:
    """State of `PlainExperts` from one tensor of the trial program's experts, (experts, out, in) or a bias."""
    stem, tensor_name = name.rsplit(".", 1)
    kind = "bias" if tensor_name.endswith("_bias") else "weight"
    which = tensor_name.removesuffix("_bias")
    if which == "router":
        return {f"{stem}.router.{kind}": tensor}
    owners = [("shared", tensor)] if which.startswith("shared") else [(f"experts.{i}", t) for i, t in enumerate(tensor)]
    names = ("down",) if which.endswith("_out") else ("gate", "up") if model.gated_mlp else ("up",)
    return {
        f"{stem}.{owner}.{n}.{kind}": part
        for owner, values in owners
        for n, part in zip(names, values.chunk(len(names)), strict=True)
    }


def _plain_name(name: str) -> str:
    for theirs, ours in (
        ("embedding.tokens.", "tokens."),
        ("embedding.positions", "positions.weight"),
        ("head.norm.", "norm."),
        (".attention_out.", ".attention.out."),
        (".sinks", ".attention.sinks"),
        (".query_norm.", ".attention.query_norm."),
        (".key_norm.", ".attention.key_norm."),
        (".linear_out.", ".down."),
    ):
        if theirs in name:
            return name.replace(theirs, ours)
    return name


def _logits(gpt: PlainGpt, ids: torch.Tensor, documents: Sequence[Sequence[int]]) -> torch.Tensor:
    """Logits of the sequences: of all at once where each is one document, else of one document after another."""
    if all(len(lengths) == 1 for lengths in documents):
        return gpt(ids)
    parts = [sequence.split(list(lengths), 1) for sequence, lengths in zip(ids.split(1), documents, strict=True)]
    return torch.cat([torch.cat([gpt(document) for document in of_one], 1) for of_one in parts])


def train_plain(
    gpt: PlainGpt,
    steps: Sequence[Sequence[MicroBatch]],
    learning_rate: float,
    epsilon: float,
    max_grad_norm: float,
    autocast: torch.dtype | None,
) -> tuple[list[float], list[float]]:
    """(losses, gradient norms before clipping), one of each per step of several micro-batches. The losses are without
    those that balance experts, the gradients with them."""
    optimizer = torch.optim.AdamW(
        gpt.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=epsilon, weight_decay=0.01, foreach=False
    )
    kind = next(gpt.parameters()).device.type
    losses, norms = [], []
    for micro_batches in steps:
        optimizer.zero_grad()
        total = 0.0
        for ids, targets, documents in micro_batches:
            with torch.autocast(kind, autocast, enabled=autocast is not None):
                loss = F.cross_entropy(_logits(gpt, ids, documents).flatten(0, 1).float(), targets.flatten())
            balancing = sum(part.balancing_loss for part in gpt.modules() if isinstance(part, PlainExperts))
            ((loss + balancing) / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
        norms.append(nn.utils.clip_grad_norm_(gpt.parameters(), max_grad_norm).item())
        optimizer.step()
        losses.append(total)
    return losses, norms
