"""Initial weights of models that others wrote, by the names of their parameters: those of every other engine.

A table for each library has a row for each kind of matrix; one reader serves all of them. Written for megatron-core
0.16.1, torchtitan 0.3.0 and transformers 5.23.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from search_spaces.adapters import NAMES_OF_LIBRARY, TORCHTITAN, TRANSFORMERS
from search_spaces.model_shape import ModelShape
from trials.train.model.initial_weights import InitialMatrices, WeightSource, gated_parts, qkv_parts
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.trainers.torchtitan.config import is_qwen3


def _as_drawn(matrix: torch.Tensor, model: ModelShape) -> torch.Tensor:
    return matrix


@dataclass(frozen=True)
class WeightRow:
    """Parameters of this name, which may have a {layer} and an {expert}: the `matrix` of ours, as `arrange` returns it.

    `split` is the dimension of which each tensor-parallel rank has a share: where the matrix `has_gate`, of the rows of
    the gate and of those of the value. None where every rank has all of it, or where DTensors are sharded.
    """

    name: str
    matrix: Callable[[InitialMatrices], torch.Tensor]
    arrange: Callable[[torch.Tensor, ModelShape], torch.Tensor] = _as_drawn
    split: int | None = None
    has_gate: bool = False

    def match(self, name: str) -> re.Match[str] | None:
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\d+)", re.escape(self.name))
        return re.fullmatch(pattern, name)


@dataclass(frozen=True)
class ModelPart:
    """Part of a model that a rank holds: its first layer and expert, and the ranks that split layers and experts."""

    first_layer: int = 0
    first_expert: int = 0
    ranks: TensorParallelRanks = field(default_factory=TensorParallelRanks)
    expert_ranks: TensorParallelRanks = field(default_factory=TensorParallelRanks)


@dataclass(frozen=True)
class NamedWeights:
    """Initial weights of this rank's part of a model, by the rows of its library."""

    rows: Sequence[WeightRow]
    model: ModelShape
    source: WeightSource
    part: ModelPart = ModelPart()

    def has(self, name: str) -> bool:
        """True for a parameter that has a row."""
        return any(row.match(name) for row in self.rows)

    def draw(self, name: str, parameter: torch.Tensor) -> None:
        """Set a parameter that has a row, whole or a shard of it, rounded to its type."""
        row, found = next((row, found) for row in self.rows if (found := row.match(name)))
        fill(parameter, self._values(row, found.groupdict()))

    def set(self, module: nn.Module) -> None:
        """Set every parameter but those in 4 bits: biases 0, gains of norms 1, matrices drawn. KeyError for an unknown
        one."""
        for name, parameter in module.named_parameters():
            plain = re.sub(r"(_checkpoint_wrapped_module|_orig_mod|base_layer)\.", "", name)
            if not parameter.is_floating_point():
                continue
            if self.has(plain):
                self.draw(plain, parameter)
            elif plain.endswith("bias") or NORM.search(plain):
                nn.init.constant_(parameter, 0.0 if plain.endswith("bias") else 1.0)
            else:
                raise KeyError(plain)

    def _values(self, row: WeightRow, at: Mapping[str, str]) -> torch.Tensor:
        matrices = InitialMatrices(self.model, self.source, self.part.first_layer + int(at.get("layer", 0)))
        whole, ranks = row.matrix(matrices), self.part.ranks
        if "expert" in at:
            whole, ranks = whole[self.part.first_expert + int(at["expert"])], self.part.expert_ranks
        whole = row.arrange(whole, self.model)
        if row.split is None:
            return whole
        size = whole.shape[row.split]
        parts = gated_parts(self.model, size // 2) if row.has_gate and self.model.gated_mlp else (size,)
        return ranks.slice_of_parts(whole, parts, row.split)


def fill(parameter: torch.Tensor, full: torch.Tensor) -> None:
    """Set a parameter, or this rank's shard of it, from the whole tensor, which every rank has; nothing is sent."""
    full = full.to(parameter.dtype)
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        full = DTensor.from_local(full, mesh, [Replicate()] * mesh.ndim, run_check=False)
    with torch.no_grad():
        parameter.copy_(full)


NORM = re.compile(r"norm|\.ln_")
"""Found in the names of norms and of no other module."""


def _rows_by_group(qkv: torch.Tensor, model: ModelShape) -> torch.Tensor:
    """Rows (Q + 2 KV, ...) of all queries, keys, values -> the same by key-value head: its queries, key and value."""
    groups = [part.unflatten(0, (model.num_key_value_heads, -1)) for part in qkv.split(qkv_parts(model))]
    return torch.cat(groups, 1).flatten(0, 1)


def _turned_by_neighbours(qkv: torch.Tensor, model: ModelShape) -> torch.Tensor:
    """Rows by key-value head; queries and keys, of which the first half of a head is rotated with the second, in the
    order in which neighbours are: llama3's. qwen3 rotates the halves."""
    if is_qwen3(model):
        return _rows_by_group(qkv, model)
    *rotated, value = qkv.split(qkv_parts(model))
    turned = [part.unflatten(0, (-1, 2, model.head_size // 2)).transpose(1, 2).flatten(0, 2) for part in rotated]
    return _rows_by_group(torch.cat([*turned, value]), model)


def _part_of_qkv(index: int, qkv: torch.Tensor, model: ModelShape) -> torch.Tensor:
    return qkv.split(qkv_parts(model))[index]


def _gate(rows: torch.Tensor, model: ModelShape) -> torch.Tensor:
    return rows.chunk(2, -2)[0]


def _value(rows: torch.Tensor, model: ModelShape) -> torch.Tensor:
    return rows.chunk(2, -2)[1]


def _transposed(matrix: torch.Tensor, model: ModelShape) -> torch.Tensor:
    return matrix.T


def _with_adapters(rows: tuple[WeightRow, ...], library: str, a: str, b: str) -> tuple[WeightRow, ...]:
    """The rows, and those of adapters beside their linear modules, whose matrices have the names `a` and `b`."""
    adapters = []
    for row in rows:
        stem = row.name.removesuffix("weight")
        for name in (name for name in NAMES_OF_LIBRARY[library] if stem.endswith(f".{name}.")):
            arrange = row.arrange if name == "wqkv" else _as_drawn
            adapters.append(WeightRow(stem + a, methodcaller("adapter_a", name)))
            adapters.append(WeightRow(stem + b, methodcaller("adapter_b", name), arrange))
    return (*rows, *adapters)


_MEGATRON, _MEGATRON_EXPERTS = "decoder.layers.{layer}.", "decoder.layers.{layer}.mlp.experts."
MEGATRON_CORE_WEIGHTS = (
    WeightRow("embedding.word_embeddings.weight", InitialMatrices.tokens, split=0),
    WeightRow("embedding.position_embeddings.weight", InitialMatrices.positions),
    WeightRow("output_layer.weight", InitialMatrices.head, split=0),
    WeightRow(f"{_MEGATRON}self_attention.linear_qkv.weight", InitialMatrices.qkv, _rows_by_group, split=0),
    WeightRow(f"{_MEGATRON}self_attention.linear_proj.weight", InitialMatrices.attention_out, split=1),
    WeightRow(f"{_MEGATRON}mlp.linear_fc1.weight", InitialMatrices.mlp_in, split=0, has_gate=True),
    WeightRow(f"{_MEGATRON}mlp.linear_fc2.weight", InitialMatrices.mlp_out, split=1),
    WeightRow(f"{_MEGATRON}mlp.router.weight", InitialMatrices.router),
    WeightRow(f"{_MEGATRON}mlp.shared_experts.linear_fc1.weight", InitialMatrices.shared_in, split=0, has_gate=True),
    WeightRow(f"{_MEGATRON}mlp.shared_experts.linear_fc2.weight", InitialMatrices.shared_out, split=1),
    # A sequence of MLPs, and Transformer Engine's grouped one.
    *(
        WeightRow(f"{_MEGATRON_EXPERTS}{name}", matrix, split=split, has_gate=split == 0)
        for product, matrix, split in (
            ("linear_fc1", InitialMatrices.experts_in, 0),
            ("linear_fc2", InitialMatrices.experts_out, 1),
        )
        for name in (f"local_experts.{{expert}}.{product}.weight", f"{product}.weight{{expert}}")
    ),
)

_TITAN, _TITAN_EXPERTS = "layers.{layer}.", "layers.{layer}.moe.routed_experts.inner_experts."
_TORCHTITAN_ROWS = (
    WeightRow("tok_embeddings.weight", InitialMatrices.tokens),
    WeightRow("lm_head.weight", InitialMatrices.head),
    WeightRow(f"{_TITAN}attention.qkv_linear.wqkv.weight", InitialMatrices.qkv, _turned_by_neighbours),
    WeightRow(f"{_TITAN}attention.wo.weight", InitialMatrices.attention_out),
    WeightRow(f"{_TITAN}feed_forward.w1.weight", InitialMatrices.mlp_in, _gate),
    WeightRow(f"{_TITAN}feed_forward.w2.weight", InitialMatrices.mlp_out),
    WeightRow(f"{_TITAN}feed_forward.w3.weight", InitialMatrices.mlp_in, _value),
    WeightRow(f"{_TITAN}moe.router.gate.weight", InitialMatrices.router),
    WeightRow(f"{_TITAN}moe.shared_experts.w1.weight", InitialMatrices.shared_in, _gate),
    WeightRow(f"{_TITAN}moe.shared_experts.w2.weight", InitialMatrices.shared_out),
    WeightRow(f"{_TITAN}moe.shared_experts.w3.weight", InitialMatrices.shared_in, _value),
    WeightRow(f"{_TITAN_EXPERTS}w1_EFD", InitialMatrices.experts_in, _gate),
    WeightRow(f"{_TITAN_EXPERTS}w2_EDF", InitialMatrices.experts_out),
    WeightRow(f"{_TITAN_EXPERTS}w3_EFD", InitialMatrices.experts_in, _value),
)
TORCHTITAN_WEIGHTS = _with_adapters(_TORCHTITAN_ROWS, TORCHTITAN, "lora_a.weight", "lora_b.weight")

_LLAMA, _GPT2 = "model.layers.{layer}.", "transformer.h.{layer}."
_TRANSFORMERS_ROWS = (
    WeightRow("model.embed_tokens.weight", InitialMatrices.tokens),
    WeightRow("lm_head.weight", InitialMatrices.head),
    WeightRow(f"{_LLAMA}self_attn.q_proj.weight", InitialMatrices.qkv, partial(_part_of_qkv, 0)),
    WeightRow(f"{_LLAMA}self_attn.k_proj.weight", InitialMatrices.qkv, partial(_part_of_qkv, 1)),
    WeightRow(f"{_LLAMA}self_attn.v_proj.weight", InitialMatrices.qkv, partial(_part_of_qkv, 2)),
    WeightRow(f"{_LLAMA}self_attn.o_proj.weight", InitialMatrices.attention_out),
    WeightRow(f"{_LLAMA}mlp.gate_proj.weight", InitialMatrices.mlp_in, _gate),
    WeightRow(f"{_LLAMA}mlp.up_proj.weight", InitialMatrices.mlp_in, _value),
    WeightRow(f"{_LLAMA}mlp.down_proj.weight", InitialMatrices.mlp_out),
    WeightRow("transformer.wte.weight", InitialMatrices.tokens),
    WeightRow("transformer.wpe.weight", InitialMatrices.positions),
    # GPT-2's are (in, out).
    WeightRow(f"{_GPT2}attn.c_attn.weight", InitialMatrices.qkv, _transposed),
    WeightRow(f"{_GPT2}attn.c_proj.weight", InitialMatrices.attention_out, _transposed),
    WeightRow(f"{_GPT2}mlp.c_fc.weight", InitialMatrices.mlp_in, _transposed),
    WeightRow(f"{_GPT2}mlp.c_proj.weight", InitialMatrices.mlp_out, _transposed),
)
TRANSFORMERS_WEIGHTS = _with_adapters(
    _TRANSFORMERS_ROWS, TRANSFORMERS, "lora_A.default.weight", "lora_B.default.weight"
)
"""Those of peft's adapters among them."""
