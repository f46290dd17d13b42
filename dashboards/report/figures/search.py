"""Figures of the search: progress, failures, cost, prediction accuracy. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import median
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.explanation import describe_pattern
from dashboards.report.figures.figure import LOG_FROM, Figure, axis, line, logarithmic, plot, scatter
from dashboards.report.sentences import describe_empty, duration, format_hours, format_reason, format_trial, percent
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_short, format_value
from search_spaces.layouts.layout import axis_of
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.trial import FailureReason

_MOST_BARS = 24
_FEWEST_BARS = 6
_FEWEST_OF_RANGE = 3
_PROGRESS_NOTE = "A dot is one run, and the line the highest by then; a layout's speed is that over all its runs."


def search_figures(data: ReportData) -> list[Figure]:
    return [_progress(data), _failures(data), _failures_by_axis(data), _cost(data), _predictions(data)]


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
    """Failures by reason over time."""
    title = "Failures by reason"
    failed = [t for t in data.trials if t.has_failed]
    early = sum(t.has_stopped_early for t in data.trials)
    stopped = f" {plural(early, 'trial')} stopped early: too slow to become the best." if early else ""
    if not failed:
        return Figure("failures", title, f"No trial has failed.{stopped}")
    scale, hour_word = _time_scale(data)
    last = max(data.progress.elapsed_h, *map(_ended_h, data.trials)) * scale
    width = _round(last / min(_MOST_BARS, max(_FEWEST_BARS, len(failed))))
    by_reason: dict[FailureReason | None, Counter[int]] = defaultdict(Counter)
    for trial in failed:
        by_reason[trial.reason][int(_ended_h(trial) * scale / width)] += 1
    ordered = sorted(by_reason, key=lambda reason: -by_reason[reason].total())
    counts = ", ".join(f"{by_reason[r].total()} {policy_of(r).label}" for r in ordered)
    return Figure(
        "failures",
        title,
        f"{plural(len(failed), 'trial')} of {len(data.trials)} failed: {counts}.{stopped}",
        plot(
            [_failure_bars(reason, by_reason[reason], width) for reason in ordered],
            barmode="stack",
            xaxis=axis(f"{hour_word} since the search began", range=[0, last * 1.02], tick0=0, dtick=_round(last / 6)),
            yaxis=axis("trials", rangemode="tozero", dtick=_whole_ticks(by_reason.values())),
            showlegend=True,
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
    )


def _failures_by_axis(data: ReportData) -> Figure:
    """Layouts by the values of the axis that tells most of a failure: those that ran, and that failed by reason."""
    title = "Failures by axis value"
    if not data.failure_patterns:
        words = "No axis value sets the layouts that failed for a reason apart from those that ran."
        return Figure(
            "failures_by_axis", title, words if any(t.has_failed for t in data.trials) else "No trial has failed."
        )
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
        "failures_by_axis",
        title,
        " ".join(map(describe_pattern, data.failure_patterns))
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


def _failure_bars(reason: FailureReason | None, by_place: Mapping[int, int], width: float) -> dict[str, Any]:
    """Bars of the failures with one reason, per time bin of this width."""
    places = sorted(by_place)
    return {
        "type": "bar",
        "name": policy_of(reason).label,
        "x": [(place + 0.5) * width for place in places],
        "y": [by_place[place] for place in places],
        "width": width * 0.92,
        "marker": {"color": f"@{policy_of(reason).color}"},
        "hovertemplate": "%{y} %{fullData.name}<extra></extra>",
    }


def _whole_ticks(counters: Iterable[Counter[int]]) -> int | None:
    """Tick distance of 1 where counts are small, since trials are whole; None for plotly's default."""
    together: Counter[int] = Counter()
    for counter in counters:
        together.update(counter)
    return 1 if max(together.values()) <= 6 else None


def _round(width: float) -> float:
    """Next larger of 1, 2, 5, 10, ..."""
    power = 10 ** math.floor(math.log10(max(width, 1e-9)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9))


def _cost(data: ReportData) -> Figure:
    """Node-hours by outcome of the trials, and each trial's time in the queue."""
    title = "Node-hours and queue"
    spent: dict[str, float] = defaultdict(float)
    for trial in data.trials:
        spent[format_reason(trial)] += trial.node_hours
    spent = {what: hours for what, hours in spent.items() if hours > 0}
    waited = [t for t in data.trials if t.queue_wait_s is not None]
    if not spent and not waited:
        return Figure("cost", title, "Nothing has run yet.")
    queue: dict[str, Any] = {
        "grid": {"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.22},
        "xaxis2": axis("trial in launch order", rangemode="tozero"),
        "yaxis2": axis("seconds in the queue", rangemode="tozero"),
    }
    has_waited = any(t.queue_wait_s for t in waited)
    return Figure(
        "cost",
        title,
        _cost_summary(data, spent, [t.queue_wait_s or 0.0 for t in waited]),
        plot(
            [_node_hours_bars(spent), *([_queue_points(waited, data.varying)] if has_waited else [])],
            xaxis=axis("node-hours", range=[0, 1.18 * max(spent.values(), default=1.0)]),
            yaxis={"automargin": True},
            **(queue if has_waited else {}),
        ),
        height=max(300, 90 + 34 * len(spent)),
    )


def _node_hours_bars(spent: Mapping[str, float]) -> dict[str, Any]:
    """Bars of node-hours by outcome, the largest on top."""
    ordered = sorted(spent, key=lambda what: spent[what])
    return {
        "type": "bar",
        "orientation": "h",
        "y": ordered,
        "x": [spent[what] for what in ordered],
        "text": [f"{spent[what]:.3g}" for what in ordered],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": ["@accent" if what == "measured" else "@c8" for what in ordered]},
        "hovertemplate": "%{y}: %{x:.3g} node-hours<extra></extra>",
        "showlegend": False,
    }


def _queue_points(waited: Sequence[TrialView], varying: Sequence[str]) -> dict[str, Any]:
    """Points of each trial's seconds in the queue."""
    waits = scatter(
        [place for place, _ in enumerate(waited, 1)],
        [t.queue_wait_s for t in waited],
        [f"{format_trial(t, varying)}<br>waited {duration(t.queue_wait_s)}" for t in waited],
        "queue wait",
        "@c4",
    )
    return waits | {"xaxis": "x2", "yaxis": "y2", "showlegend": False}


def _cost_summary(data: ReportData, spent: Mapping[str, float], waited_s: Sequence[float]) -> str:
    simulated = "" if data.replayed_table is None else "simulated "
    summary = f"{simulated}{format_hours(data.progress.node_hours_used)} used"
    if spent:
        most = max(spent, key=lambda what: spent[what])
        share = spent[most] / sum(spent.values())
        summary += f", {'all' if share == 1 else percent(share)} on trials with the outcome: {most}"
    if waited_s and max(waited_s) > 0:
        summary += f"; the median time in the queue was {duration(median(waited_s))}, the longest"
        summary += f" {duration(max(waited_s))}"
    elif waited_s:
        summary += "; no time in the queue"
    return summary + "."


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
