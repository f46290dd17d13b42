"""Initial weights of megatron-core's GPTModel: those of every other engine, in Megatron's order and sliced."""

from __future__ import annotations

import re

import torch
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


@torch.no_grad()
def set_initial_weights(
    chunk: nn.Module, first_layer: int, model: ModelShape, weights: WeightSource, ranks: TensorParallelRanks
) -> None:
    """Set every parameter of a chunk whose layers begin at `first_layer`; rounded to the parameter's type.

    KeyError for a parameter that this model has not.
    """
    for name, parameter in chunk.named_parameters():
        found = _LAYER.match(name)
        layer = first_layer + int(found[1]) if found else 0
        parameter.copy_(_values(_LAYER.sub("", name), layer, parameter, model, weights, ranks))


def _values(
    name: str, layer: int, parameter: nn.Parameter, model: ModelShape, weights: WeightSource, ranks: TensorParallelRanks
) -> torch.Tensor:
    if name.endswith("bias"):
        return torch.zeros_like(parameter)
    if "norm" in name:
        return torch.ones_like(parameter)
    matrices = LayerMatrices(model, weights, layer)
    if name == "self_attention.linear_qkv.weight":
        return ranks.slice_of(rows_by_group(matrices.qkv(), model), 0)
    if name == "mlp.linear_fc1.weight":
        return torch.cat([ranks.slice_of(part, 0) for part in matrices.mlp_in().split(matrices.mlp_parts)])
    if name == "self_attention.linear_proj.weight":
        return ranks.slice_of(matrices.attention_out(), 1)
    if name == "mlp.linear_fc2.weight":
        return ranks.slice_of(matrices.mlp_out(), 1)
    if name == "embedding.position_embeddings.weight":
        return position_table(model, weights)
    table = {"embedding.word_embeddings.weight": token_table, "output_layer.weight": output_matrix}[name]
    return ranks.slice_of(table(model, weights), 0)
