"""Table of all layouts and of the runs of each: text and sort key of each cell. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.report.data import LayoutView, ReportData, TrialView
from dashboards.report.sentences import SHAPE_FIELDS, TIMES, duration, format_reason, step_time
from dashboards.text import printable
from dashboards.trial_text import UNKNOWN, format_short, format_short_interval, format_value
from search_spaces.layouts.layout import AXES, axis_of
from search_spaces.layouts.short_name import short_name
from trials.analysis.ranking import Objective
from trials.trial import TrialKind


@dataclass(frozen=True)
class Column:
    """Heading of a column. `sorts_down_first` where the largest value is the best. An axis is in the layout's name,
    too, and its column is not printed."""

    name: str
    is_number: bool
    sorts_down_first: bool = False
    is_axis: bool = False


@dataclass(frozen=True)
class Cell:
    """Cell of the table. `sort` is its sort key, or "" for unknown, which comes last in either order."""

    text: str
    sort: float | int | str = ""
    is_number: bool = False


@dataclass(frozen=True)
class RunRow:
    """Row of one run. `state` sets its colour: a trial state, or "stopped_early"."""

    trial: str
    kind: str
    state: str
    end: str
    cells: tuple[Cell, ...]
    remark: str | None
    excerpt: str | None


@dataclass(frozen=True)
class LayoutRow:
    """Row of one layout. `words` are the values of its axes by their keys, which the filter finds exactly."""

    name: str
    trial: str
    marks: tuple[str, ...]
    is_best: bool
    state: str
    cells: tuple[Cell, ...]
    words: str
    runs: tuple[RunRow, ...]


_SPEED = "tokens/s"
RUN_COLUMNS = (_SPEED, "step", "GiB", "queue", "node-hours")
"""Headings of a run's numbers."""


def table_columns(data: ReportData) -> list[Column]:
    """Columns: the layout, its measurements, its varying axes, its state, its cost."""
    ratio = [] if data.baseline_speed is None else [Column(f"{TIMES} baseline", True, sorts_down_first=True)]
    measured = [Column(name, is_number=True) for name in ("95 % interval", "step", "predicted step", "GiB")]
    axes = [Column(axis_of(name).heading, axis_of(name).is_number, is_axis=True) for name in _axes(data)]
    cost = [Column(name, is_number=True) for name in ("runs", "queue", "node-hours")]
    speed = Column(_SPEED, is_number=True, sorts_down_first=True)
    return [Column("layout", False), speed, *ratio, *measured, Column("state", False), *axes, *cost]


def sorted_column(data: ReportData) -> str | None:
    """Name of the column by which the rows are sorted, largest first; None where that is another objective."""
    return _SPEED if data.objective is Objective.TOKENS_PER_SEC and data.layouts else None


def table_rows(data: ReportData) -> list[LayoutRow]:
    """Rows in the order of `ReportData.tried`, with cells in the order of `table_columns`."""
    return [_row(tried, data) for tried in data.tried]


def filter_keys() -> dict[str, str]:
    """Keys of the axes by their labels: `tensor 8` is `tp8`."""
    return {axis.label.lower(): axis.key for axis in AXES.values()}


def _axes(data: ReportData) -> list[str]:
    return [*SHAPE_FIELDS, *(name for name in data.varying if name not in SHAPE_FIELDS)]


def _row(tried: LayoutView, data: ReportData) -> LayoutRow:
    view, name = tried.view, short_name(tried.layout, data.varying)
    values = tried.layout.canonical().axis_values
    interval = None if view.metrics is None else format_short_interval(view.metrics)
    ratio = [_number(tried.ratio, f"{tried.ratio:.2f}" if tried.ratio else UNKNOWN)]
    is_best = data.best is not None and tried.layout.key == data.best.layout.key
    return LayoutRow(
        name=printable(name),
        trial=view.trial,
        marks=_marks(tried, data, is_best),
        is_best=is_best,
        state=_state(view),
        cells=(
            _speed(view, data),
            *([] if data.baseline_speed is None else ratio),
            Cell(interval or "", is_number=True),
            _number(view.step_time_s, step_time(view.step_time_s)),
            _number(view.predicted_step_time_s, step_time(view.predicted_step_time_s)),
            _number(view.peak_memory_gib, format_short(view.peak_memory_gib)),
            Cell(_end_text(view), format_reason(view)),
            *(_axis_cell(name, values.get(name)) for name in _axes(data)),
            _number(len(tried.runs), str(len(tried.runs))),
            *_cost([run.queue_wait_s for run in tried.runs], sum(run.node_hours for run in tried.runs)),
        ),
        words=" ".join(part for part in tried.layout.key_parts.values() if part),
        runs=tuple(_run_row(run, data) for run in tried.runs),
    )


def _run_row(run: TrialView, data: ReportData) -> RunRow:
    return RunRow(
        trial=run.trial,
        kind="repeat" if run.kind is TrialKind.REPEAT else "",
        state=_state(run),
        end=_end_text(run),
        cells=(
            _speed(run, data),
            _number(run.step_time_s, step_time(run.step_time_s)),
            _number(run.peak_memory_gib, format_short(run.peak_memory_gib)),
            *_cost([run.queue_wait_s], run.node_hours),
        ),
        remark=None if run.remark is None else printable(run.remark),
        excerpt=run.excerpt,
    )


def _cost(waits_s: Sequence[float | None], node_hours: float) -> tuple[Cell, Cell]:
    """Longest time in the queue, and node-hours."""
    waited = max((wait for wait in waits_s if wait is not None), default=None)
    return _number(waited, duration(waited)), _number(node_hours, f"{node_hours:.3g}")


def _axis_cell(name: str, value: object) -> Cell:
    return Cell(format_value(value), _sort_key(value), axis_of(name).is_number)


def _state(trial: TrialView) -> str:
    """State for the row's colour; a trial that stopped early has not failed."""
    return "stopped_early" if trial.has_stopped_early else str(trial.state)


def _sort_key(value: object) -> int | str:
    """Numeric key for booleans and integers, else the text."""
    return int(value) if isinstance(value, (bool, int)) else str(value or "")


def _number(value: float | None, text: str) -> Cell:
    return Cell(text, "" if value is None else value, is_number=True)


def _speed(trial: TrialView, data: ReportData) -> Cell:
    """Tokens per second, or the upper bound of a trial that stopped early or ran out of time, where the objective is
    tokens per second."""
    if trial.tokens_per_sec:
        return _number(trial.tokens_per_sec, format_short(trial.tokens_per_sec))
    most = trial.speed_at_most if data.objective is Objective.TOKENS_PER_SEC else None
    return Cell(UNKNOWN if most is None else f"\N{LESS-THAN OR EQUAL TO} {format_short(most)}", "", is_number=True)


def _marks(tried: LayoutView, data: ReportData, is_best: bool) -> tuple[str, ...]:
    holds = {
        data.verdict.best_word: is_best,
        "tie": data.best is not None and tried.view.trial in data.best.ties,
        "baseline": tried.layout.key == data.baseline_key,
        "flag": bool(tried.view.flags) and tried.view.tokens_per_sec is not None,
    }
    return tuple(mark for mark, is_so in holds.items() if is_so)


def _end_text(trial: TrialView) -> str:
    words = [format_reason(trial)]
    if trial.num_attempts > 1:
        words.append(f"{trial.num_attempts} attempts")
    return ", ".join([*words, *(flag.replace("_", " ") for flag in trial.flags)])
