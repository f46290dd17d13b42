"""Formats of `parlay export`: their names, file names and writers."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.records.formats.export_result import ExportResult
    from trials.ledger.events import SearchRecord


class ExportFormat(StrEnum):
    MEASURED = "measured"
    DEEPHYPER = "deephyper"
    CSV = "csv"
    PARQUET = "parquet"
    OPTUNA = "optuna"

    @property
    def file_name(self) -> str:
        """Name of the file in the search's folder."""
        return _FILE_NAMES[self]

    @property
    def is_text(self) -> bool:
        return self not in (ExportFormat.PARQUET, ExportFormat.OPTUNA)


_FILE_NAMES = {
    ExportFormat.MEASURED: "measured.csv",
    ExportFormat.DEEPHYPER: "results.csv",
    ExportFormat.CSV: "trials.csv",
    ExportFormat.PARQUET: "trials.parquet",
    ExportFormat.OPTUNA: "study.db",
}


def export_search(search: SearchRecord, spec: SearchSpec, form: ExportFormat) -> ExportResult:
    """Export the search in this format; without rows if the format covers none of its trials.

    InputError if a package that the format needs is not installed.
    """
    if form is ExportFormat.MEASURED:
        return _measured(search, spec)
    if form is ExportFormat.DEEPHYPER:
        from orchestrator.records.formats.deephyper_export import deephyper_results

        return deephyper_results(search, spec.objectives)
    if form is ExportFormat.OPTUNA:
        from orchestrator.records.formats.optuna_export import optuna_study

        axes = spec.space.given_axes() if spec.candidates is None else {}
        return optuna_study(search, spec.objectives, axes)
    return _trials(search, form)


def _measured(search: SearchRecord, spec: SearchSpec) -> ExportResult:
    from orchestrator.records.formats.export_result import ExportResult
    from orchestrator.records.observations import measured_table, observed_trials

    observed = observed_trials(search, spec)
    return ExportResult(measured_table(observed, search).encode(), len(observed.rows), observed.left_out)


def _trials(search: SearchRecord, form: ExportFormat) -> ExportResult:
    from orchestrator.records.formats.export_result import ExportResult
    from orchestrator.records.formats.table_export import csv_text, parquet_bytes, trial_rows

    rows = trial_rows(search)
    return ExportResult(csv_text(rows).encode() if form is ExportFormat.CSV else parquet_bytes(rows), len(rows), {})
