"""Columns of a search's trials and layouts: the one list of terminal, page, Markdown, CSV and parquet. Pure.

FIELDS are the values of a trial by their names in files and `--json`; COLUMNS are what people are shown of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, get_args, get_type_hints

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
from search_spaces.layouts.axis import Axis, Kind
from search_spaces.layouts.layout import AXES, DEGREES, axis_of
from search_spaces.layouts.short_name import short_name
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, in_objective_unit, known_value_of, upper_bound_of
from trials.ledger.events import SearchRecord
from trials.outcome_types import MeasuredMetrics
from trials.trial import Trial, TrialKind

TIMES = "\N{MULTIPLICATION SIGN}"
SPEED = "tokens/s"
STATE = "state"
SHAPE_FIELDS = (*DEGREES.values(), "micro_batch_size")
"""Fields of a layout that are always shown."""


class FieldType(Enum):
    """Type of a field's values. A TIME is in UTC seconds since the epoch."""

    TEXT = auto()
    SWITCH = auto()
    WHOLE = auto()
    NUMBER = auto()
    TIME = auto()


@dataclass(frozen=True)
class TrialField:
    """Value of a trial, None for unknown. Times and measurements are those of its last attempt."""

    type: FieldType
    value: Callable[[Trial, SearchRecord], Any]


def _fields() -> Iterator[tuple[str, TrialField]]:
    yield "search_id", TrialField(FieldType.TEXT, lambda trial, search: search.search_id)
    for name in ("trial", "kind", "state", "reason"):
        yield name, TrialField(FieldType.TEXT, _word_of_trial(name))
    yield "flags", TrialField(FieldType.TEXT, lambda trial, _: " ".join(trial.flags) or None)
    yield "layout_key", TrialField(FieldType.TEXT, lambda trial, _: trial.layout.key)
    for name, axis in AXES.items():
        yield name, TrialField(_axis_type(axis), _of_layout(name))
    for name in ("global_batch_size", "num_gpus"):
        yield name, TrialField(FieldType.WHOLE, _of_layout(name))
    for name, hint in get_type_hints(MeasuredMetrics).items():
        for kind, its_type in ((int, FieldType.WHOLE), (float, FieldType.NUMBER)):
            if kind in (hint, *get_args(hint)):
                yield name, TrialField(its_type, _of_outcome(name, its_type))
    objective = Objective.NODE_HOURS_PER_BILLION_TOKENS
    yield objective.value, TrialField(FieldType.NUMBER, lambda trial, _: objective_of(trial, objective))
    for name in ("step_time_s", "peak_memory_gib"):
        yield f"predicted_{name}", TrialField(FieldType.NUMBER, _of_prediction(name))
    yield "queue_wait_s", TrialField(FieldType.NUMBER, _of_attempt("queue_wait_s"))
    yield "duration_s", TrialField(FieldType.NUMBER, _duration_s)
    yield "node_hours", TrialField(FieldType.NUMBER, lambda trial, _: _sum(a.node_hours for a in trial.attempts))
    yield "num_attempts", TrialField(FieldType.WHOLE, lambda trial, _: len(trial.attempts))
    yield "job_id", TrialField(FieldType.TEXT, _of_attempt("job_id"))
    yield "nodes", TrialField(FieldType.TEXT, lambda trial, _: " ".join(_of_attempt("nodes")(trial, _) or ()) or None)
    yield "proposed_at", TrialField(FieldType.TIME, lambda trial, _: trial.proposed_at)
    for name in ("submitted_at", "started_at", "ended_at"):
        yield name, TrialField(FieldType.TIME, _of_attempt(name))


def _axis_type(axis: Axis) -> FieldType:
    return FieldType.WHOLE if axis.is_number else FieldType.SWITCH if axis.kind is Kind.SWITCH else FieldType.TEXT


_LARGEST = {FieldType.WHOLE: 2**53, FieldType.NUMBER: sys.float_info.max}


def _word_of_trial(name: str) -> Callable[..., Any]:
    return lambda trial, _: None if (word := getattr(trial, name)) is None else str(word)


def _of_layout(name: str) -> Callable[..., Any]:
    return lambda trial, _: getattr(trial.layout, name)


def _of_attempt(name: str) -> Callable[..., Any]:
    return lambda trial, _: getattr(trial.last_attempt, name, None)


def _duration_s(trial: Trial, _: SearchRecord) -> float | None:
    last = trial.last_attempt
    if last is None or last.started_at is None or last.ended_at is None:
        return None
    return max(0.0, last.ended_at - last.started_at)


def _of_outcome(name: str, its_type: FieldType) -> Callable[..., Any]:
    """Number of outcome.measured, also of a trial that was pruned; unknown where no column holds it."""

    def value(trial: Trial, _: SearchRecord) -> float | int | None:
        last = trial.last_attempt
        measured = None if last is None or last.outcome is None else last.outcome.measured
        return _number(getattr(measured, name, None), its_type)

    return value


def _of_prediction(name: str) -> Callable[..., Any]:
    return lambda trial, _: _number((trial.prediction or {}).get(name), FieldType.NUMBER)


def _number(value: Any, its_type: FieldType) -> float | int | None:
    if type(value) not in (int, float) or not abs(value) <= _LARGEST[its_type]:
        return None
    return int(value) if its_type is FieldType.WHOLE else float(value)


def _sum(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def objective_of(trial: Trial, objective: Objective) -> float | None:
    """The trial's value in the objective's unit; None without a measurement."""
    value = known_value_of(trial, objective)
    return None if value is None else in_objective_unit(value, objective)


FIELDS: Mapping[str, TrialField] = dict(_fields())
"""Fields of a trial by name, in the order of trials.csv."""


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


def _measured(name: str) -> Callable[[TrialOrLayout, SearchView], float | None]:
    """Value of a measurement, of a layout over its runs; None for rows without one."""
    return lambda row, view: getattr(row.measured, name, None)


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


def _half_width(row: TrialOrLayout, view: SearchView) -> float | None:
    speed, low, high = (_measured(f"tokens_per_sec{end}")(row, view) for end in ("", "_low", "_high"))
    return None if speed is None or low is None or high is None else (high - low) / (2 * speed)


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


def predicted(row: TrialOrLayout, view: SearchView, name: str = "step_time_s") -> float | None:
    """Prediction at the proposal of a trial, or of a layout's first run; None where there was none."""
    run = row.first if isinstance(row, RankedLayout) else row
    return FIELDS[f"predicted_{name}"].value(run, view.search)


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
    return max(_known("queue_wait_s", row, view), default=None)


def _node_hours(row: TrialOrLayout, view: SearchView) -> float:
    return math.fsum(_known("node_hours", row, view))


def _known(name: str, row: TrialOrLayout, view: SearchView) -> list[float]:
    """Values of a field of the row's runs that have it."""
    values = (FIELDS[name].value(run, view.search) for run in _runs(row, view))
    return [value for value in values if value is not None]


def _ratio_text(row: TrialOrLayout, view: SearchView) -> str:
    ratio = view.ratio(row)
    return "" if ratio is None else f"{ratio:.2f}"


_STEP_S, _GIB, _REAL = map(_measured, ("step_time_s", "peak_memory_gib", "real_tokens_per_sec"))


COLUMNS = (
    Column("layout", name_of, name_of, 0, is_number=False),
    Column(SPEED, _measured("tokens_per_sec"), _speed_text, 0, sorts_down_first=True),
    Column("real tokens/s", _REAL, _three_digits(_REAL), 4, sorts_down_first=True),
    Column(f"{TIMES} baseline", lambda row, view: view.ratio(row), _ratio_text, 4, sorts_down_first=True),
    Column("± %", _half_width, _interval_text, 1),
    Column("step s", _STEP_S, _three_digits(_STEP_S), 2),
    Column("predicted s", predicted, _three_digits(predicted)),
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
