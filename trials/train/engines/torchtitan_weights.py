"""Initial weights of torchtitan's llama3 and qwen3: those of every other engine, in torchtitan's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from search_spaces.model_shape import ModelShape
from trials.train.engines.sharded_weights import fill
from trials.train.model.initial_weights import LayerMatrices, WeightSource, rows_by_group
from trials.trainers.torchtitan.config import is_qwen3

ParameterInit = Mapping[str, Callable[[torch.Tensor], object]]
"""Function that sets a parameter, whole or a shard of it, by the parameter's name."""


class LayerWeights:
    """Initial weights of a layer."""

    def __init__(self, model: ModelShape, source: WeightSource, layer: int):
        self._model = model
        self._matrices = LayerMatrices(model, source, layer)

    def qkv(self) -> ParameterInit:
        """Queries, key and value of each key-value head, (Q + 2 KV, H)."""
        return drawn(self._qkv_by_group)

    def attention_out(self) -> ParameterInit:
        """Output matrix of attention, (H, Q)."""
        return drawn(self._matrices.attention_out)

    def mlp_in(self, part: int) -> ParameterInit:
        """Gate (part 0) or value (part 1) of the MLP, (F, H)."""
        return drawn(lambda: self._matrices.mlp_in().chunk(2)[part])

    def mlp_out(self) -> ParameterInit:
        """Output matrix of the MLP, (H, F)."""
        return drawn(self._matrices.mlp_out)

    def router(self) -> ParameterInit:
        """Gate of the router, (E, H)."""
        return drawn(self._matrices.router)

    def experts(self) -> ParameterInit:
        """Gates (E, X, H), outputs (E, H, X) and values (E, X, H) of all experts."""
        return {
            **drawn(lambda: self._matrices.experts_in().chunk(2, 1)[0], "w1_EFD"),
            **drawn(self._matrices.experts_out, "w2_EDF"),
            **drawn(lambda: self._matrices.experts_in().chunk(2, 1)[1], "w3_EFD"),
        }

    def shared_in(self, part: int) -> ParameterInit:
        """Gate (part 0) or value (part 1) of the shared expert, (Y, H)."""
        return drawn(lambda: self._matrices.shared_in().chunk(2)[part])

    def shared_out(self) -> ParameterInit:
        """Output matrix of the shared expert, (H, Y)."""
        return drawn(self._matrices.shared_out)

    def _qkv_by_group(self) -> torch.Tensor:
        whole, size = self._matrices.qkv(), self._model.head_size
        if is_qwen3(self._model):  # it rotates the halves of a head, as these rows have it
            return rows_by_group(whole, self._model)
        query, key, value = whole.split(self._matrices.qkv_parts)
        turned = torch.cat([_interleaved(query, size), _interleaved(key, size), value])
        return rows_by_group(turned, self._model)


def drawn(draw: Callable[[], torch.Tensor], name: str = "weight") -> ParameterInit:
    """Values of a parameter that each rank draws whole; it keeps its shard."""
    return {name: lambda parameter: fill(parameter, draw())}


def _interleaved(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rows in which the first half of a head is rotated with the second -> those in which neighbours are."""
    return rows.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)
