"""Initial weights of megatron-core's GPTModel: those of every other engine, in Megatron's order and sliced."""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from search_spaces.model_shape import ModelShape
from trials.train.model.chunk import WEIGHT_STD
from trials.train.model.initial_weights import WeightSource, rows_by_group
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
    h, kv, ffn = model.hidden_size, model.num_key_value_heads * model.head_size, model.ffn_hidden_size
    # As in trials/train/model/chunk.py: outputs added to the residual stream are smaller by sqrt(2 L).
    residual_std = WEIGHT_STD / math.sqrt(2 * model.num_layers)
    if name == "self_attention.linear_qkv.weight":
        full = weights.normal(f"{layer}.qkv", (h + 2 * kv, h), WEIGHT_STD)
        return ranks.slice_of(rows_by_group(full, model), 0)
    if name == "mlp.linear_fc1.weight":
        parts = 2 if model.gated_mlp else 1
        full = weights.normal(f"{layer}.mlp_in", (parts * ffn, h), WEIGHT_STD)
        return torch.cat([ranks.slice_of(part, 0) for part in full.chunk(parts)])
    if name == "self_attention.linear_proj.weight":
        return ranks.slice_of(weights.normal(f"{layer}.attention_out", (h, h), residual_std), 1)
    if name == "mlp.linear_fc2.weight":
        return ranks.slice_of(weights.normal(f"{layer}.mlp_out", (h, ffn), residual_std), 1)
    if name == "embedding.position_embeddings.weight":
        return weights.normal("positions", (model.seq_length, h), WEIGHT_STD)
    table = {"embedding.word_embeddings.weight": "tokens", "output_layer.weight": "head"}[name]
    full = weights.normal("tokens" if model.tied_embeddings else table, (model.vocab_size, h), WEIGHT_STD)
    return ranks.slice_of(full, 0)
