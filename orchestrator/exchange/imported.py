"""Results of other programs, read into a measured table: which program's they are, and what comes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.search_file import SearchSpec
from search_spaces.errors import InputError, Problem
from search_spaces.measured import Observation, render_table
from search_spaces.plain_file import open_named

MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Imported:
    """`kind` names the program. Rows, and how many results are none, by the reason why; notes are whole sentences."""

    kind: str
    rows: tuple[Observation, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_results(
    source: Path, spec: SearchSpec, objective: str | None = None, names: Mapping[str, str] | None = None
) -> Imported:
    """What the results in this file or folder tell of layouts of the search's model on its machine.

    `objective` says what a results.csv's objective is; `names` maps its parameters to layout fields, an empty text for
    one that is none. InputError where it is nothing that is known, or holds what cannot be.
    """
    if source.is_dir():
        from orchestrator.exchange.autotuning import read_autotuning

        _refuse_options(objective, names, "a folder, as DeepSpeed's autotuning leaves one")
        return read_autotuning(source, spec)
    text = text_of(source)
    header = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    columns = {name.strip().strip('"') for name in header.split(",")}
    if any(name.startswith("p:") for name in columns):
        from orchestrator.exchange.deephyper_read import parse_results

        return parse_results(text, str(source), spec, objective, names or {})
    if "problem" in columns:
        _refuse_options(objective, names, "a measured table")
        return _measured_table(text, str(source), spec)
    raise InputError.of(
        "file",
        "holds no results that are known",
        file=str(source),
        rule="DeepHyper's results.csv has columns p:NAME and objective, a measured table has a column problem;"
        " DeepSpeed's autotuning results are a folder",
        fix="name one of these",
    )


def gathered(
    kind: str, results: Iterable[tuple[Mapping[str, Any], Callable[[], Observation | str]]], notes: tuple[str, ...] = ()
) -> Imported:
    """What the results of one program come to, each read by a function that gives its row or a word for why it is none.

    InputError with the problems of all that cannot be read, each with where its result stands.
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
    return Imported(kind, tuple(rows), dict(sorted(left_out.items())), notes)


def table_text(imported: Imported, source: Path) -> str:
    """The rows as a measured table that says where they are from."""
    left_out = ", ".join(f"{count} {why}" for why, count in imported.left_out.items())
    comments = [f"from {source.name} ({imported.kind}): {len(imported.rows)} rows"]
    return render_table(imported.rows, [*comments, *([f"left out: {left_out}"] if left_out else [])])


def text_of(path: Path) -> str:
    """What stands in a plain file; InputError where it cannot be read, is too large or no UTF-8 text."""
    try:
        with open_named(path) as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise _no_text(
            path, f"cannot be read: {error.strerror or error}", "name a plain file that you may read"
        ) from error
    if len(raw) > MOST_BYTES:
        raise _no_text(path, f"larger than {MOST_BYTES} bytes, the most that is read", "name the table itself")
    try:
        return raw.decode("utf-8-sig")  # spreadsheets begin what they save with a mark
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _no_text(path, "not UTF-8", "name the table that it was made of", line) from error


def _no_text(path: Path, message: str, fix: str, line: int | None = None) -> InputError:
    rule = "results are text, CSV or JSON; nothing is unpickled"
    return InputError.of("file", message, file=str(path), line=line, value=str(path), rule=rule, fix=fix)


def _refuse_options(objective: str | None, names: Mapping[str, str] | None, what: str) -> None:
    for option, value in (("--objective", objective), ("--name", names)):
        if value:
            fix = f"leave {option} out, or name results.csv itself"
            raise InputError.of("usage", f"is for DeepHyper's results.csv, and this is {what}", key=option, fix=fix)


def _measured_table(text: str, file: str, spec: SearchSpec) -> Imported:
    from search_spaces.measured import parse_table
    from search_spaces.measured_problem import measured_on

    rows = parse_table(text, file).require_whole().observations
    ours = measured_on(rows, spec.cluster)
    left_out = {"other_machine": len(rows) - len(ours)} if len(ours) < len(rows) else {}
    return Imported("measured", ours, left_out)
