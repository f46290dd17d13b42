"""`parlay import`: results of other programs as a measured table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import SearchFilePath
from orchestrator.cli.output import STDOUT, Exit, log, print_result, print_table, require_single_stdout
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.records.output_file import write_new
from search_spaces.errors import InputError, Problem
from trials.files.text import plural


def import_results(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RESULTS",
            help="DeepHyper's results.csv, DeepSpeed's autotuning_results folder, or a measured table.",
        ),
    ],
    search_file: SearchFilePath,
    out: Annotated[Path, typer.Option("--out", "-o", help="The measured table: a new file, or - for stdout.")],
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", help="Metric in the objective column of a results.csv: tokens_per_sec, step_time_s, ..."
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="THEIRS=FIELD",
            help="Layout field of a parameter in a results.csv; THEIRS= leaves it out.",
        ),
    ] = None,
) -> None:
    """The search file describes the model and the machine of the results. Its baseline and its axes with a single value
    fill in what the results do not say of a layout.
    """
    from orchestrator.config.loader import load_search_file
    from orchestrator.records.formats.registry import ImportAnswer, read_results
    from orchestrator.records.observations import counted

    require_single_stdout(out)
    spec = load_search_file(search_file)
    form, found = read_results(source, spec, objective, _names(names or ()))
    left_out = f"; left out: {counted(found.left_out)}" if found.left_out else ""
    if not found.rows:
        message = f"{source} has no result with a layout{left_out}"
        fix = "use finished results, and a search file with their machine and global batch"
        raise Exit(ExitCode.NO_MEASUREMENT, Problem("no_measurement", message, fix=fix))
    table = found.text(f"from {source.name} ({form.name}): {len(found.rows)} rows")
    counts = plural(len(found.rows), "row") + left_out
    if out == STDOUT:
        print_table(table)
    else:
        write_new(out, table, "--out")
    for note in form.notes:
        log(f"note: {note}")
    if out == STDOUT:
        log(counts)
        return
    answer = ImportAnswer(
        source=str(source),
        kind=form.name,
        file=str(out),
        rows=len(found.rows),
        left_out=found.left_out,
        notes=list(form.notes),
    )
    print_result(answer, f"{out}: {counts}\nin the search file: search: {{warm_start: {out}}}")


def _names(given: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in given:
        theirs, equals, ours = text.partition("=")
        if not equals or not theirs:
            rule, fix = "THEIRS=FIELD, or THEIRS= for a parameter to leave out", "--name TP=tensor_parallel"
            raise InputError.of("usage", f"is {text!r}", key="--name", value=text, rule=rule, fix=fix)
        names[theirs] = ours
    return names
