"""Figures of the search: progress, prediction accuracy. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any

from dashboards.columns import predicted
from dashboards.report.figures.figure import LOG_FROM, Figure, axis, line, logarithmic, plot, scatter
from dashboards.report.sentences import describe_empty, format_trial, percent
from dashboards.search_view import SearchView
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import duration, format_short, format_trial_end
from trials.analysis.verdict import has_failed
from trials.files.text import plural
from trials.trial import Trial

_FEWEST_OF_RANGE = 3
_PROGRESS_NOTE = "A dot is one run, and the line the highest by then; a layout's speed is that over all its runs."


def search_figures(view: SearchView) -> list[Figure]:
    return [_progress(view), _predictions(view)]


def _progress(view: SearchView) -> Figure:
    """Measured speeds over time, and the highest so far."""
    unit, title = UNITS[view.objective], "Measured speed"
    measured = [t for t in view.search.trials if view.speed(t) is not None and view.ended_h(t) is not None]
    measured.sort(key=lambda t: _ended_h(view, t))
    if not measured:
        return Figure("progress", title, describe_empty(view))
    scale, hour_word = _time_scale(view)
    summary, best = f"{plural(len(measured), 'run')} measured", _best_speed(view)
    if view.best is not None and best is not None:
        summary += f"; {view.best.trial} reached {format_short(best)} {unit} over all its runs"
        first = next((t for t in measured if _speed(view, t) >= 0.98 * best), None)
        if first is not None:
            summary += f", and after {duration(_ended_h(view, first) * 3600)} a run had reached 98 % of that"
    return Figure(
        "progress",
        title,
        summary + ".",
        plot(
            list(_progress_traces(view, measured, scale)),
            xaxis=axis(f"{hour_word} since the search began", rangemode="tozero"),
            yaxis=axis(unit, rangemode="tozero"),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        height=380,
        note=_PROGRESS_NOTE
        + (" Crosses at the bottom are trials that failed." if any(map(has_failed, view.search.trials)) else ""),
    )


def _progress_traces(view: SearchView, measured: Sequence[Trial], scale: float) -> Iterator[dict]:
    """Traces of measured runs, the highest so far, failures, the baseline and the best layout."""
    x, speeds = [_ended_h(view, t) * scale for t in measured], [_speed(view, t) for t in measured]
    unit = UNITS[view.objective]
    texts = [
        f"{format_trial(t, view.varying)}<br>{format_short(speed)} {unit}"
        for t, speed in zip(measured, speeds, strict=True)
    ]
    ends = [0.0, max(_ended_h(view, t) for t in view.search.trials) * scale]
    yield scatter(x, speeds, texts, "measured", "@c1", opacity=0.55)
    highest = line([*x, ends[-1]], [*accumulate(speeds, max), max(speeds)], "highest so far", "@accent")
    yield highest | {"line": {"shape": "hv", "width": 3, "color": "@accent"}}
    yield from _failure_crosses(view, scale)
    dotted = {"dash": "dot", "width": 1.5}
    if view.baseline_speed is not None:
        yield line(ends, [view.baseline_speed] * 2, "baseline", "@ink", line=dotted)
    if view.best is not None and not view.is_baseline(view.best):
        name = f"{view.verdict.best_word}: {view.best.trial}"
        yield line(ends, [_best_speed(view)] * 2, name, "@c2", line=dotted)


def _ended_h(view: SearchView, trial: Trial) -> float:
    return view.ended_h(trial) or 0.0


def _speed(view: SearchView, trial: Trial) -> float:
    return view.speed(trial) or 0.0


def _best_speed(view: SearchView) -> float | None:
    """Speed of the best layout over all its runs."""
    return None if view.best is None else view.speed(view.best)


def _failure_crosses(view: SearchView, scale: float) -> Iterator[dict]:
    failed = [t for t in view.search.trials if has_failed(t) and view.ended_h(t) is not None]
    if failed:
        texts = [f"{format_trial(t, view.varying)}<br>{format_trial_end(t)}" for t in failed]
        x = [_ended_h(view, t) * scale for t in failed]
        cross = {"size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": "@c2"}}
        yield scatter(x, [0] * len(failed), texts, "failed", "@muted", **cross) | {"cliponaxis": False}


def _predictions(view: SearchView) -> Figure:
    """Predicted against measured step time and memory."""
    title = "Predicted and measured"
    times, peaks = (_rows(view, name) for name in ("step_time_s", "peak_memory_gib"))
    both = (
        _PredictionPanel(1, "time", "step time", "s", "@c1", view.varying, times),
        _PredictionPanel(2, "memory", "peak memory", "GiB", "@c3", view.varying, peaks),
    )
    known = [panel for panel in both if panel.rows]
    if not known:
        return Figure("predictions", title, "No measured trial has a prediction.")
    return Figure(
        "predictions",
        title,
        f"Median error of the predictions: {' and '.join(panel.describe_error for panel in known)}.",
        plot(
            [trace for panel in known for trace in panel.traces()],
            grid={"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.2},
            **{name: settings for panel in known for name, settings in panel.axes().items()},
        ),
        height=360,
        note="Each prediction was made when the trial was proposed. Points on the dotted line were predicted exactly.",
    )


def _rows(view: SearchView, name: str) -> list[tuple[Trial, float, float]]:
    """Measured trials with the prediction and the measurement of this value."""
    measured = [(t, predicted(t, view, name), getattr(t.measured, name)) for t in view.search.trials if t.measured]
    return [(t, before, after) for t, before, after in measured if before and after]


def _median_error(rows: Sequence[tuple[Trial, float, float]]) -> str:
    return percent(math.expm1(median(abs(math.log(p / m)) for _, p, m in rows)))


@dataclass(frozen=True)
class _PredictionPanel:
    """Panel of the figure, left (1) or right (2): trials with predicted and measured values."""

    place: int
    what: str
    name: str
    unit: str
    color: str
    varying: Sequence[str]
    rows: Sequence[tuple[Trial, float, float]]

    @property
    def describe_error(self) -> str:
        ranges = "".join(f", {words}" for words in self._errors_by_range()).replace(",", ";", 1)
        return f"{_median_error(self.rows)} in {self.what} ({plural(len(self.rows), 'trial')}{ranges})"

    def _errors_by_range(self) -> Iterator[str]:
        """Median error of each third of the measured values, where a third has a few."""
        ordered, third = sorted(self.rows, key=lambda row: row[2]), len(self.rows) // 3
        if third < _FEWEST_OF_RANGE:
            return
        for rows in (ordered[:third], ordered[third:-third], ordered[-third:]):
            low, high = format_short(rows[0][2]), format_short(rows[-1][2])
            yield f"{_median_error(rows)} from {low} to {high} {self.unit}"

    def traces(self) -> Iterator[dict]:
        """Points of the trials, and the line of exact predictions."""
        low, high = self._range()
        which = {"xaxis": f"x{self.place}", "yaxis": f"y{self.place}", "showlegend": False}
        yield line([low, high], [low, high], "equal", "@muted", line={"dash": "dot", "width": 1.5}) | which
        text = [self._tooltip(*row) for row in self.rows]
        predicted, measured = [p for _, p, _ in self.rows], [m for _, _, m in self.rows]
        yield scatter(measured, predicted, text, self.what, self.color, opacity=0.8) | which

    def _tooltip(self, trial: Trial, predicted: float, measured: float) -> str:
        values = f"predicted {format_short(predicted)} {self.unit}, measured {format_short(measured)} {self.unit}"
        return f"{format_trial(trial, self.varying)}<br>{values}"

    def axes(self) -> dict[str, Any]:
        low, high = self._range()
        kind = logarithmic(low, high) if high > LOG_FROM * low else {"type": "linear"}
        number = "" if self.place == 1 else str(self.place)
        return {
            f"xaxis{number}": axis(f"measured {self.name} ({self.unit})", **kind),
            f"yaxis{number}": axis(f"predicted ({self.unit})", **kind),
        }

    def _range(self) -> tuple[float, float]:
        return min(min(p, m) for _, p, m in self.rows) * 0.9, max(max(p, m) for _, p, m in self.rows) * 1.1


def _time_scale(view: SearchView) -> tuple[float, str]:
    """Factor from hours to the unit of the time axis, and the unit's name."""
    if view.elapsed_s >= 2 * 3600:
        return 1.0, "hours"
    return (60.0, "minutes") if view.elapsed_s >= 2 * 60 else (3600.0, "seconds")
