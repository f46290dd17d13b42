"""Table of a search's trials, one row per trial, as tidy CSV and parquet: all fields of dashboards/columns.py. Pure but
for pyarrow.

Names and units are those of `--json`. An unknown value is None in a row and an empty cell in a table.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.columns import FIELDS, FieldType
from orchestrator.records.observations import IN_FLIGHT
from search_spaces.tables.csv_rows import escape_cell
from trials.ledger.events import SearchRecord
from trials.trial import Trial, utc_text

Row = dict[str, Any]


@dataclass(frozen=True)
class ExportResult:
    """The content of an exported file, the number of trials in it, and the number of trials left out, by reason."""

    content: bytes
    rows: int
    left_out: Mapping[str, int]


COLUMNS = tuple(FIELDS)
TIMES = tuple(name for name, field in FIELDS.items() if field.type is FieldType.TIME)
"""UTC seconds since the epoch in a row, RFC 3339 in CSV, a timestamp in parquet."""


def trial_rows(search: SearchRecord) -> list[Row]:
    """One row of COLUMNS per trial, in the order of proposal, including trials in flight.

    Times and measurements of a retried trial are those of its last attempt; node-hours are summed over all.
    """
    return [_row(search, trial) for trial in search.trials]


def ended_rows(search: SearchRecord) -> tuple[list[tuple[Trial, Row]], Mapping[str, int]]:
    """The ended trials, each with its row, and the number of the others by the reason for leaving them out."""
    ended = [(trial, _row(search, trial)) for trial in search.trials if trial.state.is_ended]
    in_flight = len(search.trials) - len(ended)
    return ended, {IN_FLIGHT: in_flight} if in_flight else {}


def csv_text(rows: Iterable[Row]) -> str:
    """Tidy CSV: a header, then one line per trial; flags and nodes are joined by blanks, booleans are 0 and 1."""
    return csv_of(COLUMNS, ([_cell(name, row[name]) for name in COLUMNS] for row in rows))


def csv_of(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """CSV of a header and these cells."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([names, *rows])
    return out.getvalue()


def parquet_bytes(rows: Iterable[Row]) -> bytes:
    """The same rows as a parquet file; a column keeps its type even if it is empty."""
    import pyarrow
    from pyarrow import parquet

    types = {FieldType.TEXT: pyarrow.string(), FieldType.SWITCH: pyarrow.bool_(), FieldType.WHOLE: pyarrow.int64()}
    types |= {FieldType.NUMBER: pyarrow.float64(), FieldType.TIME: pyarrow.timestamp("us", tz="UTC")}
    schema = pyarrow.schema([(name, types[field.type]) for name, field in FIELDS.items()])
    plain = [{name: _micros(value) if name in TIMES else value for name, value in row.items()} for row in rows]
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(plain, schema=schema), out)
    return out.getvalue()


def _row(search: SearchRecord, trial: Trial) -> Row:
    return {name: field.value(trial, search) for name, field in FIELDS.items()}


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in TIMES:
        return utc_text(value)
    if isinstance(value, bool):
        return str(int(value))
    return escape_cell(value) if isinstance(value, str) else repr(value)


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)
