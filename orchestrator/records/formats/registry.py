"""Formats of results: those of other programs that are read as a measured table, and those that a search is written in.

One row a format; docs/exchange.md describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from orchestrator.config.answer import Answer
from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats import deephyper, deepspeed
from orchestrator.records.formats.optuna_study import optuna_study
from orchestrator.records.formats.reading import read_text
from orchestrator.records.formats.trial_table import ExportResult, csv_text, parquet_bytes, trial_rows
from orchestrator.records.observations import TableRows, measured_table, observed_trials
from search_spaces.errors import InputError, choice_fix
from search_spaces.tables.benchmark_problem import measured_on
from search_spaces.tables.measured_table import parse_table
from trials.ledger.events import SearchRecord


@dataclass(frozen=True)
class ResultsFormat:
    """A format of results: how a search is written in it, and how a file of it is read as rows of a measured table.

    `column` begins the name of a column by which a text of the format is known; a format without one is a folder.
    Reading takes the objective and the meaning of parameters where `has_parameters`. `package` is a library, and
    Parlay's extra with it, that writing needs. `notes` say what is inexact in rows that were read.
    """

    name: str
    file_name: str = ""
    write: Callable[[SearchRecord, SearchSpec], ExportResult] | None = None
    read: Callable[[Path, SearchSpec, str | None, Mapping[str, str]], TableRows] | None = None
    column: str | None = None
    has_parameters: bool = False
    is_text: bool = True
    package: str | None = None
    notes: tuple[str, ...] = ()


class ExportAnswer(Answer):
    """Printed by export. Exit code 3 where no trial has a result."""

    schema_: Literal["parlay.export/1"] = "parlay.export/1"
    search_id: str
    format: str
    file: str
    rows: int
    left_out: Mapping[str, int]
    """Number of trials by why they are not in the file: a failure reason, `in_flight`, `suspect` or `damaged`."""


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


def _measured(search: SearchRecord, spec: SearchSpec) -> ExportResult:
    observed = observed_trials(search, spec)
    return ExportResult(measured_table(observed, search).encode(), len(observed.rows), observed.left_out)


def _read_measured(source: Path, spec: SearchSpec, *_: object) -> TableRows:
    rows = parse_table(read_text(source), str(source))
    ours = measured_on(rows, spec.cluster)
    return TableRows(ours, {"other_machine": len(rows) - len(ours)} if len(ours) < len(rows) else {})


def _read_autotuning(source: Path, spec: SearchSpec, *_: object) -> TableRows:
    return deepspeed.read_autotuning(source, spec)


def _csv(search: SearchRecord, _: SearchSpec) -> ExportResult:
    rows = trial_rows(search)
    return ExportResult(csv_text(rows).encode(), len(rows), {})


def _parquet(search: SearchRecord, _: SearchSpec) -> ExportResult:
    rows = trial_rows(search)
    return ExportResult(parquet_bytes(rows), len(rows), {})


def _read_deephyper(source: Path, spec: SearchSpec, objective: str | None, names: Mapping[str, str]) -> TableRows:
    return deephyper.parse_results(read_text(source), str(source), spec, objective, names)


FORMATS = (
    ResultsFormat(
        *(deephyper.KIND, "results.csv", deephyper.deephyper_results, _read_deephyper),
        column=deephyper.PARAMETER,
        has_parameters=True,
    ),
    ResultsFormat("measured", "measured.csv", _measured, _read_measured, column="problem"),
    ResultsFormat(deepspeed.KIND, read=_read_autotuning, notes=(deepspeed.OVERSTATES,)),
    ResultsFormat("csv", "trials.csv", _csv),
    ResultsFormat("parquet", "trials.parquet", _parquet, is_text=False),
    ResultsFormat("optuna", "study.db", optuna_study, is_text=False, package="optuna"),
)


def written_format(name: str) -> ResultsFormat:
    """The format of this name that a search is written in. InputError for another, or if a package for it is not
    installed."""
    written = {form.name: form for form in FORMATS if form.write is not None}
    if name not in written:
        rule, fix = f"one of {', '.join(written)}", choice_fix(name, written)
        raise InputError.of("choice", f"is {name!r}", key="--format", value=name, rule=rule, fix=fix)
    package = written[name].package
    if package is not None and find_spec(package) is None:
        fix = f"pip install 'parlay[{package}]', or use another format"
        raise InputError.of("format", f"the package {package} is not installed", key="--format", value=name, fix=fix)
    return written[name]


def export_search(search: SearchRecord, spec: SearchSpec, form: ResultsFormat) -> ExportResult:
    """Export the search in this format; without rows if the format covers none of its trials."""
    assert form.write is not None
    return form.write(search, spec)


def read_results(
    source: Path, spec: SearchSpec, objective: str | None = None, names: Mapping[str, str] | None = None
) -> tuple[ResultsFormat, TableRows]:
    """Import the results in this file or folder as layouts of the search's model on its machine.

    `objective` names the objective of a results.csv; `names` maps its parameters to layout fields, or to "" to ignore
    one. InputError for an unknown format or invalid values.
    """
    form = _format_of(source)
    for option, value in (("--objective", objective), ("--name", names)):
        if value and not form.has_parameters:
            message = f"is for DeepHyper's results.csv, and {source} has the format {form.name}"
            raise InputError.of("usage", message, key=option, fix=f"leave {option} out, or name results.csv itself")
    assert form.read is not None
    return form, form.read(source, spec, objective, names or {})


def _format_of(source: Path) -> ResultsFormat:
    read = [form for form in FORMATS if form.read is not None]
    if source.is_dir():
        return next(form for form in read if form.column is None)
    header = next((line for line in read_text(source).splitlines() if line.strip() and not line.startswith("#")), "")
    columns = [name.strip().strip('"') for name in header.split(",")]
    for form in read:
        if form.column is not None and any(name.startswith(form.column) for name in columns):
            return form
    raise InputError.of(
        "file",
        "has no known format of results",
        file=str(source),
        rule="DeepHyper's results.csv has columns p:NAME and objective, a measured table has a column problem;"
        " DeepSpeed's autotuning results are a folder",
        fix="name one of these",
    )
