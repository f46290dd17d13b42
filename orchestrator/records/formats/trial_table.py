"""Table of a search's trials, one row per trial, as tidy CSV and parquet. Pure but for pyarrow.

Names and units are those of `--json`. An unknown value is None in a row and an empty cell in a table.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from orchestrator.records.observations import IN_FLIGHT, seconds_between
from search_spaces.decoding import encode
from search_spaces.layouts.layout import LAYOUT_FIELDS, NULLABLE, Layout
from search_spaces.tables.csv_rows import escape_cell
from trials.analysis.ranking import Objective, in_objective_unit, known_value_of
from trials.ledger.events import SearchRecord
from trials.outcome_types import MeasuredMetrics
from trials.trial import Attempt, Trial, utc_text

Row = dict[str, Any]


@dataclass(frozen=True)
class ExportResult:
    """The content of an exported file, the number of trials in it, and the number of trials left out, by reason."""

    content: bytes
    rows: int
    left_out: Mapping[str, int]


_MEASURED_TYPES: Mapping[str, type] = {
    name: kind
    for name, hint in get_type_hints(MeasuredMetrics).items()
    for kind in (int, float)
    if kind in (hint, *get_args(hint))
}
"""Scalar fields of outcome.measured."""
TIMES = ("proposed_at", "submitted_at", "started_at", "ended_at")
"""UTC seconds since the epoch in a row, RFC 3339 in CSV, a timestamp in parquet."""
COLUMNS = (
    *("search_id", "trial", "kind", "state", "reason", "flags", "layout_key"),
    *LAYOUT_FIELDS,
    *("global_batch_size", "num_gpus"),
    *_MEASURED_TYPES,
    *("node_hours_per_billion_tokens", "predicted_step_time_s", "predicted_peak_memory_gib"),
    *("queue_wait_s", "duration_s", "node_hours", "num_attempts", "job_id", "nodes"),
    *TIMES,
)

_WHOLE = {name for name, kind in _MEASURED_TYPES.items() if kind is int}
_WHOLE |= {"global_batch_size", "num_gpus", "num_attempts", *NULLABLE}
_MOST_WHOLE = 2**53
_WORDS = {"search_id", "trial", "kind", "state", "reason", "flags", "layout_key", "job_id", "nodes"}


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

    types = {"text": pyarrow.string(), "switch": pyarrow.bool_(), "whole": pyarrow.int64()}
    types |= {"number": pyarrow.float64(), "time": pyarrow.timestamp("us", tz="UTC")}
    schema = pyarrow.schema([(name, types[_kind(name)]) for name in COLUMNS])
    plain = [{name: _micros(value) if name in TIMES else value for name, value in row.items()} for row in rows]
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(plain, schema=schema), out)
    return out.getvalue()


def objective_of(trial: Trial, objective: Objective) -> float | None:
    """The trial's value in the objective's unit; None without a measurement."""
    value = known_value_of(trial, objective)
    return None if value is None else in_objective_unit(value, objective)


def _row(search: SearchRecord, trial: Trial) -> Row:
    layout, last = trial.layout, trial.last_attempt
    outcome = None if last is None else last.outcome
    measured = {} if outcome is None or outcome.measured is None else outcome.measured.to_json()
    prediction = trial.prediction or {}
    return {
        "search_id": search.search_id,
        **encode(trial, "trial", "kind", "state", "reason", "layout_key"),
        "proposed_at": trial.proposed_at,
        "flags": " ".join(trial.flags) or None,
        **layout.to_json(),
        "global_batch_size": layout.global_batch_size,
        "num_gpus": layout.num_gpus,
        **{name: _known(name, measured) for name in _MEASURED_TYPES},
        "node_hours_per_billion_tokens": objective_of(trial, Objective.NODE_HOURS_PER_BILLION_TOKENS),
        "predicted_step_time_s": _known("step_time_s", prediction),
        "predicted_peak_memory_gib": _known("peak_memory_gib", prediction),
        **_attempt_columns(trial.attempts),
    }


def _attempt_columns(attempts: tuple[Attempt, ...]) -> Row:
    last = attempts[-1] if attempts else None
    times = {name: None if last is None else getattr(last, name) for name in TIMES[1:]}
    known = [attempt.node_hours for attempt in attempts if attempt.node_hours is not None]
    return {
        "queue_wait_s": seconds_between(times["submitted_at"], times["started_at"]),
        "duration_s": seconds_between(times["started_at"], times["ended_at"]),
        "node_hours": math.fsum(known) if known else None,
        "num_attempts": len(attempts),
        "job_id": None if last is None else last.job_id,
        "nodes": " ".join(last.nodes) or None if last is not None else None,
        **times,
    }


def _known(name: str, values: Mapping[str, Any]) -> float | int | None:
    """The number of this name with its column's type; None if it is unknown."""
    value: Any = values.get(name)
    most = _MOST_WHOLE if name in _WHOLE else sys.float_info.max
    if type(value) not in (int, float) or not abs(value) <= most:
        return None
    return int(value) if name in _WHOLE else float(value)


def _kind(name: str) -> str:
    if name in TIMES:
        return "time"
    default = getattr(Layout(), name, None) if name in LAYOUT_FIELDS else None
    if name in _WORDS or isinstance(default, str):
        return "text"
    if isinstance(default, bool):
        return "switch"
    return "whole" if name in _WHOLE or isinstance(default, int) else "number"


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
