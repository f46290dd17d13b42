"""Initial weights of torchtitan's llama3 and qwen3: those of every other engine, in torchtitan's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torchtitan.models.common.decoder import Decoder, TransformerBlock
from torchtitan.models.common.feed_forward import FeedForward

from search_spaces.model_shape import ModelShape
from trials.train.engines.sharded_weights import fill
from trials.train.model.initial_weights import LayerMatrices, WeightSource, output_matrix, rows_by_group, token_table
from trials.trainers.torchtitan.config import is_qwen3

Draw = Callable[[], torch.Tensor]
ParameterInit = Mapping[str, Callable[[torch.Tensor], object]]
"""Function that sets a parameter, whole or a shard of it, by the parameter's name."""


def set_initial_weights(config: Decoder.Config, model: ModelShape, source: WeightSource) -> None:
    """Have each rank draw every matrix whole, and keep its shard, when the model of this configuration is built."""
    config.tok_embeddings.param_init = _drawn(partial(token_table, model, source))
    config.lm_head.param_init = _drawn(partial(output_matrix, model, source))
    for number, layer in enumerate(config.layers):
        _set_layer(layer, LayerMatrices(model, source, number))


def _set_layer(layer: TransformerBlock.Config, matrices: LayerMatrices) -> None:
    layer.attention.qkv_linear.wqkv.param_init = _drawn(partial(_qkv_by_group, matrices))
    layer.attention.wo.param_init = _drawn(matrices.attention_out)
    if layer.moe is None:
        _set_mlp(layer.feed_forward, matrices.mlp_in, matrices.mlp_out)
        return
    layer.moe.router.gate.param_init = _drawn(matrices.router)
    layer.moe.routed_experts.inner_experts.param_init = {
        **_drawn(lambda: matrices.experts_in().chunk(2, 1)[0], "w1_EFD"),
        **_drawn(matrices.experts_out, "w2_EDF"),
        **_drawn(lambda: matrices.experts_in().chunk(2, 1)[1], "w3_EFD"),
    }
    if layer.moe.shared_experts is not None:
        _set_mlp(layer.moe.shared_experts, matrices.shared_in, matrices.shared_out)


def _set_mlp(mlp: FeedForward.Config, inner: Draw, outer: Draw) -> None:
    """Set gate (w1), value (w3) and output (w2); the first two are one matrix of ours."""
    mlp.w1.param_init = _drawn(lambda: inner().chunk(2)[0])
    mlp.w3.param_init = _drawn(lambda: inner().chunk(2)[1])
    mlp.w2.param_init = _drawn(outer)


def _drawn(draw: Draw, name: str = "weight") -> ParameterInit:
    return {name: lambda parameter: fill(parameter, draw())}


def _qkv_by_group(matrices: LayerMatrices) -> torch.Tensor:
    """Queries, key and value of each key-value head, (Q + 2 KV, H)."""
    whole, size = matrices.qkv(), matrices.model.head_size
    if is_qwen3(matrices.model):  # it rotates the halves of a head, as these rows have it
        return rows_by_group(whole, matrices.model)
    query, key, value = whole.split(matrices.qkv_parts)
    turned = torch.cat([_interleaved(query, size), _interleaved(key, size), value])
    return rows_by_group(turned, matrices.model)


def _interleaved(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rows in which the first half of a head is rotated with the second -> those in which neighbours are."""
    return rows.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)
