"""The results of a search: `parlay best`, `report`, `export`; and those of other programs: `import`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl, SearchFilePath, SearchId
from orchestrator.cli.output import STDOUT, Exit, log, print_result, print_table, require_single_stdout
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.records.output_file import write_new
from search_spaces.errors import InputError, Problem
from trials.files.text import plural


def best(search: SearchId = None, ledger: LedgerUrl = None) -> None:
    from dashboards import trial_text
    from dashboards.cost_text import describe_search_cost
    from dashboards.report.sentences import describe_comparison
    from dashboards.search_view import SearchView
    from dashboards.terminal.headline import best_layout_line, describe_incomplete
    from orchestrator.cli.search_summary import launch_lines
    from orchestrator.records.lookup import find_search, missing_recipe_reason
    from orchestrator.records.summary import best_of, result_line
    from trials.analysis.pareto import trade_offs

    found = find_search(search, ledger)
    spec = found.spec
    view = SearchView.of(found.record, time.time())
    ranking, verdict = view.ranking, view.verdict
    data = best_of(found.record, spec, found.folder)
    if data is None:
        message = f"search {found.record.search_id}: {result_line(found.record, spec)}"
        fix = f"parlay status {found.folder.cli_name} shows what became of it"
        raise Exit(ExitCode.NO_MEASUREMENT, Problem("no_measurement", message, fix=fix))
    table = found.record.replayed_table
    lines = [
        None if table is None else trial_text.describe_replayed_table(table),
        None if verdict.is_complete else describe_incomplete(verdict),
        best_layout_line(verdict),
        describe_comparison(view),
        *trade_offs(ranking),
        trial_text.describe_step_time(data.time_s),
        trial_text.describe_node_sets(data.on_disjoint_nodes),
        trial_text.describe_fullest_rank(data.fullest_rank),
        trial_text.describe_slowest_rank(data.slowest_rank),
        trial_text.describe_training_rate(data.training_rate),
        describe_search_cost(data.cost),
        None if ranking.best is None else trial_text.describe_energy(ranking.best.measured),
        *map(trial_text.describe_flag, data.flags),
        f"recipe:  {data.recipe or missing_recipe_reason(found)}",
        *launch_lines(found.folder),
    ]
    print_result(data, "\n".join(filter(None, lines)))


def report(
    search: SearchId = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A new file; default: report.html in the search's folder, overwritten."),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    from dashboards.report.write import report_text, write_report
    from orchestrator.records.lookup import find_search
    from orchestrator.records.summary import ReportAnswer

    found = find_search(search, ledger)
    path = output or found.folder.report
    if output is None:
        write_report(found.record, found.folder, time.time())
    else:
        write_new(path, report_text(found.record, found.folder, time.time()), "--output")
    print_result(ReportAnswer(search_id=found.record.search_id, file=str(path)), str(path))


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
    if out != STDOUT:
        write_new(out, table, "--out")
    for note in form.notes:
        log(f"note: {note}")
    if out == STDOUT:
        print_table(table)
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
