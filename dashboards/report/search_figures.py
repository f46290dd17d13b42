"""Figures of the search as a whole: how it went, what failed, what it cost, how well it was foretold. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figure import Figure, axis, dots, line, logarithmic, plot, reason_color
from dashboards.report.words import UNITS, amount, duration, hours_words, percent, reason_words, trial_words
from trials.text import counted
from trials.trial import FailureReason, TrialState

_MOST_BARS = 24
_FEWEST_BARS = 6
_LOG_FROM = 4
"""So many times the smallest value is the largest one where an axis is logarithmic."""


_DOMINATED_NOTE = "A dominated trial ended itself: it could no longer be the best. That is a saving, not a fault."


def search_figures(data: ReportData) -> list[Figure]:
    """In the order of the page."""
    return [_progress(data), _failures(data), _cost(data), _predictions(data)]


def _progress(data: ReportData) -> Figure:
    """What was measured over time, and the best of it."""
    unit, title = UNITS[data.objective], "Best so far"
    measured = sorted((t for t in data.measured if t.ended_h is not None), key=lambda t: t.ended_h or 0.0)
    if not measured:
        return Figure("progress", title, "Nothing has been measured yet.")
    scale, hour_word = _time_scale(data)
    ended = sorted((t for t in data.trials if t.best_so_far is not None and t.ended_h is not None), key=_when)
    traces = [
        dots(
            [_when(t) * scale for t in measured],
            [t.speed for t in measured],
            [f"{trial_words(t)}<br>{amount(t.speed)} {unit}" for t in measured],
            "measured",
            "@c1",
            opacity=0.55,
        ),
        line([_when(t) * scale for t in ended], [t.best_so_far for t in ended], "best so far", "@accent")
        | {"line": {"shape": "hv", "width": 3, "color": "@accent"}},
        *_failed_below(data, scale),
    ]
    if data.baseline_speed is not None and ended:
        ends = [0.0, _when(ended[-1]) * scale]
        today = line(ends, [data.baseline_speed] * 2, "what you run today", "@ink", line={"dash": "dot", "width": 1.5})
        traces.append(today)
    best = ended[-1].best_so_far if ended else None
    summary = f"{counted(len(measured), 'run')} measured; the fastest layout reached {amount(best)} {unit}"
    if (first := _first_near(ended)) is not None:
        summary += f", and after {duration(_when(first) * 3600)} the search was within 2 % of that"
    return Figure(
        "progress",
        title,
        summary + ".",
        plot(
            traces,
            xaxis=axis(f"{hour_word} since the search began", rangemode="tozero"),
            yaxis=axis(unit, rangemode="tozero"),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        height=380,
        note="Crosses at the bottom are trials that failed."
        if any(t.state is TrialState.FAILED for t in data.trials)
        else None,
    )


def _when(trial: TrialView) -> float:
    return trial.ended_h or 0.0


def _first_near(ended: Sequence[TrialView]) -> TrialView | None:
    """The trial after which the best was at most 2 % below what it became."""
    last = ended[-1].best_so_far if ended else None
    near = (t for t in ended if last is not None and t.best_so_far is not None and t.best_so_far >= 0.98 * last)
    return next(near, None)


def _failed_below(data: ReportData, scale: float) -> Iterator[dict]:
    failed = [t for t in data.trials if t.state is TrialState.FAILED and t.ended_h is not None]
    if failed:
        words = [f"{trial_words(t)}<br>{reason_words(t)}" for t in failed]
        x = [_when(t) * scale for t in failed]
        cross = {"size": 7, "symbol": "x-thin", "line": {"width": 1.5, "color": "@c2"}}
        yield dots(x, [0] * len(failed), words, "failed", "@muted", **cross) | {"cliponaxis": False}


def _failures(data: ReportData) -> Figure:
    """How many trials failed for each reason, over time."""
    title = "Failures by reason"
    failed = [t for t in data.trials if t.state is TrialState.FAILED]
    if not failed:
        return Figure("failures", title, "No trial has failed.")
    scale, hour_word = _time_scale(data)
    last = max(data.progress.elapsed_h, *map(_when, data.trials)) * scale
    width = _round(last / min(_MOST_BARS, max(_FEWEST_BARS, len(failed))))
    by_reason: dict[FailureReason | None, Counter[int]] = defaultdict(Counter)
    for trial in failed:
        by_reason[trial.reason][int(_when(trial) * scale / width)] += 1
    ordered = sorted(by_reason, key=lambda reason: -by_reason[reason].total())
    bars = [
        {
            "type": "bar",
            "name": str(reason or "failed").replace("_", " "),
            "x": [(place + 0.5) * width for place in sorted(by_reason[reason])],
            "y": [by_reason[reason][place] for place in sorted(by_reason[reason])],
            "width": width * 0.92,
            "marker": {"color": reason_color(reason)},
            "hovertemplate": "%{y} %{fullData.name}<extra></extra>",
        }
        for reason in ordered
    ]
    counts = ", ".join(f"{by_reason[r].total()} {str(r or 'failed').replace('_', ' ')}" for r in ordered)
    return Figure(
        "failures",
        title,
        f"{counted(len(failed), 'trial')} of {len(data.trials)} failed: {counts}.",
        plot(
            bars,
            barmode="stack",
            xaxis=axis(f"{hour_word} since the search began", range=[0, last * 1.02], tick0=0, dtick=_round(last / 6)),
            yaxis=axis("trials", rangemode="tozero", dtick=_whole_ticks(by_reason.values())),
            showlegend=True,
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        note=_DOMINATED_NOTE if FailureReason.DOMINATED in by_reason else None,
    )


def _whole_ticks(counters: Iterable[Counter[int]]) -> int | None:
    """Trials are whole: where the axis is short, every one has its tick."""
    together: Counter[int] = Counter()
    for counter in counters:
        together.update(counter)
    return 1 if max(together.values()) <= 6 else None


def _round(width: float) -> float:
    """The next larger of 1, 2, 5, 10, ..."""
    power = 10 ** math.floor(math.log10(max(width, 1e-9)))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= width * (1 - 1e-9))


def _cost(data: ReportData) -> Figure:
    """Node-hours by how the trials ended, and how long each waited."""
    title = "Node-hours and queue"
    spent: dict[str, float] = defaultdict(float)
    for trial in data.trials:
        spent[reason_words(trial)] += trial.node_hours
    spent = {what: hours for what, hours in spent.items() if hours > 0}
    waited = [t for t in data.trials if t.queue_wait_s is not None]
    if not spent and not waited:
        return Figure("cost", title, "Nothing has run yet.")
    return Figure(
        "cost",
        title,
        _cost_summary(data, spent, [t.queue_wait_s or 0.0 for t in waited]),
        plot(
            [_spent_bars(spent), _wait_dots(waited)],
            grid={"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.22},
            xaxis=axis("node-hours", range=[0, 1.18 * max(spent.values(), default=1.0)]),
            yaxis={"automargin": True},
            xaxis2=axis("trial, as started", rangemode="tozero"),
            yaxis2=axis("seconds in the queue", rangemode="tozero"),
        ),
        height=max(300, 90 + 34 * len(spent)),
    )


def _spent_bars(spent: Mapping[str, float]) -> dict[str, Any]:
    """Node-hours by what they were spent on, the most on top."""
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


def _wait_dots(waited: Sequence[TrialView]) -> dict[str, Any]:
    """Seconds in the queue, trial by trial."""
    waits = dots(
        [place for place, _ in enumerate(waited, 1)],
        [t.queue_wait_s for t in waited],
        [f"{trial_words(t)}<br>waited {duration(t.queue_wait_s)}" for t in waited],
        "queue wait",
        "@c4",
    )
    return waits | {"xaxis": "x2", "yaxis": "y2", "showlegend": False}


def _cost_summary(data: ReportData, spent: Mapping[str, float], waited_s: Sequence[float]) -> str:
    summary = f"{hours_words(data.progress.node_hours_used)} used"
    if spent:
        most = max(spent, key=lambda what: spent[what])
        summary += f", {percent(spent[most] / sum(spent.values()))} of them on trials that ended as {most}"
    if waited_s:
        summary += f"; half of the trials waited {duration(median(waited_s))} or less for their nodes"
        summary += f", the longest {duration(max(waited_s))}"
    return summary + "."


def _predictions(data: ReportData) -> Figure:
    """What was foretold of time and memory when a trial was proposed, against what was measured."""
    title = "Foretold and measured"
    pairs = {
        "time": [(t, t.predicted_step_time_s, t.step_time_s) for t in data.trials],
        "memory": [(t, t.predicted_peak_memory_gib, t.peak_memory_gib) for t in data.trials],
    }
    known = {what: [(t, p, m) for t, p, m in rows if p and m] for what, rows in pairs.items()}
    if not known["time"] and not known["memory"]:
        return Figure("predictions", title, "No trial that was measured had a prediction.")
    traces: list[dict] = []
    errors = []
    axes: dict[str, Any] = {}
    drawn = (("time", "step time", "s", "@c1"), ("memory", "peak memory", "GiB", "@c3"))
    for place, (what, title_words, unit, color) in enumerate(drawn, 1):
        rows = known[what]
        if not rows:
            continue
        text = [f"{trial_words(t)}<br>foretold {amount(p)} {unit}, measured {amount(m)} {unit}" for t, p, m in rows]
        which = {"xaxis": f"x{place}", "yaxis": f"y{place}", "showlegend": False}
        low = min(min(p, m) for _, p, m in rows) * 0.9
        high = max(max(p, m) for _, p, m in rows) * 1.1
        traces.append(line([low, high], [low, high], "equal", "@muted", line={"dash": "dot", "width": 1.5}) | which)
        traces.append(dots([m for _, _, m in rows], [p for _, p, _ in rows], text, what, color, opacity=0.8) | which)
        off = median(abs(math.log(p / m)) for _, p, m in rows)
        errors.append(f"{percent(math.expm1(off))} in {what} ({counted(len(rows), 'trial')})")
        kind = logarithmic(low, high) if high > _LOG_FROM * low else {"type": "linear"}
        axes |= {
            f"xaxis{place}": axis(f"measured {title_words} ({unit})", **kind),
            f"yaxis{place}": axis(f"foretold ({unit})", **kind),
        }
    return Figure(
        "predictions",
        title,
        f"Half of the predictions were off by no more than {' and '.join(errors)}.",
        plot(
            traces,
            grid={"rows": 1, "columns": 2, "pattern": "independent", "xgap": 0.2},
            **{name.removesuffix("1"): settings for name, settings in axes.items()},
        ),
        height=360,
        note="Each prediction is the one that stood when the trial was proposed. On the dotted line it was right.",
    )


def _time_scale(data: ReportData) -> tuple[float, str]:
    """From hours to the unit of the axes, and its name."""
    if data.progress.elapsed_h >= 2:
        return 1.0, "hours"
    return (60.0, "minutes") if data.progress.elapsed_h * 60 >= 2 else (3600.0, "seconds")
