"""LayoutTable: many layouts as columns, so that a hundred thousand are enumerated, checked and rated at once; a Layout
is made only of the rows that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, TypeVar, overload

import numpy as np

from search_spaces.layouts.axis import Values
from search_spaces.layouts.layout import (
    AXES,
    CANONICAL,
    CHOICES,
    LAYOUT_FIELDS,
    SETTINGS,
    SWITCHES,
    DerivedNumbers,
    Layout,
    key_part,
)
from search_spaces.layouts.matmul_recipes import MatmulRecipe, recipe_of

_NO_VALUE = 0
"""In a column of counts: not a whole number (data_parallel, grad_accum_steps), or null (`NULLABLE`)."""


Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class LayoutTable(DerivedNumbers, Sequence[Layout]):
    """A sequence of layouts as one int64 column per field, all of one length. A derived field that is not whole is 0;
    an enumerated field is its index in `CHOICES`, a settings' text that in `_TEXTS`."""

    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.columns["num_nodes"])

    @overload
    def __getitem__(self, item: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, item: int) -> Layout: ...
    @overload
    def __getitem__(self, item: slice) -> LayoutTable: ...
    def __getitem__(self, item: str | int | slice) -> np.ndarray | Layout | LayoutTable:
        """The column of a field, the layout of a row, or the table of some rows."""
        if isinstance(item, str):
            return self.columns[item]
        if isinstance(item, slice):
            return self.take(item)
        return Layout(**{name: decoded_field(name, int(column[item])) for name, column in self.columns.items()})

    def __getattr__(self, name: str) -> np.ndarray:
        """The column of a field, as `DerivedNumbers` read it."""
        if name not in AXES:
            raise AttributeError(name)
        return self.columns[name]

    def __iter__(self) -> Iterator[Layout]:
        return iter(self._layouts)

    @cached_property
    def _layouts(self) -> tuple[Layout, ...]:
        return tuple(Layout(**fields) for fields in self.rows())

    def __contains__(self, layout: object) -> bool:
        return isinstance(layout, Layout) and bool(self._has(layout.to_json()).any())

    def index(self, layout: Any, start: int = 0, stop: int | None = None) -> int:
        """Row of a layout; ValueError where there is none."""
        rows = np.flatnonzero(self._has(layout.to_json())[start:stop])
        if not len(rows):
            raise ValueError(f"{layout.key} is not in the table")
        return start + int(rows[0])

    @classmethod
    def of(cls, layouts: Iterable[Layout]) -> LayoutTable:
        """A table with one row per layout."""
        if isinstance(layouts, LayoutTable):
            return layouts
        rows = map(itemgetter(*LAYOUT_FIELDS), map(_fields_of, layouts))
        values = [*zip(*rows, strict=True)] or [()] * len(LAYOUT_FIELDS)
        return cls({name: _encode_column(name, column) for name, column in zip(LAYOUT_FIELDS, values, strict=True)})

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

    def of_recipe(self, value_of: Callable[[MatmulRecipe], float | None]) -> np.ndarray:
        """A column of a value of each layout's recipe for 8 or 4 bits; 0 where it has none, or none of that value."""
        words, engines = CHOICES["matmul_precision"], CHOICES["engine"]
        recipes = [[recipe_of(word, engine) for word in words] for engine in engines]
        values = [[0 if recipe is None else value_of(recipe) or 0 for recipe in of_engine] for of_engine in recipes]
        return np.array(values)[self["engine"], self["matmul_precision"]]

    def with_columns(self, **columns: np.ndarray) -> LayoutTable:
        return LayoutTable({**self.columns, **columns})

    def take(self, rows: np.ndarray | slice) -> LayoutTable:
        """The rows of a mask or of indices, in that order."""
        return LayoutTable({name: column[rows] for name, column in self.columns.items()})

    def with_row(self, layout: Layout) -> LayoutTable:
        """The table with this layout as its last row."""
        return LayoutTable(
            {name: np.append(self[name], encoded_field(name, v)) for name, v in layout.to_json().items()}
        )

    def equals(self, name: str, value: Any) -> np.ndarray:
        return self[name] == encoded_field(name, value)

    def has_part(self, name: str, part: str) -> np.ndarray:
        """1 where the joined word of a field has this part, else 0."""
        has = [part in word.split("+") for word in CHOICES[name]]
        return np.array(has, dtype=float)[self[name]]

    def canonical(self) -> LayoutTable:
        """Every row in canonical form, as `Layout.canonical`."""
        changed = {}
        for name, cases in CANONICAL.items():
            conditions = [self._has(when) for _, when in cases]
            numbers = [encoded_field(name, value) for value, _ in cases]
            changed[name] = np.select(conditions, numbers, self[name])
        return self.with_columns(**changed)

    def _has(self, values: Values) -> np.ndarray:
        """Mask of the rows that have all these values."""
        return np.logical_and.reduce([np.full(len(self), True), *(self.equals(*item) for item in values.items())])

    def distinct(self) -> LayoutTable:
        """Distinct rows, sorted by the layout fields in their order."""
        firsts, _ = self._combinations(LAYOUT_FIELDS, slice(None))
        return self.take(firsts)

    def answers(
        self, ask: Callable[[Layout], Answer], rows: np.ndarray | None = None, read: Iterable[str] = ()
    ) -> tuple[list[Answer], np.ndarray]:
        """What a function says of the layouts, or of those in some rows: its answers, and for each row the index of its
        own.

        The function is asked once for each combination of values of the fields that it reads, of which `read` are
        known; it may read nothing else that changes.
        """
        rows = np.arange(len(self)) if rows is None else rows
        read = {*read}
        while True:
            known = sorted(read)
            firsts, of_row = self._combinations(known, rows)
            found = []
            for row in rows[firsts].tolist():
                found.append(ask(_Row.of(self, row, read)))
                if len(read) > len(known):
                    break
            else:
                return found, of_row

    def column_of(self, ask: Callable[[Layout], float]) -> np.ndarray:
        """A column of the number that a function says of each layout, as `answers`."""
        found, of_row = self.answers(ask)
        return np.array(found)[of_row]

    def values(self, name: str) -> set[Any]:
        """Values of a field that occur."""
        return {decoded_field(name, number) for number in {*self[name].tolist()}}

    def _combinations(self, names: Iterable[str], rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """`combinations_of` these fields in some rows, combinations in the order of the fields."""
        columns = [_in_order(name, self[name][rows]) for name in names]
        return combinations_of(columns, len(self["num_nodes"][rows]))

    @property
    def keys(self) -> list[str]:
        """`Layout.key` of each row; only for rows in canonical form."""
        parts = (self._of_values(name, partial(key_part, name)) for name in LAYOUT_FIELDS)
        return [".".join(filter(None, row)) for row in zip(*filter(any, parts), strict=True)]

    def rows(self) -> list[dict[str, Any]]:
        """Every row as field -> value; None where there is no value."""
        if not len(self):
            return []
        first = {name: decoded_field(name, int(self[name][0])) for name in LAYOUT_FIELDS}
        varying = [name for name in LAYOUT_FIELDS if name == "num_nodes" or self[name].min() < self[name].max()]
        columns = zip(*(self._of_values(name, lambda value: value) for name in varying), strict=True)
        return [first | dict(zip(varying, row, strict=True)) for row in columns]

    def _of_values(self, name: str, function: Callable[[Any], Any]) -> list[Any]:
        """A function of the field's value in each row; of each distinct number once."""
        numbers = self[name].tolist()
        found = {number: function(decoded_field(name, number)) for number in {*numbers}}
        return [*found.values()] * len(numbers) if len(found) == 1 else [found[number] for number in numbers]


class _Row(Layout):
    """The layout of a row, which takes fields from the table as they are read, and notes which."""

    @classmethod
    def of(cls, table: LayoutTable, row: int, read: set[str]) -> _Row:
        """`read` gets the names of the fields that are read."""
        layout = object.__new__(cls)
        vars(layout).update(_table=table, _row=row, _read=read)
        return layout

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name not in AXES or "_table" not in own:
            return object.__getattribute__(self, name)
        own["_read"].add(name)
        return decoded_field(name, int(own["_table"][name][own["_row"]]))


def _fields_of(layout: Layout) -> Mapping[str, Any]:
    """Values of a layout by field, without an attribute read for each."""
    fields = vars(layout)
    return layout.to_json() if "_table" in fields else fields


def combinations_of(columns: Iterable[np.ndarray], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The first row of each combination of values of columns of so many `rows`, and for each row the index of its
    combination. Combinations are sorted by the columns in their order."""
    code, size = np.zeros(rows, dtype=np.int64), 1
    for column in columns:
        least = column.min(initial=_MOST)
        if least >= column.max(initial=0):
            continue
        number, count = _numbered(column - least)
        if size * count > _MOST:
            code, size = _numbered(code)
        code, size = code * count + number, size * count
    of_row, count = _numbered(code)
    first = np.zeros(count, dtype=int)
    first[of_row[::-1]] = np.arange(rows)[::-1]  # of rows with one number the last assigned stays, which is the first
    return first, of_row


_MOST = 2**62
"""Combinations that a column can number."""


def _numbered(column: np.ndarray) -> tuple[np.ndarray, int]:
    """Index of each row's value among the distinct values of a column from 0 on, in their order, and their number."""
    if column.max(initial=0) > 16 * len(column):  # else counting its values is faster than sorting them
        known, number = np.unique(column, return_inverse=True)
        return number, len(known)
    place = np.cumsum(np.bincount(column) > 0)
    return place[column] - 1, int(place[-1]) if len(column) else 0


def _encode_column(name: str, values: Sequence[Any]) -> np.ndarray:
    """A column of these values; each distinct value is encoded once."""
    codes = {value: encoded_field(name, value) for value in set(values)}
    if len(codes) == 1:
        return np.full(len(values), codes[values[0]], dtype=np.int64)
    return np.fromiter(map(codes.__getitem__, values), np.int64, len(values))


_TEXTS: dict[str, int] = {"": 0}
"""Number of every settings' text that a table of this process has had; it orders nothing (`_in_order`)."""


def _in_order(name: str, column: np.ndarray) -> np.ndarray:
    """Numbers that sort as the values do, in whatever order this process has met them."""
    if name != SETTINGS or not column.any():
        return column
    places = {number: place for place, (_, number) in enumerate(sorted(_TEXTS.items()))}
    return np.array([places[number] for number in column.tolist()], dtype=np.int64)


def encoded_field(name: str, value: Any) -> int:
    """The number that encodes a field's value in its column."""
    if name in CHOICES:
        return CHOICES[name].index(value)
    if name == SETTINGS:
        return _TEXTS.setdefault(value, len(_TEXTS))
    return _NO_VALUE if value is None else int(value)


def decoded_field(name: str, number: int) -> Any:
    """The field's value that a number in its column encodes."""
    if name in CHOICES:
        return CHOICES[name][number]
    if name == SETTINGS:
        return [*_TEXTS][number] if number else ""
    if name in SWITCHES:
        return bool(number)
    return None if number == _NO_VALUE and AXES[name].least > _NO_VALUE else number
