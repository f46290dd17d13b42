"""`parlay export`: a search's trials in formats of other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import (
    STDOUT,
    exit_with_error,
    log,
    print_result,
    print_table,
    require_single_stdout,
    write_new,
)
from orchestrator.common.exit_codes import ExitCode
from orchestrator.interop.export_formats import ExportFormat
from search_spaces.errors import InputError, Problem
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.interop.export_result import ExportResult
    from trials.files.folders import SearchFolder


def export(
    search: SearchId = None,
    wanted: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            help="measured, the default: a table for `launcher: {kind: simulated}` and other searches, one row per"
            " measured trial. csv, parquet: one row per trial with all its fields. deephyper:"
            " DeepHyper's results.csv. optuna: a study in an SQLite database.",
        ),
    ] = ExportFormat.MEASURED,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A new file, or - for stdout; default: a file in the search's folder."),
    ] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write a search's trials for other programs and other searches."""
    from orchestrator.interop.export_formats import export_search
    from orchestrator.interop.export_result import ExportAnswer
    from orchestrator.records.lookup import find_search
    from trials.files.folders import write_bytes

    _require_output(wanted, out, as_json)
    found = find_search(search, ledger)
    made = export_search(found.record, found.spec, wanted)
    if not made.rows:
        _fail_without_rows(found.folder, made.left_out, as_json)
    if out == STDOUT:
        print_table(made.content.decode())
        log(_format_export(made))
        return
    path = out or found.folder.path / wanted.file_name
    if out is None:
        write_bytes(path, made.content)
    else:
        write_new(path, made.content, "--out")
    answer = ExportAnswer(
        search_id=found.record.search_id, format=wanted, file=str(path), rows=made.rows, left_out=made.left_out
    )
    print_result(answer, as_json, f"{path}: {_format_export(made)}")


def _require_output(wanted: ExportFormat, out: Path | None, as_json: bool) -> None:
    require_single_stdout(out, as_json)
    if out == STDOUT and not wanted.is_text:
        message = f"takes text, and --format {wanted} is binary"
        raise InputError.of("usage", message, key="--out", value="-", fix="use a new file")


def _fail_without_rows(folder: SearchFolder, left_out: Mapping[str, int], as_json: bool) -> NoReturn:
    said = f" ({_counts(left_out)})" if left_out else ""
    message = f"search {folder.search_id} has no measured trial yet{said}"
    problem = Problem("no_measurement", message, fix=f"parlay status {folder.cli_name} shows what became of it")
    exit_with_error(ExitCode.NO_MEASUREMENT, problem, as_json)


def _format_export(made: ExportResult) -> str:
    left_out = f"; left out: {_counts(made.left_out)}" if made.left_out else ""
    return plural(made.rows, "row") + left_out


def _counts(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {why}" for why, count in left_out.items())
