"""Columns of a search's layouts and trials: the one list that terminal, page and Markdown take theirs from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.search_view import SearchView
from dashboards.text import printable
from dashboards.trial_text import (
    duration,
    format_number,
    format_setting,
    format_three_digits,
    format_trial_end,
    format_trial_end_short,
)
from search_spaces.layouts.layout import DEGREES, axis_of
from search_spaces.layouts.short_name import short_name
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, upper_bound_of
from trials.outcome_types import MeasuredMetrics
from trials.trial import Trial, TrialKind

TIMES = "\N{MULTIPLICATION SIGN}"
SPEED = "tokens/s"
STATE = "state"
SHAPE_FIELDS = (*DEGREES.values(), "micro_batch_size")
"""Fields of a layout that are always shown."""


@dataclass(frozen=True)
class Column:
    """Column with the value by which rows are sorted, None for unknown, and its text.

    Of columns that do not fit a terminal the one with the highest `priority` is left out first; 0 always fits, and
    None is for pages only. `sorts_down_first` where the largest value is the best. An axis is in a layout's name, too.
    """

    name: str
    value: Callable[[TrialOrLayout, SearchView], float | str | None]
    text: Callable[[TrialOrLayout, SearchView], str]
    priority: int | None = None
    is_number: bool = True
    sorts_down_first: bool = False
    is_axis: bool = False


def _of(value: Callable[[MeasuredMetrics], float | None]) -> Callable[[TrialOrLayout, SearchView], float | None]:
    """Value of a measurement; None for rows without one."""
    return lambda row, view: None if row.measured is None else value(row.measured)


def _three_digits(value: Callable[[TrialOrLayout, SearchView], float | None]) -> Callable[..., str]:
    def text(row: TrialOrLayout, view: SearchView) -> str:
        return "" if (found := value(row, view)) is None else format_three_digits(found)

    return text


def name_of(row: TrialOrLayout, view: SearchView) -> str:
    """Short name of the layout, by the axes that vary."""
    return printable(short_name(row.layout, view.varying))


def _speed_text(row: TrialOrLayout, view: SearchView) -> str:
    """Tokens a second, or the most that a trial without a measurement reaches, where its end tells that."""
    if row.measured is not None:
        return format_number(row.measured.tokens_per_sec)
    most = upper_bound_of(row, Objective.TOKENS_PER_SEC) if isinstance(row, Trial) else None
    return "" if most is None else f"\N{LESS-THAN OR EQUAL TO} {format_number(most)}"


def _half_width(metrics: MeasuredMetrics) -> float | None:
    low, high = metrics.tokens_per_sec_low, metrics.tokens_per_sec_high
    return None if low is None or high is None else (high - low) / (2 * metrics.tokens_per_sec)


def _interval_text(row: TrialOrLayout, view: SearchView) -> str:
    """95 % interval relative to the throughput in percent; one number where symmetric."""
    metrics = row.measured
    if metrics is None or metrics.tokens_per_sec_low is None or metrics.tokens_per_sec_high is None:
        return ""
    ends = (metrics.tokens_per_sec_low, metrics.tokens_per_sec_high)
    below, above = (_percent(abs(end / metrics.tokens_per_sec - 1)) for end in ends)
    return f"±{below}" if below == above else f"-{below}/+{above}"


def _percent(share: float) -> str:
    """Whole percent, or one digit where that would be 0."""
    return f"{100 * share:.0f}" if share >= 0.0095 else f"{100 * share:.1g}"


def predicted(trial: TrialOrLayout, name: str) -> float | None:
    """Prediction at the proposal of a trial, or of a layout's first run; None where there was none."""
    run = trial.first if isinstance(trial, RankedLayout) else trial
    value = (run.prediction or {}).get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _state_value(row: TrialOrLayout, view: SearchView) -> str:
    return format_trial_end(row.first if isinstance(row, RankedLayout) else row)


def state_text(row: TrialOrLayout, view: SearchView) -> str:
    """State or the reason of the end, attempts and flags."""
    trial = row.first if isinstance(row, RankedLayout) else row
    words = [_unfit_word(row, view) or format_trial_end(trial)]
    if len(trial.attempts) > 1:
        words.append(f"{len(trial.attempts)} attempts")
    return ", ".join([*words, *(flag.replace("_", " ") for flag in row.flags)])


def short_state(row: TrialOrLayout, view: SearchView) -> str:
    """The same in at most 11 characters; of a layout with several runs their number, and that of all trials."""
    if isinstance(row, Trial):
        return format_trial_end_short(row)
    several = len(view.runs_of(row)) > 1
    return _unfit_word(row, view) or (f"{_runs_text(row, view)} runs" if several else str(row.first.state))


def _unfit_word(row: TrialOrLayout, view: SearchView) -> str | None:
    return "too full" if isinstance(row, RankedLayout) and not view.ranking.has_headroom(row) else None


def _runs(row: TrialOrLayout, view: SearchView) -> Sequence[Trial]:
    """The trial itself, or all trials of the layout."""
    return view.runs_of(row) if isinstance(row, RankedLayout) else [row]


def _runs_text(row: TrialOrLayout, view: SearchView) -> str:
    """Number of runs: of a layout those measured, and of how many trials where others failed."""
    num_trials = len(_runs(row, view))
    num_measured = len(row.runs) if isinstance(row, RankedLayout) else num_trials
    return f"{num_measured}" if num_measured == num_trials else f"{num_measured} of {num_trials}"


def _queue_s(row: TrialOrLayout, view: SearchView) -> float | None:
    """Longest time in the queue."""
    waits = [run.last_attempt.queue_wait_s for run in _runs(row, view) if run.last_attempt is not None]
    return max((wait for wait in waits if wait is not None), default=None)


def _node_hours(row: TrialOrLayout, view: SearchView) -> float:
    return sum(attempt.node_hours or 0.0 for run in _runs(row, view) for attempt in run.attempts)


def _ratio_text(row: TrialOrLayout, view: SearchView) -> str:
    ratio = view.ratio(row)
    return "" if ratio is None else f"{ratio:.2f}"


_STEP_S = _of(lambda metrics: metrics.step_time_s)
_GIB = _of(lambda metrics: metrics.peak_memory_gib)


def _predicted_s(row: TrialOrLayout, view: SearchView) -> float | None:
    return predicted(row, "step_time_s")


COLUMNS = (
    Column("layout", name_of, name_of, 0, is_number=False),
    Column(SPEED, _of(lambda metrics: metrics.tokens_per_sec), _speed_text, 0, sorts_down_first=True),
    Column(f"{TIMES} baseline", lambda row, view: view.ratio(row), _ratio_text, 4, sorts_down_first=True),
    Column("± %", _of(_half_width), _interval_text, 1),
    Column("step s", _STEP_S, _three_digits(_STEP_S), 2),
    Column("predicted s", _predicted_s, _three_digits(_predicted_s)),
    Column("GiB", _GIB, _three_digits(_GIB), 3),
    Column(STATE, _state_value, state_text, 0, is_number=False),
    Column("runs", lambda row, view: len(_runs(row, view)), _runs_text),
    Column("queue", _queue_s, lambda row, view: duration(_queue_s(row, view))),
    Column("node-hours", _node_hours, lambda row, view: f"{_node_hours(row, view):.3g}", 5),
)


def column(name: str) -> Column:
    return next(each for each in COLUMNS if each.name == name)


def axis_columns(view: SearchView) -> Iterator[Column]:
    """A column for each field that is always shown or varies."""
    for name in (*SHAPE_FIELDS, *(name for name in view.varying if name not in SHAPE_FIELDS)):
        yield _axis_column(name)


def _axis_column(name: str) -> Column:
    def value(row: TrialOrLayout, view: SearchView) -> Any:
        found = row.layout.canonical().axis_values.get(name)
        return int(found) if isinstance(found, (bool, int)) else found

    def text(row: TrialOrLayout, view: SearchView) -> str:
        return format_setting(row.layout.canonical().axis_values.get(name))

    return Column(axis_of(name).heading, value, text, is_number=axis_of(name).is_number, is_axis=True)


MARKS = {"best": "*", "tie": "=", "baseline": "b", "repeat": "r", "flag": "!"}
"""Signs of the marks in a terminal."""


def marks_of(row: TrialOrLayout, view: SearchView) -> Iterator[str]:
    """Marks of a row, keys of `MARKS`."""
    holds = {
        "best": row is view.best,
        "tie": row in view.ranking.ties,
        "baseline": view.is_baseline(row),
        "repeat": isinstance(row, Trial) and row.kind is TrialKind.REPEAT,
        "flag": row.measured is not None and bool(row.flags),
    }
    yield from (mark for mark, is_so in holds.items() if is_so)
