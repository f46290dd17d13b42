"""LayoutTable: many layouts as columns, so that rules are checked on whole tables; a Layout is one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from search_spaces.layouts.axis import Values
from search_spaces.layouts.layout import (
    AXES,
    CANONICAL,
    CHOICES,
    LAYOUT_FIELDS,
    SETTINGS,
    SWITCHES,
    Layout,
    layout_mesh,
)
from search_spaces.layouts.matmul_recipes import MatmulRecipe, recipe_of

_NO_VALUE = 0
"""In a column of counts: not a whole number (data_parallel, grad_accum_steps), or null (`NULLABLE`)."""


@dataclass(frozen=True)
class LayoutTable:
    """One int64 column per layout field, all of one length. A derived field that is not whole is 0; an enumerated field
    is its index in `CHOICES`, a settings' text that in `_TEXTS`."""

    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["num_nodes"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> LayoutTable:
        """A table with one row per layout."""
        rows = list(layouts)
        return cls({name: _encode_column(name, [getattr(row, name) for row in rows]) for name in LAYOUT_FIELDS})

    @classmethod
    def from_indices(cls, axes: Mapping[str, Sequence[Any]], picks: Iterable[np.ndarray]) -> LayoutTable:
        """A row for each combination: `picks` holds, axis by axis, the index of the value each row takes.

        Layout fields without an axis are 0.
        """
        indices = dict(zip(axes, picks, strict=True))
        rows = len(next(iter(indices.values())))
        columns = {name: np.zeros(rows, dtype=np.int64) for name in LAYOUT_FIELDS}
        for name, values in axes.items():
            columns[name] = _encode_column(name, values)[indices[name]]
        return cls(columns)

    @property
    def global_batch_size(self) -> np.ndarray:
        return self["micro_batch_size"] * self["grad_accum_steps"] * self["data_parallel"]

    @property
    def shards(self) -> np.ndarray:
        """Ranks over which ZeRO shards, as `Layout.shards`."""
        return self["data_parallel"] * self["context_parallel"] // self["data_parallel_replicas"]

    @property
    def expert_shards(self) -> np.ndarray:
        """Ranks over which ZeRO shards an expert, as `Layout.expert_shards`."""
        of_stage = layout_mesh(self.columns).without("pp").world_size // self["data_parallel_replicas"]
        return of_stage // self.ranks_of_expert_layer

    @property
    def ranks_of_expert_layer(self) -> np.ndarray:
        """Ranks that together hold the experts of a layer."""
        return self["expert_parallel"] * self["expert_tensor_parallel"]

    def of_recipe(self, value_of: Callable[[MatmulRecipe], float | None]) -> np.ndarray:
        """A column of a value of each layout's recipe for 8 or 4 bits; 0 where it has none, or none of that value."""
        words, engines = CHOICES["matmul_precision"], CHOICES["engine"]
        recipes = [[recipe_of(word, engine) for word in words] for engine in engines]
        values = [[0 if recipe is None else value_of(recipe) or 0 for recipe in of_engine] for of_engine in recipes]
        return np.array(values)[self["engine"], self["matmul_precision"]]

    def quantized_share(self, num_layers: int) -> np.ndarray:
        """Share of a model's layers whose products are in 8 or 4 bits."""
        is_quantized = ~self.equals("matmul_precision", "same")
        return is_quantized * (1 - np.minimum(1, 2 * self["layers_in_16_bits"] / num_layers))

    def per_mesh(self, method: Callable[..., Any], *arguments: Any) -> np.ndarray:
        """A column of what a method of RankMesh returns for each layout."""
        values = [method(layout_mesh(self.columns, order), *arguments) for order in CHOICES["rank_order"]]
        return np.choose(self["rank_order"], values)

    def with_columns(self, **columns: np.ndarray) -> LayoutTable:
        return LayoutTable({**self.columns, **columns})

    def take(self, rows: np.ndarray) -> LayoutTable:
        """The rows of a mask or of indices, in that order."""
        return LayoutTable({name: column[rows] for name, column in self.columns.items()})

    def equals(self, name: str, value: Any) -> np.ndarray:
        return self[name] == encode(name, value)

    def canonical(self) -> LayoutTable:
        """Every row in canonical form, as `Layout.canonical`."""
        changed = {}
        for name, cases in CANONICAL.items():
            conditions = [self._has(when) for _, when in cases]
            numbers = [encode(name, value) for value, _ in cases]
            changed[name] = np.select(conditions, numbers, self[name])
        return self.with_columns(**changed)

    def _has(self, values: Values) -> np.ndarray:
        """Mask of the rows that have all these values."""
        return np.logical_and.reduce([np.full(len(self), True), *(self.equals(*item) for item in values.items())])

    def distinct(self) -> LayoutTable:
        """Distinct rows, sorted by the layout fields in their order."""
        varying = [
            _in_order(name, self[name]) for name in LAYOUT_FIELDS if len(self) and self[name].min() != self[name].max()
        ]
        if not varying:
            return self.take(np.arange(min(1, len(self))))
        ordered = np.lexsort(varying[::-1])
        differs = np.zeros(len(self), dtype=bool)
        differs[0] = True
        for column in varying:
            differs[1:] |= np.diff(column[ordered]) != 0
        return self.take(ordered[differs])

    def rows(self) -> list[dict[str, Any]]:
        """Every row as field -> value; None where there is no value."""
        return [dict(zip(LAYOUT_FIELDS, row, strict=True)) for row in self._decode_rows()]

    def layouts(self) -> list[Layout]:
        """Every row as a Layout; only for rows whose derived fields are whole numbers."""
        return [Layout(*row) for row in self._decode_rows()]

    def _decode_rows(self) -> Iterator[tuple[Any, ...]]:
        """The values of every row, in the order of the layout fields; each distinct number is decoded once."""
        columns = []
        for name in LAYOUT_FIELDS:
            numbers = self[name].tolist()
            meant = {number: decode(name, number) for number in set(numbers)}
            columns.append([meant[number] for number in numbers])
        return zip(*columns, strict=True)


def _encode_column(name: str, values: Sequence[Any]) -> np.ndarray:
    """A column of these values; each distinct value is encoded once."""
    codes = {value: encode(name, value) for value in set(values)}
    return np.array([codes[value] for value in values], dtype=np.int64)


_TEXTS: dict[str, int] = {"": 0}
"""Number of every settings' text that a table of this process has had; it orders nothing (`_in_order`)."""


def _in_order(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers that sort as the values do, in whatever order this process has met them."""
    if name != SETTINGS:
        return column
    places = {number: place for place, (_, number) in enumerate(sorted(_TEXTS.items()))}
    return np.array([places[number] for number in column.tolist()], dtype=np.int64)


def encode(name: str, value: Any) -> int:
    """The number that encodes a field's value in its column."""
    if name in CHOICES:
        return CHOICES[name].index(value)
    if name == SETTINGS:
        return _TEXTS.setdefault(value, len(_TEXTS))
    return _NO_VALUE if value is None else int(value)


def decode(name: str, number: int) -> Any:
    """The field's value that a number in its column encodes."""
    if name in CHOICES:
        return CHOICES[name][number]
    if name == SETTINGS:
        return [*_TEXTS][number] if number else ""
    if name in SWITCHES:
        return bool(number)
    return None if number == _NO_VALUE and AXES[name].least > _NO_VALUE else number
