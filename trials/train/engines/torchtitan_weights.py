"""Initial weights of torchtitan's llama3: those of every other engine, in torchtitan's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from search_spaces.model_shape import ModelShape
from trials.train.engines.sharded_weights import fill
from trials.train.model.chunk import WEIGHT_STD
from trials.train.model.initial_weights import WeightSource, rows_by_group

ParameterInit = Mapping[str, Callable[[torch.Tensor], object]]
"""Function that sets a parameter, whole or a shard of it, by the parameter's name."""


class LayerWeights:
    """Initial weights of a layer."""

    def __init__(self, model: ModelShape, source: WeightSource, layer: int):
        self._model = model
        self._source = source
        self._layer = layer

    def qkv(self) -> ParameterInit:
        """Queries, key and value of each key-value head, (H + 2 KV, H)."""
        return self._set("qkv", (self._hidden + 2 * self._kv, self._hidden), WEIGHT_STD, self._by_group)

    def attention_out(self) -> ParameterInit:
        """Output matrix of attention, (H, H)."""
        return self._set("attention_out", (self._hidden, self._hidden), self._residual_std)

    def mlp_in(self, part: int) -> ParameterInit:
        """Gate (part 0) or value (part 1) of the MLP, (F, H)."""
        ffn = self._model.ffn_hidden_size
        return self._set("mlp_in", (2 * ffn, self._hidden), WEIGHT_STD, lambda full: full.chunk(2)[part])

    def mlp_out(self) -> ParameterInit:
        """Output matrix of the MLP, (H, F)."""
        return self._set("mlp_out", (self._hidden, self._model.ffn_hidden_size), self._residual_std)

    @property
    def _hidden(self) -> int:
        return self._model.hidden_size

    @property
    def _kv(self) -> int:
        return self._model.num_key_value_heads * self._model.head_size

    @property
    def _residual_std(self) -> float:
        return WEIGHT_STD / math.sqrt(2 * self._model.num_layers)

    def _set(
        self,
        name: str,
        shape: tuple[int, int],
        std: float,
        ordered: Callable[[torch.Tensor], torch.Tensor] = lambda full: full,
    ) -> ParameterInit:
        return drawn(lambda: ordered(self._source.normal(f"{self._layer}.{name}", shape, std)))

    def _by_group(self, full: torch.Tensor) -> torch.Tensor:
        query, key, value = full.split([self._hidden, self._kv, self._kv])
        size = self._model.head_size
        turned = torch.cat([_interleaved(query, size), _interleaved(key, size), value])
        return rows_by_group(turned, self._model)


def table(source: WeightSource, name: str, model: ModelShape) -> ParameterInit:
    """Token table or output matrix (V, H)."""
    return drawn(lambda: source.normal(name, (model.vocab_size, model.hidden_size), WEIGHT_STD))


def drawn(draw: Callable[[], torch.Tensor]) -> ParameterInit:
    """Values that each rank draws whole; it keeps its shard."""
    return {"weight": lambda parameter: fill(parameter, draw())}


def _interleaved(rows: torch.Tensor, head_size: int) -> torch.Tensor:
    """Rows in which the first half of a head is rotated with the second -> those in which neighbours are."""
    return rows.unflatten(0, (-1, 2, head_size // 2)).transpose(1, 2).flatten(0, 2)
