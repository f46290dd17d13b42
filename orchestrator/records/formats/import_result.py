"""Result of an import, and the bounded reading of its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer
from search_spaces.errors import InputError, Problem
from search_spaces.plain_file import read_named
from search_spaces.tables.measured_table import Observation


@dataclass(frozen=True)
class ImportResult:
    """Rows of an import, the number of results left out by reason, and notes. `kind` names the program."""

    kind: str
    rows: tuple[Observation, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class ImportAnswer(Answer):
    """Printed by import. Exit code 3 where no result can be used."""

    schema_: Literal["parlay.import/1"] = "parlay.import/1"
    source: str
    kind: str
    """deephyper, deepspeed or measured."""
    file: str
    """A measured table."""
    rows: int
    left_out: Mapping[str, int]
    """Results by failure reason, or `cancelled`, `world`, `batch`, `other_machine`, `unfinished`, `no_layout_field`."""
    notes: list[str]


def collect_rows(
    kind: str, results: Iterable[tuple[Mapping[str, Any], Callable[[], Observation | str]]], notes: tuple[str, ...] = ()
) -> ImportResult:
    """Read all results, each by a function that returns its row or the reason for leaving it out.

    InputError with the problems of all invalid results, each with its location.
    """
    rows: list[Observation] = []
    left_out: Counter[str] = Counter()
    problems: list[Problem] = []
    for where, read in results:
        try:
            found = read()
        except InputError as error:
            problems += error.at(**where).problems
            continue
        if isinstance(found, Observation):
            rows.append(found)
        else:
            left_out[found] += 1
    if problems:
        raise InputError(*problems)
    return ImportResult(kind, tuple(rows), dict(sorted(left_out.items())), notes)


def read_text(path: Path) -> str:
    """Read a regular file as UTF-8; InputError if it cannot be read, is too large or is not UTF-8."""
    try:
        raw = read_named(path)
    except OSError as error:
        fix = "name the table itself, a plain file that you may read"
        raise _no_text(path, f"cannot be read: {error.strerror or error}", fix) from error
    try:
        return raw.decode("utf-8-sig")  # spreadsheets write a byte-order mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _no_text(path, "is not UTF-8", "save it as UTF-8", line) from error


def _no_text(path: Path, message: str, fix: str, line: int | None = None) -> InputError:
    rule = "results are text, CSV or JSON; nothing is unpickled"
    return InputError.of("file", message, file=str(path), line=line, value=str(path), rule=rule, fix=fix)
