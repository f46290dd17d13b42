"""Figures of the search: progress, failures, prediction accuracy. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import median
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.explanation import describe_pattern
from dashboards.report.figures.figure import LOG_FROM, Figure, axis, line, logarithmic, plot, scatter
from dashboards.report.sentences import describe_empty, duration, format_reason, format_trial, percent
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_short, format_value
from search_spaces.layouts.layout import axis_of
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.trial import FailureReason

_FEWEST_OF_RANGE = 3
_PROGRESS_NOTE = "A dot is one run, and the line the highest by then; a layout's speed is that over all its runs."


def search_figures(data: ReportData) -> list[Figure]:
    return [_progress(data), _failures(data), _predictions(data)]


def _progress(data: ReportData) -> Figure:
    """Measured speeds over time, and the highest so far."""
    unit, title = UNITS[data.objective], "Measured speed"
    measured = sorted((t for t in data.measured if t.ended_h is not None), key=lambda t: t.ended_h or 0.0)
    if not measured:
        return Figure("progress", title, describe_empty(data))
    scale, hour_word = _time_scale(data)
    summary, best = f"{plural(len(measured), 'run')} measured", _best_speed(data)
    if data.best is not None and best is not None:
        summary += f"; {data.best.trial} reached {format_short(best)} {unit} over all its runs"
        first = next((t for t in measured if t.speed is not None and t.speed >= 0.98 * best), None)
        summary += f", and after {duration(_ended_h(first) * 3600)} a run had reached 98 % of that" if first else ""
    return Figure(
        "progress",
        title,
        summary + ".",
        plot(
            list(_progress_traces(data, measured, scale)),
            xaxis=axis(f"{hour_word} since the search began", rangemode="tozero"),
            yaxis=axis(unit, rangemode="tozero"),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        height=380,
        note=_PROGRESS_NOTE
        + (" Crosses at the bottom are trials that failed." if any(t.has_failed for t in data.trials) else ""),
    )


def _progress_traces(data: ReportData, measured: Sequence[TrialView], scale: float) -> Iterator[dict]:
    """Traces of measured runs, the highest so far, failures, the baseline and the best layout."""
    texts = [f"{format_trial(t, data.varying)}<br>{format_short(t.speed)} {UNITS[data.objective]}" for t in measured]
    x, speeds = [_ended_h(t) * scale for t in measured], [t.speed or 0.0 for t in measured]
    ends = [0.0, max(map(_ended_h, data.trials)) * scale]
    yield scatter(x, speeds, texts, "measured", "@c1", opacity=0.55)
    highest = line([*x, ends[-1]], [*accumulate(speeds, max), max(speeds)], "highest so far", "@accent")
    yield highest | {"line": {"shape": "hv", "width": 3, "color": "@accent"}}
    yield from _failure_crosses(data, scale)
    dotted = {"dash": "dot", "width": 1.5}
    if data.baseline_speed is not None:
        yield line(ends, [data.baseline_speed] * 2, "baseline", "@ink", line=dotted)
    if data.best is not None and data.best.layout.key != data.baseline_key:
        name = f"{data.verdict.best_word}: {data.best.trial}"
        yield line(ends, [_best_speed(data)] * 2, name, "@c2", line=dotted)


def _ended_h(trial: TrialView) -> float:
    return trial.ended_h or 0.0


def _best_speed(data: ReportData) -> float | None:
    """Speed of the best layout over all its runs."""
    return next((t.speed for t in data.layouts if data.best is not None and t.trial == data.best.trial), None)


def _failure_crosses(data: ReportData, scale: float) -> Iterator[dict]:
    failed = [t for t in data.trials if t.has_failed and t.ended_h is not None]
    if failed:
        texts = [f"{format_trial(t, data.varying)}<br>{format_reason(t)}" for t in failed]
        x = [_ended_h(t) * scale for t in failed]
        cross = {"size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": "@c2"}}
        yield scatter(x, [0] * len(failed), texts, "failed", "@muted", **cross) | {"cliponaxis": False}


def _failures(data: ReportData) -> Figure:
    """Layouts by the values of the axis that tells most of a failure: those that ran, and that failed by reason."""
    title, counts = "Failures", _failure_counts(data)
    if not data.failure_patterns:
        words = " No axis value sets the layouts that failed for a reason apart from those that ran."
        return Figure("failures", title, counts + (words if any(t.has_failed for t in data.trials) else ""))
    name = data.failure_patterns[0].condition.axis
    failed: dict[FailureReason | None, Counter[Any]] = defaultdict(Counter)
    ran: Counter[Any] = Counter()
    for tried in data.tried:
        value = tried.layout.canonical().axis_values.get(name)
        if tried.view.has_failed:
            failed[tried.view.reason][value] += 1
        elif tried.view.metrics is not None and not tried.view.has_stopped_early:
            ran[value] += 1
    values = sorted({*ran, *chain(*failed.values())}, key=lambda value: (str(type(value)), value))
    texts = [format_value(value) for value in values]
    reasons = sorted(failed, key=lambda reason: -failed[reason].total())
    bars = [("ran", ran, "@c1")]
    bars += [(policy_of(reason).label, failed[reason], f"@{policy_of(reason).color}") for reason in reasons]
    told = {pattern.reason for pattern in data.failure_patterns}
    others = [f"{failed[r].total()} {policy_of(r).label}" for r in reasons if r not in told]
    return Figure(
        "failures",
        title,
        " ".join([counts, *map(describe_pattern, data.failure_patterns)])
        + (f" No axis value explains the rest: {', '.join(others)}." if others else ""),
        plot(
            [
                {"type": "bar", "name": word, "x": texts, "y": [counts[v] for v in values], "marker": {"color": color}}
                | {"hovertemplate": "%{y} %{fullData.name}<extra></extra>"}
                for word, counts, color in bars
            ],
            barmode="stack",
            xaxis=axis(axis_of(name).heading, type="category"),
            yaxis=axis("layouts", rangemode="tozero"),
            showlegend=True,
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
    )


def _failure_counts(data: ReportData) -> str:
    by_reason = Counter(t.reason for t in data.trials if t.has_failed)
    counts = ", ".join(f"{count} {policy_of(reason).label}" for reason, count in by_reason.most_common())
    early = sum(t.has_stopped_early for t in data.trials)
    stopped = f" {plural(early, 'trial')} stopped early: too slow to become the best." if early else ""
    if not counts:
        return f"No trial has failed.{stopped}"
    return f"{plural(by_reason.total(), 'trial')} of {len(data.trials)} failed: {counts}.{stopped}"


def _predictions(data: ReportData) -> Figure:
    """Predicted against measured step time and memory."""
    title = "Predicted and measured"
    times = [(t, t.predicted_step_time_s, t.step_time_s) for t in data.trials]
    peaks = [(t, t.predicted_peak_memory_gib, t.peak_memory_gib) for t in data.trials]
    both = (
        _PredictionPanel(1, "time", "step time", "s", "@c1", data.varying, [(t, p, m) for t, p, m in times if p and m]),
        _PredictionPanel(
            2, "memory", "peak memory", "GiB", "@c3", data.varying, [(t, p, m) for t, p, m in peaks if p and m]
        ),
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


def _median_error(rows: Sequence[tuple[TrialView, float, float]]) -> str:
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
    rows: Sequence[tuple[TrialView, float, float]]

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

    def _tooltip(self, trial: TrialView, predicted: float, measured: float) -> str:
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


def _time_scale(data: ReportData) -> tuple[float, str]:
    """Factor from hours to the unit of the time axis, and the unit's name."""
    if data.progress.elapsed_h >= 2:
        return 1.0, "hours"
    return (60.0, "minutes") if data.progress.elapsed_h * 60 >= 2 else (3600.0, "seconds")
