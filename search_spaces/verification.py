"""Verification: what is known of an axis value with an engine: trained, taken by the trainer's parser, or read in its
source. verified.csv holds the first two, derived from the cases of tests (tests/engine_table.py)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.layouts.layout import AXES, SETTINGS, Layout

if TYPE_CHECKING:
    import numpy as np

    from search_spaces.layouts.table import LayoutTable

TABLE = Path(__file__).with_name("verified.csv")
NOT_VERIFIED = ("num_nodes", "engine", SETTINGS)
"""Axes that say where a training runs, not how; settings are passed on as they are."""


class Level(IntEnum):
    """How well a value is verified with an engine. BY_RULE where nothing is declared."""

    BY_RULE = 0
    """Read in the trainer's source or documentation, as its rules say."""
    PARSED = 1
    """The trainer's own parser took it in an export."""
    RUN = 2
    """A test trained a layout that has it, on a CPU."""

    @property
    def text(self) -> str:
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Verification:
    """The least verified values of a layout, as `axis value`, and their level; none where all were trained. Their
    combination may be new, too."""

    level: Level
    values: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout) -> Verification:
        """Verification of a canonical layout: of the fields that have an effect in it."""
        from search_spaces.layouts.table import LayoutTable

        [found], _ = verifications(LayoutTable.of([layout]))
        return found

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level.text, "values": list(self.values)}


def verifications(layouts: LayoutTable) -> tuple[list[Verification], np.ndarray]:
    """The distinct verifications of canonical layouts, and for each row the index of its own."""
    # Imported here, because what shows a trial's level should not import numpy.
    import numpy as np

    from search_spaces.layouts.table import combinations_of

    names = [name for name in AXES if name not in NOT_VERIFIED]
    levels = {name: layouts.column_of(partial(_level_of_field, name)) for name in names}
    lowest = np.minimum.reduce([*levels.values()])
    told = {name: (of_field == lowest) & (lowest < Level.RUN) for name, of_field in levels.items()}
    told = {name: is_told for name, is_told in told.items() if is_told.any()}
    firsts, of_row = combinations_of(
        [lowest, *(np.where(told[name], layouts[name], -1) for name in told)], len(layouts)
    )
    found = []
    for row, layout in zip(firsts.tolist(), layouts.take(firsts), strict=True):
        values = (f"{name} {getattr(layout, name)}" for name, is_told in told.items() if is_told[row])
        found.append(Verification(Level(lowest[row]), tuple(values)))
    return found, of_row


def _level_of_field(name: str, layout: Layout) -> int:
    """Level of a field's value; more than any where it has no effect."""
    return level_of(layout.engine, name, getattr(layout, name)) if layout.has_effect(name) else len(Level)


def level_of(engine: str, axis: str, value: Any) -> Level:
    """Level of an axis value with an engine; of a joined word that of its least verified part. A default is verified as
    the engine is."""
    if axis in NOT_VERIFIED:
        return Level.BY_RULE
    declared = _declared()
    return min(declared.get((engine, *key), Level.BY_RULE) for key in _keys_of(axis, value))


def _keys_of(axis: str, value: Any) -> list[tuple[str, str]]:
    default = AXES[axis].default
    return [("", "") if word == str(default) else (axis, word) for word in words_of(axis, value)]


def words_of(axis: str, value: Any) -> tuple[str, ...]:
    """The value's words in verified.csv, which has none for a default: words, one for each part of a joined one,
    switches and ZeRO stages as they are, `other` for other numbers."""
    if AXES[axis].parts:
        return tuple(value.split("+"))
    is_told = not AXES[axis].is_number or axis == "zero_stage" or value == AXES[axis].default
    return (str(value) if is_told else "other",)


@cache
def _declared() -> Mapping[tuple[str, str, str], Level]:
    """Level of every word of an engine and axis; with neither that of the engine, and of its defaults."""
    with TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found: dict[tuple[str, str, str], Level] = {}
    for level, row in product((Level.PARSED, Level.RUN), rows):
        words = row[level.text].split()
        found |= {(row["engine"], row["axis"], word): level for word in words}
        if words:
            found[row["engine"], "", ""] = level
    return found
