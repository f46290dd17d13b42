"""Verification: what is known of an axis value with an engine: trained, taken by the trainer's parser, or read in its
source. verified.csv holds the first two, derived from the cases of tests (tests/engine_table.py)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, SETTINGS, Layout
from search_spaces.layouts.table import LayoutTable, combinations_of

TABLE = Path(__file__).with_name("verified.csv")
NOT_VERIFIED = ("num_nodes", "engine", SETTINGS)
"""Axes that say where a training runs, not how; settings are passed on as they are."""


class Level(IntEnum):
    """Knowledge of a value with an engine; the more the higher. A value of which nothing is declared is BY_RULE."""

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
    """The least verified values of a layout, as `axis: value`, and their level. Their combination may be new, too."""

    level: Level
    values: tuple[str, ...]

    @classmethod
    def of(cls, layout: Layout) -> Verification:
        """Verification of a canonical layout: of the fields that have an effect in it."""
        return verifications(LayoutTable.of([layout]))[0]

    def __str__(self) -> str:
        return self.level.text if self.level is Level.RUN else f"{self.level.text} ({', '.join(self.values)})"

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level.text, "values": [] if self.level is Level.RUN else list(self.values)}


def verifications(layouts: LayoutTable) -> list[Verification]:
    """Verification of each of these canonical layouts."""
    names = [name for name in AXES if name not in NOT_VERIFIED]
    answers = {name: layouts.answers(partial(_level_of_field, name)) for name in names}
    levels = np.stack([np.array(found, dtype=int)[of_row] for found, of_row in answers.values()])
    is_least = levels == levels.min(axis=0)
    columns = [np.where(least, layouts[name], -1) for name, least in zip(names, is_least, strict=True)]
    firsts, of_row = combinations_of([levels.min(axis=0), *columns], len(layouts))
    found = []
    for row, layout in zip(firsts.tolist(), layouts.take(firsts), strict=True):
        values = [f"{name} {getattr(layout, name)}" for name, least in zip(names, is_least[:, row], strict=True) if least]
        found.append(Verification(Level(levels[:, row].min()), tuple(values)))
    return [found[index] for index in of_row.tolist()]


def _level_of_field(name: str, layout: Layout) -> int:
    """Level of a field's value; more than any where it has no effect."""
    return level_of(layout.engine, name, getattr(layout, name)) if layout.has_effect(name) else len(Level)


def level_of(engine: str, axis: str, value: Any) -> Level:
    """Level of an axis value with an engine; of a joined word that of its least verified part."""
    return min(_declared().get((engine, axis, word), Level.BY_RULE) for word in words_of(axis, value))


def words_of(axis: str, value: Any) -> tuple[str, ...]:
    """The value's words in verified.csv, one for each part of a joined word."""
    return tuple(value.split("+")) if AXES[axis].parts else (word_of(axis, value),)


def word_of(axis: str, value: Any) -> str:
    """The value in verified.csv: a word, a switch or a ZeRO stage as it is; of other numbers whether it is the
    default."""
    if AXES[axis].kind in (Kind.WORD, Kind.SWITCH) or axis == "zero_stage":
        return str(value)
    return "default" if value == AXES[axis].default else "other"


@cache
def _declared() -> Mapping[tuple[str, str, str], Level]:
    with TABLE.open(newline="") as file:
        return {
            (row["engine"], row["axis"], word): level
            for row in csv.DictReader(file)
            for level in (Level.PARSED, Level.RUN)
            for word in row[level.text].split()
        }
