"""Table of all trials: text and sort key of each cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.report.data import ReportData, TrialView
from dashboards.report.sentences import SHAPE_FIELDS, duration, format_reason, format_value
from dashboards.text import printable
from dashboards.trial_text import UNKNOWN, format_number
from search_spaces.layouts.layout import axis_of
from trials.trial import TrialKind


@dataclass(frozen=True)
class Column:
    name: str
    is_number: bool


@dataclass(frozen=True)
class Cell:
    """Cell of the table. `sort` is its sort key, or "" for unknown, which comes last in either order."""

    text: str
    sort: float | int | str = ""
    is_number: bool = False


@dataclass(frozen=True)
class Row:
    """Row of one trial. `state` sets its colour: a trial state, or "stopped_early"."""

    cells: tuple[Cell, ...]
    marks: tuple[str, ...]
    is_best: bool
    state: str
    remark: str | None
    excerpt: str | None


def table_columns(data: ReportData) -> list[Column]:
    """Columns: trial, state, measurements, layout fields, cost."""
    fields = [Column(axis_of(name).heading, is_number=axis_of(name).is_number) for name in _fields(data)]
    measured = [Column(name, is_number=True) for name in ("tokens/s", "step", "predicted step", "GiB")]
    cost = [Column(name, is_number=True) for name in ("queue", "node-hours")]
    return [Column("trial", is_number=False), Column("state", is_number=False), *measured, *fields, *cost]


def table_rows(data: ReportData) -> list[Row]:
    """Rows in launch order, with cells in the order of `table_columns`."""
    fields = _fields(data)
    return [_row(trial, fields, data) for trial in data.trials]


def _fields(data: ReportData) -> list[str]:
    return [*SHAPE_FIELDS, *(name for name in data.varying if name not in SHAPE_FIELDS)]


def _row(trial: TrialView, fields: Sequence[str], data: ReportData) -> Row:
    layout = trial.layout.canonical().axis_values
    cells = [
        Cell(trial.trial, trial.trial),
        Cell(_end_text(trial), format_reason(trial)),
        _number(trial.tokens_per_sec, format_number(trial.tokens_per_sec))
        if trial.tokens_per_sec
        else _at_most(trial, data),
        _number(trial.step_time_s, duration(trial.step_time_s)),
        _number(trial.predicted_step_time_s, duration(trial.predicted_step_time_s)),
        _number(trial.peak_memory_gib, format_number(trial.peak_memory_gib, 3)),
        *(_field(name, layout.get(name)) for name in fields),
        _number(trial.queue_wait_s, duration(trial.queue_wait_s)),
        _number(trial.node_hours, f"{trial.node_hours:.3g}"),
    ]
    is_best = data.best is not None and trial.layout.key == data.best.layout.key
    remark = None if trial.remark is None else printable(trial.remark)
    return Row(tuple(cells), _marks(trial, data, is_best), is_best, _row_state(trial), remark, trial.excerpt)


def _field(name: str, value: object) -> Cell:
    return Cell(format_value(value), _sort_key(value), axis_of(name).is_number)


def _row_state(trial: TrialView) -> str:
    """State for the row's colour; a trial that stopped early has not failed."""
    return "stopped_early" if trial.has_stopped_early else str(trial.state)


def _sort_key(value: object) -> int | str:
    """Numeric key for booleans and integers, else the text."""
    return int(value) if isinstance(value, (bool, int)) else str(value or "")


def _number(value: float | None, text: str) -> Cell:
    return Cell(text, "" if value is None else value, is_number=True)


def _at_most(trial: TrialView, data: ReportData) -> Cell:
    """Upper bound of a trial that stopped early or ran out of time, where the objective is tokens per second."""
    most = trial.speed_at_most if data.objective.value == "tokens_per_sec" else None
    return Cell(UNKNOWN if most is None else f"\N{LESS-THAN OR EQUAL TO} {format_number(most)}", "", is_number=True)


def _marks(trial: TrialView, data: ReportData, is_best: bool) -> tuple[str, ...]:
    is_tie = data.best is not None and trial.trial in data.best.ties
    holds = {
        "best": is_best and data.best is not None and trial.trial == data.best.trial,
        "tie": is_tie,
        "repeat": trial.kind is TrialKind.REPEAT,
        "flag": bool(trial.flags) and trial.tokens_per_sec is not None,
    }
    return tuple(mark for mark, is_so in holds.items() if is_so)


def _end_text(trial: TrialView) -> str:
    words = [format_reason(trial)]
    if trial.num_attempts > 1:
        words.append(f"{trial.num_attempts} attempts")
    return ", ".join([*words, *(flag.replace("_", " ") for flag in trial.flags)])
