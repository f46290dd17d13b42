"""Initial weights of megatron-core's GPTModel: those of every other engine, in Megatron's order and sliced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from torch import nn

from search_spaces.model_shape import ModelShape
from trials.train.model.initial_weights import (
    LayerMatrices,
    WeightSource,
    output_matrix,
    position_table,
    rows_by_group,
    token_table,
)
from trials.train.parallel.tensor_parallel import TensorParallelRanks

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


_EXPERT = re.compile(r"mlp\.experts\.(?:local_experts\.(\d+)\.(linear_fc[12])\.weight|(linear_fc[12])\.weight(\d+))")
"""An expert's index on this rank and its product, in a sequence of MLPs or in Transformer Engine's grouped one."""


@dataclass(frozen=True)
class ExpertPart:
    """Part of the experts that a rank holds: its index among those that distribute them, and among those that split
    each."""

    rank: int
    ranks: TensorParallelRanks

    @classmethod
    def of_this_rank(cls) -> ExpertPart:
        """The part by megatron-core's groups."""
        size = parallel_state.get_expert_tensor_parallel_group().size()
        ranks = TensorParallelRanks(parallel_state.get_expert_tensor_parallel_rank(), size)
        return cls(parallel_state.get_expert_model_parallel_rank(), ranks)


@dataclass(frozen=True)
class ModelWeights:
    """The model's initial weights, and this rank's part of them."""

    model: ModelShape
    source: WeightSource
    ranks: TensorParallelRanks
    experts: ExpertPart


@torch.no_grad()
def set_initial_weights(chunk: nn.Module, first_layer: int, weights: ModelWeights) -> None:
    """Set every parameter of a chunk whose layers begin at `first_layer`; rounded to the parameter's type.

    KeyError for a parameter that this model has not.
    """
    names = [_LAYER.sub("", name) for name, _ in chunk.named_parameters()]
    for name, parameter in chunk.named_parameters():
        found = _LAYER.match(name)
        layer = first_layer + int(found[1]) if found else 0
        parameter.copy_(_values(_LAYER.sub("", name), layer, parameter, weights, _experts_of_rank(names)))


def _experts_of_rank(names: Sequence[str]) -> int:
    """Experts of each layer that a rank holds."""
    return len({found[1] or found[4] for name in names if (found := _EXPERT.fullmatch(name))})


def _values(name: str, layer: int, parameter: nn.Parameter, given: ModelWeights, experts_of_rank: int) -> torch.Tensor:
    model, weights, ranks = given.model, given.source, given.ranks
    if name.endswith("bias"):
        return torch.zeros_like(parameter)
    if "norm" in name:
        return torch.ones_like(parameter)
    matrices = LayerMatrices(model, weights, layer)
    if name == "self_attention.linear_qkv.weight":
        return ranks.slice_of(rows_by_group(matrices.qkv(), model), 0)
    if name == "mlp.linear_fc1.weight":
        return torch.cat([ranks.slice_of(part, 0) for part in matrices.mlp_in().split(matrices.mlp_parts)])
    if found := _EXPERT.fullmatch(name):
        index = given.experts.rank * experts_of_rank + int(found[1] or found[4])
        return _expert(matrices, index, found[2] or found[3], given.experts.ranks)
    if name == "mlp.router.weight":
        return matrices.router()
    if name == "mlp.shared_experts.linear_fc1.weight":
        return torch.cat([ranks.slice_of(part, 0) for part in matrices.shared_in().split(matrices.shared_parts)])
    if name == "mlp.shared_experts.linear_fc2.weight":
        return ranks.slice_of(matrices.shared_out(), 1)
    if name == "self_attention.linear_proj.weight":
        return ranks.slice_of(matrices.attention_out(), 1)
    if name == "mlp.linear_fc2.weight":
        return ranks.slice_of(matrices.mlp_out(), 1)
    if name == "embedding.position_embeddings.weight":
        return position_table(model, weights)
    table = {"embedding.word_embeddings.weight": token_table, "output_layer.weight": output_matrix}[name]
    return ranks.slice_of(table(model, weights), 0)


def _expert(matrices: LayerMatrices, index: int, product: str, ranks: TensorParallelRanks) -> torch.Tensor:
    """Weight of an expert's first or second product, as this rank holds it."""
    if product == "linear_fc2":
        return ranks.slice_of(matrices.experts_out()[index], 1)
    return torch.cat([ranks.slice_of(part, 0) for part in matrices.experts_in()[index].split(matrices.expert_parts)])
