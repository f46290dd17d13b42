"""Searches, trials, plans and forecasts as pandas data frames.

Columns have the names and units of `--json` and trials.csv; an unknown value is pandas.NA. Only this module imports
pandas; api.py names its types.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import pandas
from pandas.api.types import infer_dtype

from orchestrator.planning.forecast import ForecastAnswer
from orchestrator.planning.plan import Plan
from orchestrator.planning.plan_notes import plan_notes
from orchestrator.records.formats.trial_table import parquet_bytes, trial_rows
from orchestrator.records.summary import ListedSearch, searches_of
from search_spaces.cost_model.step_time import PARTS
from search_spaces.layouts.layout import NULLABLE
from search_spaces.search_space import SearchSpace
from trials.analysis.training_rate import TrainingRate
from trials.ledger.events import Event, SearchRecord
from trials.ledger.reader import SearchSummary

_EVENT_COLUMNS = ("seq", "fencing", "at", "kind", "trial", "attempt", "data")
_TYPES = {"floating": "Float64", "integer": "Int64", "boolean": "boolean", "string": "string"}
_NUMBERS = ("step_time_", "tokens_per_sec", "mfu", "time_s.")
"""Prefixes of numeric columns that may be empty."""


def trials_frame(search: SearchRecord) -> pandas.DataFrame:
    """One row per trial in the order of proposal, with the columns of trials.csv."""
    # Parquet carries the types of empty columns.
    content = io.BytesIO(parquet_bytes(trial_rows(search)))
    return pandas.read_parquet(content, dtype_backend="numpy_nullable")


def events_frame(events: Iterable[Event]) -> pandas.DataFrame:
    """One row per event: `at` is a UTC timestamp, `data` the event's data without trial and attempt."""
    frame = pandas.DataFrame([_event_row(event) for event in events], columns=list(_EVENT_COLUMNS))
    frame["at"] = pandas.to_datetime(frame["at"], unit="s", utc=True)
    return _typed(frame)


def searches_frame(searches: Iterable[SearchSummary]) -> pandas.DataFrame:
    """One row per search of the ledger, newest first."""
    rows = [row.plain() for row in searches_of(searches).searches]
    return _typed(pandas.DataFrame(rows, columns=list(ListedSearch.model_fields)))


def plan_frame(plan: Plan, space: SearchSpace, top: int | None = None) -> pandas.DataFrame:
    """One row for each of the first `top` layouts, or all, in predicted order.

    Columns are those of `layouts` in `parlay plan --json`: the layout's fields, `time_s.compute` and so on in seconds,
    `memory_gib` as a list with the GiB per rank of each stage. `attrs` holds `num_layouts`, `rejected` (layouts by
    rule), `expected_node_hours` and `notes`.
    """
    unknown = {
        "time_s": dict.fromkeys(PARTS),
        "training_rate": dict.fromkeys(field.name for field in fields(TrainingRate)),
    }
    rows = [_flat(row | {name: row[name] or empty for name, empty in unknown.items()}) for row in plan.first(top)]
    frame = _typed(pandas.DataFrame(rows))
    frame.attrs = {
        "num_layouts": len(space.layouts),
        "rejected": dict(space.rejected_by_rule),
        "expected_node_hours": asdict(plan.expected),
        "notes": plan_notes(plan),
    }
    return frame


def forecast_frame(report: ForecastAnswer) -> pandas.DataFrame:
    """One row per forecast, with the columns of `forecasts` in `parlay plan --nodes --json`; `attrs` holds `notes`."""
    frame = _typed(pandas.DataFrame([_flat(forecast.plain()) for forecast in report.forecasts]))
    frame.attrs = {"notes": list(report.notes)}
    return frame


def _event_row(event: Event) -> dict[str, Any]:
    rest = {name: value for name, value in event.data.items() if name not in ("trial", "attempt")}
    names = {name: event.data.get(name) for name in ("trial", "attempt")}
    return {"seq": event.seq, "fencing": event.fencing, "at": event.at, "kind": str(event.kind), **names, "data": rest}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a row: the layout's fields in its place, and the parts of a step's time as columns."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name == "layout":
            found |= value
        elif isinstance(value, Mapping):
            found |= {f"{name}.{part}": inner for part, inner in value.items()}
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Convert an enum value to plain text."""
    return str(value) if isinstance(value, str) else value


def _typed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Convert all columns to pandas' nullable types, including empty ones."""
    return frame.astype({name: _type(name, frame[name]) for name in frame.columns})


def _type(name: str, column: pandas.Series) -> Any:
    found = "integer" if name in NULLABLE else infer_dtype(column)
    if found == "empty":
        found = "floating" if name.startswith(_NUMBERS) else "string"
    return _TYPES.get(found, column.dtype)
