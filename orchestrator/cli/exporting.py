"""The verb export: what a search has seen, for other programs and other searches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import answer, fail, say, write_new
from search_spaces.errors import InputError, Problem
from trials.text import counted

if TYPE_CHECKING:
    from orchestrator.observations import Observed

EXPORT_SCHEMA = "parlay.export/1"
_STDOUT = Path("-")


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    app.command()(export)


def export(
    search: SearchId = None,
    measured: Annotated[
        bool, typer.Option("--measured", help="A measured table (CSV): a row for each trial that tells of its layout.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A new file, or - for stdout; measured.csv in the search's folder if absent."),
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write what a search has seen of its layouts as a table, for `launcher: {kind: recorded}` and other searches."""
    from orchestrator.find import find_search
    from orchestrator.observations import measured_table, observed_in
    from trials.folder import write_text

    if not measured:
        raise InputError.of("usage", "names nothing to export", key="export", fix="add --measured")
    if as_json and out == _STDOUT:
        fix = "leave one of them out"
        raise InputError.of("usage", "and --json both answer on stdout", key="--out", value="-", fix=fix)
    found = find_search(search, ledger)
    observed = observed_in(found.record, found.spec)
    if not observed.rows:
        _fail_without_rows(found.record.search_id, observed, as_json)
    table = measured_table(observed, found.record)
    if out == _STDOUT:
        sys.stdout.write(table)
        say(_words(observed))
        return
    path = out or found.folder.measured
    if out is None:
        write_text(path, table)
    else:
        write_new(path, table, "--out")
    data = {"schema": EXPORT_SCHEMA, "search_id": found.record.search_id, "file": str(path)}
    counts = {"rows": len(observed.rows), "left_out": dict(observed.left_out)}
    answer(data | counts, as_json, f"{path}: {_words(observed)}")


def _fail_without_rows(search_id: str, observed: Observed, as_json: bool) -> NoReturn:
    said = f" ({_left_out(observed)})" if observed.left_out else ""
    problem = Problem("no_measurement", f"no trial of search {search_id} tells of its layout yet{said}")
    fail(ExitCode.NO_MEASUREMENT, problem, as_json)


def _words(observed: Observed) -> str:
    left_out = f"; left out: {_left_out(observed)}" if observed.left_out else ""
    return counted(len(observed.rows), "row") + left_out


def _left_out(observed: Observed) -> str:
    return ", ".join(f"{count} {why}" for why, count in observed.left_out.items())
