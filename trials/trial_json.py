"""A trial and an attempt as JSON, and back. Rows, events, answers and views choose from these fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from search_spaces.decoding import decode
from search_spaces.layouts.layout import Layout
from trials.trial import Attempt, Outcome, Trial, utc_text

ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))
TRIAL_FIELDS = tuple(field.name for field in fields(Trial) if field.name != "attempts")

_TIMES = ("proposed_at", "submitted_at", "started_at", "ended_at", "unknown_since")


def trial_json(trial: Trial, *names: str) -> dict[str, Any]:
    """These fields of a trial, or all but its attempts, and its `layout_key`. Times are seconds since the epoch."""
    data = {name: _plain(getattr(trial, name)) for name in TRIAL_FIELDS} | {"layout_key": trial.layout.key}
    return {name: data[name] for name in names or data}


def attempt_json(attempt: Attempt, *names: str) -> dict[str, Any]:
    """These fields of an attempt, or all. Times are seconds since the epoch."""
    return {name: _plain(getattr(attempt, name)) for name in names or ATTEMPT_FIELDS}


def trial_of(data: Mapping[str, Any], attempts: Iterable[Attempt] = ()) -> Trial:
    """The trial with these fields and attempts; what `data` lacks has its default. ValueError as `decode`."""
    trial = decode(Trial, data)
    for attempt in attempts:
        trial = trial.with_attempt(attempt)
    return trial


def attempt_of(data: Mapping[str, Any]) -> Attempt:
    """The attempt with these fields; what `data` lacks has its default. ValueError as `decode`."""
    return decode(Attempt, data)


def with_times(data: Mapping[str, Any], change: Callable[[Any], Any] = utc_text) -> dict[str, Any]:
    """The same fields with the known times changed, by default to UTC text."""
    return {name: change(value) if name in _TIMES and value is not None else value for name, value in data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return list(value)
    return value.to_json() if isinstance(value, (Layout, Outcome)) else value
