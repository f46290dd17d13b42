"""Figures of throughput against memory, and against nodes where several node counts were measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figures.figure import Figure, axis, line, logarithmic, plot, scatter
from dashboards.report.sentences import format_trial
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_number
from search_spaces.layouts.short_name import short_name
from trials.analysis.ranking import Objective
from trials.files.text import plural

_NODE_COLORS = ("@c1", "@c3", "@c5", "@c6", "@c7", "@c4")


def tradeoff_figures(data: ReportData) -> list[Figure]:
    """Figures of trade-offs; nodes are omitted where all layouts have the same number of nodes."""
    known = [layout for layout in data.layouts if layout.tokens_per_sec]
    counts = sorted({trial.layout.num_nodes for trial in known})
    nodes = [_nodes(data, known, counts)] if len(counts) > 1 else []
    goals = [_goals(data)] if len(data.objectives) > 1 else []
    return [*nodes, *goals, _memory(data)]


def _goals(data: ReportData) -> Figure:
    """The first two objectives against each other, with the name of each layout on the Pareto front."""
    title, (first, second) = "The search's objectives", data.objectives[:2]
    known = [t for t in data.layouts if None not in t.objective_values[:2] and len(t.objective_values) > 1]
    if not known:
        return Figure("goals", title, "No measured layout has a value of both objectives.")
    names = data.best.points if data.best is not None else ()
    front = sorted((t for t in known if t.trial in names), key=lambda t: t.objective_values[0] or 0.0)
    text = [f"{t.trial}: {_name(t, data)}<br>{_values(t, data)}" for t in known]
    x, y = ([t.objective_values[place] for t in known] for place in (0, 1))
    traces = [scatter(x, y, text, "measured", "@c1", opacity=0.55)]
    if front:
        front_x, front_y = ([t.objective_values[place] for t in front] for place in (0, 1))
        labelled = {"mode": "lines+markers+text", "text": [_name(t, data) for t in front], "textposition": "top center"}
        marks = {"marker": {"size": 9, "color": "@accent"}, "cliponaxis": False, "textfont": {"color": "@ink"}}
        traces.append(line(front_x, front_y, "Pareto front", "@accent") | labelled | marks)
    sentences = [f"{_name(t, data)}: {_values(t, data)}" for t in front]
    left = f", and {plural(len(data.objectives) - 2, 'further objective')} beside these" if data.objectives[2:] else ""
    words = f"{plural(len(front), 'layout')} on the Pareto front{left}: {'; '.join(sentences)}." if front else ""
    return Figure(
        "goals",
        title,
        words or "No layout is on the Pareto front yet.",
        plot(
            traces,
            xaxis=axis(_goal_axis(first), rangemode="tozero"),
            yaxis=axis(_goal_axis(second), rangemode="tozero"),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        height=420,
    )


def _goal_axis(objective: Objective) -> str:
    better = "less is better" if objective.is_minimised else "more is better"
    return f"{_goal_name(objective)} ({better})"


def _goal_name(objective: Objective) -> str:
    return objective.value.replace("tokens_per_sec", "tokens/s").replace("node_hours", "node-hours").replace("_", " ")


def _name(trial: TrialView, data: ReportData) -> str:
    return short_name(trial.layout, [name for name in data.varying if name == "num_nodes"])


def _values(trial: TrialView, data: ReportData) -> str:
    named = zip(data.objectives, trial.objective_values, strict=True)
    return ", ".join(f"{format_number(value, 3)} {_goal_name(objective)}" for objective, value in named)


def _nodes(data: ReportData, known: Sequence[TrialView], counts: Sequence[int]) -> Figure:
    """Speed against nodes, with the Pareto-optimal layouts and linear scaling from the fewest nodes."""
    points = _pareto_points(data, known)
    text = [f"{format_trial(t)}<br>{format_number(t.tokens_per_sec)} tokens/s on {_nodes_of(t)}" for t in known]
    traces = [scatter(_x(known), _y(known), text, "measured", "@c1", opacity=0.55)]
    if points:
        first, ends = points[0], [points[0].layout.num_nodes, counts[-1]]
        traces += [
            line(ends, [_speed(first) * n / ends[0] for n in ends], "linear scaling", "@muted", line={"dash": "dot"}),
            line(_x(points), _y(points), "Pareto front", "@accent")
            | {"mode": "lines+markers", "marker": {"size": 9, "color": "@accent"}},
        ]
        best = [point for point in points if data.best is not None and point.trial == data.best.trial]
        star = {"symbol": "star", "size": 17, "line": {"width": 1.5, "color": "@paper"}}
        traces.append(scatter(_x(best), _y(best), [format_trial(t) for t in best], "best layout", "@c2", **star))
    return Figure(
        "nodes",
        "Throughput against nodes",
        _summary(points, counts),
        plot(
            traces,
            xaxis=axis("nodes", type="log", tickvals=list(counts), ticktext=[str(count) for count in counts]),
            yaxis=axis("tokens/s", **logarithmic(min(_y(known)), max(_y(known)))),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        note="Linear scaling: from the Pareto-optimal layout on the fewest nodes." if points else None,
        height=380,
    )


def _pareto_points(data: ReportData, known: Sequence[TrialView]) -> list[TrialView]:
    """Pareto-optimal layouts by number of nodes."""
    names = data.best.points if data.best is not None else ()
    return sorted((t for t in known if t.trial in names), key=lambda t: t.layout.num_nodes)


def _summary(points: Sequence[TrialView], counts: Sequence[int]) -> str:
    measured = f"Measured on {', '.join(map(str, counts[:-1]))} and {counts[-1]} nodes."
    if len(points) < 2:
        return measured
    few, many = points[0], points[-1]
    ratio, nodes = _speed(many) / _speed(few), many.layout.num_nodes / few.layout.num_nodes
    return (
        f"{measured} {plural(len(points), 'layout')} are worth considering,"
        f" from {few.trial} on {_nodes_of(few)} with {format_number(few.tokens_per_sec)} tokens/s"
        f" to {many.trial} on {_nodes_of(many)} with {format_number(many.tokens_per_sec)}:"
        f" {format_number(ratio, 3)} times the speed for {format_number(nodes, 3)} times the nodes."
    )


def _nodes_of(trial: TrialView) -> str:
    return plural(trial.layout.num_nodes, "node")


def _speed(trial: TrialView) -> float:
    return trial.tokens_per_sec or 0.0


def _x(trials: Sequence[TrialView]) -> list[int]:
    return [trial.layout.num_nodes for trial in trials]


def _y(trials: Sequence[TrialView]) -> list[float]:
    return [_speed(trial) for trial in trials]


def _memory(data: ReportData) -> Figure:
    """Speed against memory, with the Pareto front."""
    unit, title = UNITS[data.objective], "Throughput against memory"
    known = [t for t in data.layouts if t.peak_memory_gib is not None]
    if not known:
        return Figure("memory", title, "No measured layout reported its memory.")
    front = memory_front(known)
    text = [
        f"{format_trial(t)}<br>{format_number(t.speed)} {unit}, {format_number(t.peak_memory_gib, 3)} GiB"
        for t in known
    ]
    traces = [
        *_by_nodes(known, text),
        line([t.peak_memory_gib for t in front], [t.speed for t in front], "Pareto front", "@accent")
        | {"mode": "lines+markers", "marker": {"size": 9, "color": "@accent"}, "line": {"shape": "hv", "width": 2}},
    ]
    best = [t for t in known if data.best is not None and t.layout.key == data.best.layout.key]
    if best:
        star = {"symbol": "star", "size": 17, "line": {"width": 1.5, "color": "@paper"}}
        shown = [f"the best layout<br>{format_trial(t)}" for t in best[:1]]
        traces.append(scatter([best[0].peak_memory_gib], [best[0].speed], shown, "best layout", "@c2", **star))
    return Figure(
        "memory",
        title,
        _memory_summary(front, len(known), unit),
        plot(
            traces,
            xaxis=axis("peak memory of a rank (GiB)", rangemode="tozero"),
            yaxis=axis(unit, rangemode="tozero"),
            legend={"orientation": "h", "y": 1.12, "x": 0},
        ),
        height=380,
    )


def _by_nodes(known: Sequence[TrialView], text: Sequence[str]) -> list[dict[str, Any]]:
    """Points of speed against memory, those of each number of nodes in a colour of their own."""
    counts = sorted({trial.layout.num_nodes for trial in known})
    traces = []
    for place, count in enumerate(counts):
        rows = [row for row, trial in enumerate(known) if trial.layout.num_nodes == count]
        name = "measured" if len(counts) == 1 else plural(count, "node")
        x, y = [known[row].peak_memory_gib for row in rows], [known[row].speed for row in rows]
        color = _NODE_COLORS[place % len(_NODE_COLORS)]
        traces.append(scatter(x, y, [text[row] for row in rows], name, color, opacity=0.7))
    return traces


def _memory_summary(front: Sequence[TrialView], num_known: int, unit: str) -> str:
    least, fastest = front[0], front[-1]
    takes = (
        f"takes {format_number(least.peak_memory_gib, 3)} GiB a rank and reaches {format_number(least.speed)} {unit}"
    )
    if least is fastest:
        return f"One layout of {num_known} is on the speed/memory frontier: {least.trial} {takes}."
    most = fastest.trial
    return (
        f"{plural(len(front), 'layout')} of {num_known} are on the speed/memory frontier. The most memory-efficient,"
        f" {least.trial}, {takes}; the one with the highest throughput, {most}, takes"
        f" {format_number(fastest.peak_memory_gib, 3)} GiB for {format_number(fastest.speed)}."
    )


def memory_front(layouts: Sequence[TrialView]) -> list[TrialView]:
    """Pareto front of speed and memory by point estimates, ordered by growing memory and speed."""
    front: list[TrialView] = []
    for trial in sorted(layouts, key=lambda t: (t.peak_memory_gib or 0.0, -(t.speed or 0.0))):
        if not front or (trial.speed or 0.0) > (front[-1].speed or 0.0):
            front.append(trial)
    return front
