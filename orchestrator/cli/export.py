"""`parlay export`: a search's trials in formats of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import STDOUT, Exit, log, print_result, print_table, require_single_stdout
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.records.output_file import write_new
from search_spaces.errors import InputError, Problem
from trials.files.text import plural


def export(
    search: SearchId = None,
    wanted: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="measured, the default: a table for `launcher: {kind: simulated}` and other searches, one row per"
            " measured trial. csv, parquet: one row per trial with all its fields. deephyper:"
            " DeepHyper's results.csv. optuna: a study in an SQLite database.",
        ),
    ] = "measured",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A new file, or - for stdout; default: a file in the search's folder."),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    from orchestrator.records.formats.registry import ExportAnswer, export_search, written_format
    from orchestrator.records.lookup import find_search
    from orchestrator.records.observations import counted
    from trials.files.folders import write_bytes

    require_single_stdout(out)
    form = written_format(wanted)
    if out == STDOUT and not form.is_text:
        message = f"takes text, and --format {wanted} is binary"
        raise InputError.of("usage", message, key="--out", value="-", fix="use a new file")
    found = find_search(search, ledger)
    made = export_search(found.record, found.spec, form)
    left_out = counted(made.left_out)
    if not made.rows:
        message = f"search {found.folder.search_id} has no measured trial yet" + (f" ({left_out})" if left_out else "")
        fix = f"parlay status {found.folder.cli_name} shows what became of it"
        raise Exit(ExitCode.NO_MEASUREMENT, Problem("no_measurement", message, fix=fix))
    counts = plural(made.rows, "row") + (f"; left out: {left_out}" if left_out else "")
    if out == STDOUT:
        print_table(made.content.decode())
        log(counts)
        return
    path = out or found.folder.path / form.file_name
    if out is None:
        write_bytes(path, made.content)
    else:
        write_new(path, made.content, "--out")
    answer = ExportAnswer(
        search_id=found.record.search_id, format=wanted, file=str(path), rows=made.rows, left_out=made.left_out
    )
    print_result(answer, f"{path}: {counts}")
