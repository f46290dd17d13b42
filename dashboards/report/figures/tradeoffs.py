"""Figures of the objectives against each other, and of throughput against memory and nodes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figures.figure import Figure, axis, by_range, line, logarithmic, plot, scatter
from dashboards.report.sentences import best_title, describe_empty, format_trial
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_short
from search_spaces.layouts.short_name import short_name
from trials.analysis.ranking import Objective
from trials.files.text import plural

_OBJECTIVE_UNITS: Mapping[Objective, str] = {
    **UNITS,
    Objective.NODE_HOURS_PER_BILLION_TOKENS: "node-hours per billion tokens",
    Objective.JOULES_PER_TOKEN: "J/token",
}
"""Unit of each objective's own value."""
_MARKERS = (
    *(("@c1", "circle"), ("@c3", "square"), ("@c5", "diamond"), ("@c4", "triangle-up")),
    *(("@c6", "triangle-down"), ("@c7", "cross"), ("@c8", "pentagon")),
)
"""Colour and symbol of each number of nodes, fewest first."""
_MOST_NAMES = 8
"""Most points of a front that are named beside their points; the text names all."""
_ROOM = 0.28
"""Room for names, as a share of the range of the values."""
_NAMED_WIDTH = 720
"""Least width of a figure with names beside points, in CSS pixels."""
_LEGEND = {"orientation": "h", "y": 1.12, "x": 0}


def tradeoff_figures(data: ReportData) -> list[Figure]:
    """Figures of trade-offs; objectives only where there are several, nodes only where their number varies."""
    known = [layout for layout in data.layouts if layout.tokens_per_sec]
    counts = sorted({trial.layout.num_nodes for trial in known})
    objectives = [_objectives(data)] if len(data.objectives) > 1 else []
    nodes = [_nodes(data, known, counts)] if len(counts) > 1 else []
    return [*objectives, *nodes, _memory(data)]


def _nodes(data: ReportData, known: Sequence[TrialView], counts: Sequence[int]) -> Figure:
    """Speed against nodes, with the Pareto-optimal layouts and linear scaling from the fewest nodes."""
    points = _pareto_points(data, known)
    text = [
        f"{format_trial(t, data.varying)}<br>{format_short(t.tokens_per_sec)} tokens/s on {_nodes_of(t)}" for t in known
    ]
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
        traces.append(
            scatter(_x(best), _y(best), [format_trial(t, data.varying) for t in best], best_title(data), "@c2", **star)
        )
    xaxis = axis("nodes", type="log", tickvals=list(counts), ticktext=[str(count) for count in counts])
    yaxis = axis("tokens/s", **logarithmic(min(_y(known)), max(_y(known))))
    if points:
        xaxis = _with_room(xaxis, counts)
    named = {short_name(t.layout, data.varying): (t.layout.num_nodes, _speed(t)) for t in points}
    return Figure(
        "nodes",
        "Throughput against nodes",
        _summary(points, counts),
        plot(
            traces,
            xaxis=xaxis,
            yaxis=yaxis,
            annotations=_names(named, xaxis, yaxis),
            **({"meta": {"least_width": _NAMED_WIDTH}} if points else {}),
            legend=_LEGEND,
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
        f" from {few.trial} on {_nodes_of(few)} with {format_short(few.tokens_per_sec)} tokens/s"
        f" to {many.trial} on {_nodes_of(many)} with {format_short(many.tokens_per_sec)}:"
        f" {format_short(ratio)} times the speed for {format_short(nodes, has_zeros=False)} times the nodes."
    )


def _nodes_of(trial: TrialView) -> str:
    return plural(trial.layout.num_nodes, "node")


def _speed(trial: TrialView) -> float:
    return trial.tokens_per_sec or 0.0


def _x(trials: Sequence[TrialView]) -> list[int]:
    return [trial.layout.num_nodes for trial in trials]


def _y(trials: Sequence[TrialView]) -> list[float]:
    return [_speed(trial) for trial in trials]


def _objectives(data: ReportData) -> Figure:
    """Values of the first objective against each further one, and the Pareto front of all."""
    known = [t for t in data.layouts if None not in t.values]
    front = [t for t in known if data.best is not None and t.trial in data.best.points]
    words = [_OBJECTIVE_UNITS[objective] for objective in data.objectives]
    title = "Pareto front of the objectives"
    if not known:
        return Figure("objectives", title, describe_empty(data))
    panels = range(1, len(words))
    axes = {f"xaxis{_number(place)}": _objective_axis(data, known, place) for place in panels}
    axes |= {f"yaxis{_number(place)}": _objective_axis(data, known, 0) for place in panels}
    points = {short_name(t.layout, data.varying): (t.values[1] or 0.0, t.values[0] or 0.0) for t in front}
    names = _names(points, axes["xaxis"], axes["yaxis"]) if len(panels) == 1 else []
    if names:
        axes["xaxis"] = _with_room(axes["xaxis"], _values(known, 1))
    grid = {"grid": {"rows": 1, "columns": len(panels), "pattern": "independent", "xgap": 0.2}}
    return Figure(
        "objectives",
        title,
        _describe_front(front, words, data.varying),
        plot(
            [trace for place in panels for trace in _objective_traces(data, known, front, words, place)],
            annotations=names,
            legend=_LEGEND,
            **axes,
            **({} if len(panels) == 1 else grid),
            **({"meta": {"least_width": _NAMED_WIDTH}} if names else {}),
        ),
        note="Rings mark the Pareto front.",
        height=420,
    )


def _objective_traces(
    data: ReportData, known: Sequence[TrialView], front: Sequence[TrialView], words: Sequence[str], place: int
) -> Iterator[dict[str, Any]]:
    """Measured layouts by number of nodes, and the front, in the panel of one further objective."""
    which = {"xaxis": f"x{place}", "yaxis": f"y{place}", "showlegend": place == 1}
    for name, marker, layouts in _by_nodes(data, known):
        text = [
            f"{format_trial(t, data.varying)}<br>{format_short(t.values[0])} {words[0]}<br>"
            f"{format_short(t.values[place])} {words[place]}"
            for t in layouts
        ]
        x, y = [t.values[place] for t in layouts], [t.values[0] for t in layouts]
        yield scatter(x, y, text, name, **marker, opacity=0.7) | which
    x, y = [t.values[place] for t in front], [t.values[0] for t in front]
    ring = {"size": 14, "symbol": "circle-open", "line": {"width": 2.5, "color": "@ink"}}
    yield scatter(x, y, [format_trial(t, data.varying) for t in front], "Pareto front", "@ink", **ring) | which


def _by_nodes(data: ReportData, layouts: Sequence[TrialView]) -> Iterator[tuple[str, dict[str, Any], list[TrialView]]]:
    """Name, marker and layouts of each number of nodes; all layouts at once where there is a single number."""
    counts = data.node_counts
    for place, nodes in enumerate(counts):
        here = [t for t in layouts if t.layout.num_nodes == nodes]
        color, symbol = _MARKERS[place % len(_MARKERS)]
        if here:
            yield plural(nodes, "node") if len(counts) > 1 else "measured", {"color": color, "symbol": symbol}, here


def _describe_front(front: Sequence[TrialView], words: Sequence[str], varying: Sequence[str]) -> str:
    named = [f"{short_name(t.layout, varying)} ({_list_values(t, words)})" for t in front]
    return f"{plural(len(front), 'layout')} on the Pareto front: {'; '.join(named)}." if named else "No best layout."


def _list_values(trial: TrialView, words: Sequence[str]) -> str:
    return ", ".join(f"{format_short(value)} {unit}" for value, unit in zip(trial.values, words, strict=True))


def _objective_axis(data: ReportData, known: Sequence[TrialView], place: int) -> dict[str, Any]:
    objective = data.objectives[place]
    direction = "lower" if objective.is_minimised else "higher"
    title = f"{_OBJECTIVE_UNITS[objective]} ({direction} is better)"
    return axis(title, **by_range(_values(known, place)))


def _values(known: Sequence[TrialView], place: int) -> list[float]:
    return [value for t in known if (value := t.values[place]) is not None]


def _number(place: int) -> str:
    """Number of a plotly axis; the first has none."""
    return "" if place == 1 else str(place)


def _names(points: Mapping[str, tuple[float, float]], xaxis: Mapping[str, Any], yaxis: Mapping[str, Any]) -> list[dict]:
    """Names to the left of their points, on axes of `_with_room`; a logarithmic axis takes logarithms."""
    if len(points) > _MOST_NAMES:
        return []
    base: dict[str, Any] = {"showarrow": False, "font": {"size": 11}, "bgcolor": "@paper", "borderpad": 0}
    base |= {"xanchor": "right", "yanchor": "bottom", "xshift": -8, "yshift": 2}
    return [
        {**base, "text": text, "x": _position(x, xaxis), "y": _position(y, yaxis)} for text, (x, y) in points.items()
    ]


def _with_room(axis_settings: Mapping[str, Any], values: Sequence[float]) -> dict[str, Any]:
    """Axis with room for names before the first of these values."""
    low, high = (_position(value, axis_settings) for value in (min(values), max(values)))
    return {**axis_settings, "range": [low - _ROOM * (high - low), high + 0.04 * (high - low)]}


def _position(value: float, axis_settings: Mapping[str, Any]) -> float:
    return math.log10(value) if axis_settings.get("type") == "log" else value


def _memory(data: ReportData) -> Figure:
    """Speed against memory, with the Pareto front on each number of nodes."""
    unit, title = UNITS[data.objective], "Throughput against memory"
    known = [t for t in data.layouts if t.peak_memory_gib is not None]
    if not known:
        return Figure("memory", title, "No measured layout reported its memory.")
    if len(known) == 1:
        return Figure("memory", title, "Needs at least two measured layouts.")
    best = next((t for t in known if data.best is not None and t.layout.key == data.best.layout.key), None)
    traces = [trace for group in _by_nodes(data, known) for trace in _memory_traces(data, unit, *group)]
    if best is not None:
        star = {"symbol": "star", "size": 17, "line": {"width": 1.5, "color": "@paper"}}
        shown = [f"{best_title(data)}<br>{format_trial(best, data.varying)}"]
        traces.append(scatter([best.peak_memory_gib], [best.speed], shown, best_title(data), "@c2", **star))
    nodes = (best or known[0]).layout.num_nodes
    here = [t for t in known if t.layout.num_nodes == nodes]
    speeds = [t.speed for t in known if t.speed is not None]
    where = f"On {plural(nodes, 'node')}: " if len(data.node_counts) > 1 else ""
    return Figure(
        "memory",
        title,
        where + _memory_summary(memory_front(here), len(here), unit),
        plot(
            traces,
            xaxis=axis("peak memory of a rank (GiB)", rangemode="tozero"),
            yaxis=axis(unit, **(by_range(speeds) if where else {"rangemode": "tozero"})),
            legend=_LEGEND,
        ),
        height=380,
        note="A line is the Pareto front on one number of nodes." if where else None,
    )


def _memory_traces(
    data: ReportData, unit: str, name: str, marker: Mapping[str, Any], layouts: Sequence[TrialView]
) -> Iterator[dict[str, Any]]:
    """Layouts on one number of nodes, and their Pareto front."""
    text = [
        f"{format_trial(t, data.varying)}<br>{format_short(t.speed)} {unit}, {format_short(t.peak_memory_gib)} GiB"
        for t in layouts
    ]
    x, y = [t.peak_memory_gib for t in layouts], [t.speed for t in layouts]
    yield scatter(x, y, text, name, **marker, opacity=0.7)
    front, is_alone = memory_front(layouts), len(data.node_counts) == 1
    color = "@accent" if is_alone else marker["color"]
    drawn = line([t.peak_memory_gib for t in front], [t.speed for t in front], "Pareto front", color)
    points = {"mode": "lines+markers", "marker": {"size": 9, "color": color, "symbol": marker["symbol"]}}
    yield drawn | points | {"line": {"shape": "hv", "width": 2, "color": color}, "showlegend": is_alone}


def _memory_summary(front: Sequence[TrialView], num_known: int, unit: str) -> str:
    least, fastest = front[0], front[-1]
    takes = f"takes {format_short(least.peak_memory_gib)} GiB a rank and reaches {format_short(least.speed)} {unit}"
    if least is fastest:
        return f"One layout of {num_known} is on the speed/memory frontier: {least.trial} {takes}."
    most = fastest.trial
    return (
        f"{plural(len(front), 'layout')} of {num_known} are on the speed/memory frontier. The most memory-efficient,"
        f" {least.trial}, {takes}; the one with the highest throughput, {most}, takes"
        f" {format_short(fastest.peak_memory_gib)} GiB for {format_short(fastest.speed)}."
    )


def memory_front(layouts: Sequence[TrialView]) -> list[TrialView]:
    """Pareto front of speed and memory by point estimates, ordered by growing memory and speed."""
    front: list[TrialView] = []
    for trial in sorted(layouts, key=lambda t: (t.peak_memory_gib or 0.0, -(t.speed or 0.0))):
        if not front or (trial.speed or 0.0) > (front[-1].speed or 0.0):
            front.append(trial)
    return front
