"""Axis values of each engine that a test trained, and those that a trainer's own parser takes in exports.

Printed by `python -m tests.verified_values`; with --write search_spaces/verified.csv is brought up to date.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from functools import cache
from io import StringIO

from search_spaces.engines import ENGINES, OWN_ENGINES
from search_spaces.layouts.axis import Kind
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.verification import NOT_VERIFIED, TABLE, words_of
from tests.oracles.cases import FORMATS, export_cases
from trials.diagnostics.parity_cases import Case, compiled_cases, covering_cases


def table() -> str:
    """verified.csv: the words of each engine and axis by level, each at its highest."""
    trained, parsed = [case.layout for case in trained_cases()], parsed_layouts()
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["engine", "axis", "run", "parsed"])
    for engine in ENGINES:
        for axis in AXES:
            if axis in NOT_VERIFIED:
                continue
            run = words(trained, engine, axis)
            others = words(parsed, engine, axis) - run
            if run or others:
                writer.writerow([engine, axis, " ".join(sorted(run)), " ".join(sorted(others))])
    return text.getvalue()


@cache
def trained_cases() -> list[Case]:
    """Cases of the parity tests, by every engine of Parlay's trainer."""
    cases = [*covering_cases(), *compiled_cases(engines=OWN_ENGINES)]
    others = [engine for engine in OWN_ENGINES if engine not in {case.layout.engine for case in covering_cases()}]
    return cases + [case for engine in others for case in covering_cases(engines=(engine,))]


def parsed_layouts() -> list[Layout]:
    """Layouts of the exports that trainers' parsers have read."""
    return [case.spec.layout for trainer in FORMATS for case in export_cases(trainer)]


def words(layouts: Iterable[Layout], engine: str, axis: str) -> set[str]:
    """Words of an axis in the engine's layouts, where they have an effect. The default of a number or switch, which is
    to do without it, is in all of them."""
    mine = [layout for layout in layouts if layout.engine == engine]
    default = AXES[axis].default
    neutral = {*words_of(axis, default)} if mine and AXES[axis].kind is not Kind.WORD else set()
    return neutral | {
        word
        for layout in mine
        if layout.has_effect(axis) or getattr(layout, axis) == default
        for word in words_of(axis, getattr(layout, axis))
    }


if __name__ == "__main__":
    if "--write" in sys.argv:
        TABLE.write_text(table())
    else:
        print(table(), end="")
