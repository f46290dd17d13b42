"""Figures of throughput against memory, and against nodes where several node counts were measured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figures.figure import Figure, axis, line, logarithmic, plot, scatter
from dashboards.report.sentences import format_trial
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_number
from trials.files.text import plural


def tradeoff_figures(data: ReportData) -> list[Figure]:
    """Figures of trade-offs; nodes are omitted where all layouts have the same number of nodes."""
    known = [layout for layout in data.layouts if layout.tokens_per_sec]
    counts = sorted({trial.layout.num_nodes for trial in known})
    nodes = [_nodes(data, known, counts)] if len(counts) > 1 else []
    return [*nodes, _memory(data)]


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
        scatter([t.peak_memory_gib for t in known], [t.speed for t in known], text, "measured", "@c1", opacity=0.55),
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
