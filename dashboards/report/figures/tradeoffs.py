"""Figure of the speed against memory and each further objective: Pareto fronts, numbers of nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.report.data import ReportData, TrialView
from dashboards.report.figures.figure import Figure, axis, by_range, line, plot, scatter
from dashboards.report.sentences import best_title, format_trial
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


@dataclass(frozen=True)
class _Panel:
    """Speeds against one value of the layouts that have it. `wants_most` where more of it is better."""

    title: str
    unit: str
    value: Callable[[TrialView], float | None]
    wants_most: bool
    layouts: Sequence[TrialView]

    def x(self, layout: TrialView) -> float:
        return self.value(layout) or 0.0

    def front(self, layouts: Sequence[TrialView]) -> list[TrialView]:
        """Pareto front by point estimates, from the best value to the highest speed."""
        sign, front = -1 if self.wants_most else 1, list[TrialView]()
        for layout in sorted(layouts, key=lambda t: (sign * self.x(t), -(t.speed or 0.0))):
            if not front or (layout.speed or 0.0) > (front[-1].speed or 0.0):
                front.append(layout)
        return front


def tradeoff_figure(data: ReportData) -> Figure:
    """Speed against memory and each further objective, with the Pareto front on each number of nodes."""
    title = "Throughput against memory" if len(data.objectives) < 2 else "Trade-offs"
    panels = [panel for panel in _panels(data) if len(panel.layouts) > 1]
    if not panels:
        found = "Needs at least two measured layouts" if data.layouts else "No measured layout"
        return Figure("memory", title, f"{found} that reported their memory.")
    several = len(data.node_counts) > 1
    return Figure(
        "memory",
        title,
        " ".join([*(_describe_front(panel, data) for panel in panels), *_describe_scaling(data)]),
        plot(
            [trace for place, panel in enumerate(panels, 1) for trace in _traces(data, panel, place)],
            legend={"orientation": "h", "y": 1.12, "x": 0},
            **{name: settings for place, panel in enumerate(panels, 1) for name, settings in _axes(data, panel, place)},
            **({"grid": {"rows": 1, "columns": len(panels), "pattern": "independent"}} if len(panels) > 1 else {}),
        ),
        height=380,
        note="A line is the Pareto front" + (" on one number of nodes." if several else "."),
    )


def _panels(data: ReportData) -> Iterator[_Panel]:
    for place, objective in enumerate(data.objectives[1:], 1):
        direction = "lower" if objective.is_minimised else "higher"
        unit = _OBJECTIVE_UNITS[objective]

        def value(layout: TrialView, place: int = place) -> float | None:
            return layout.values[place]

        known = [t for t in data.layouts if value(t) is not None]
        yield _Panel(f"{unit} ({direction} is better)", unit, value, not objective.is_minimised, known)
    known = [t for t in data.layouts if t.peak_memory_gib is not None]
    yield _Panel("peak memory of a rank (GiB)", "GiB", lambda t: t.peak_memory_gib, False, known)


def _axes(data: ReportData, panel: _Panel, place: int) -> Iterator[tuple[str, dict[str, Any]]]:
    number = "" if place == 1 else str(place)  # the first axis of plotly has none
    yield f"xaxis{number}", axis(panel.title, **by_range([panel.x(t) for t in panel.layouts]))
    yield f"yaxis{number}", axis(UNITS[data.objective], **by_range([t.speed or 0.0 for t in panel.layouts]))


def _traces(data: ReportData, panel: _Panel, place: int) -> Iterator[dict[str, Any]]:
    """Layouts by number of nodes, each with its Pareto front, and the best layout."""
    where = {"xaxis": f"x{place}", "yaxis": f"y{place}"}
    several = len(data.node_counts) > 1
    for index, nodes in enumerate(data.node_counts):
        here = [t for t in panel.layouts if t.layout.num_nodes == nodes]
        color, symbol = _MARKERS[index % len(_MARKERS)]
        name, legend = plural(nodes, "node") if several else "measured", {"showlegend": place == 1}
        yield _points(data, panel, here, name, color, symbol=symbol, opacity=0.7) | where | legend
        front, front_color = panel.front(here), color if several else "@accent"
        drawn = line([panel.x(t) for t in front], [t.speed for t in front], "Pareto front", front_color)
        shape = {"line": {"shape": "vh" if panel.wants_most else "hv", "width": 2, "color": front_color}}
        yield drawn | shape | where | {"showlegend": place == 1 and not several}
    best = [t for t in panel.layouts if data.best is not None and t.layout.key == data.best.layout.key]
    star = {"symbol": "star", "size": 17, "line": {"width": 1.5, "color": "@paper"}}
    yield _points(data, panel, best, best_title(data), "@c2", **star) | where | {"showlegend": place == 1}


def _points(
    data: ReportData, panel: _Panel, layouts: Sequence[TrialView], name: str, color: str, **marker: Any
) -> dict[str, Any]:
    text = [
        f"{format_trial(t, data.varying)}<br>{format_short(t.speed)} {UNITS[data.objective]},"
        f" {format_short(panel.x(t))} {panel.unit}"
        for t in layouts
    ]
    return scatter([panel.x(t) for t in layouts], [t.speed for t in layouts], text, name, color, **marker)


def _describe_front(panel: _Panel, data: ReportData) -> str:
    """The ends of the front on as many nodes as the best layout has."""
    nodes = data.best_num_nodes
    here = [t for t in panel.layouts if t.layout.num_nodes == nodes] or panel.layouts
    front, unit = panel.front(here), UNITS[data.objective]
    where = f"On {plural(here[0].layout.num_nodes, 'node')}: " if len(data.node_counts) > 1 else ""
    first, last = front[0], front[-1]
    known = f"{format_short(panel.x(first))} {panel.unit} at {format_short(first.speed)} {unit}"
    named = f"{first.trial} ({short_name(first.layout, data.varying)})"
    if first is last:
        return f"{where}{named} has both the best value and the highest throughput: {known}."
    return (
        f"{where}{len(front)} of {plural(len(here), 'layout')} are on the Pareto front, from {named} with {known} to"
        f" {last.trial} with {format_short(panel.x(last))} {panel.unit} at {format_short(last.speed)}."
    )


def _describe_scaling(data: ReportData) -> Iterator[str]:
    """Speed of the Pareto-optimal layouts on the fewest and the most nodes, where there are several."""
    names = data.best.points if data.best is not None else ()
    points = sorted((t for t in data.layouts if t.trial in names), key=lambda t: t.layout.num_nodes)
    if not points or points[0].layout.num_nodes == points[-1].layout.num_nodes:
        return
    few, many = points[0], points[-1]
    ratio = (many.tokens_per_sec or 0.0) / (few.tokens_per_sec or 1.0)
    nodes = many.layout.num_nodes / few.layout.num_nodes
    yield (
        f"From {few.trial} on {plural(few.layout.num_nodes, 'node')} to {many.trial} on {many.layout.num_nodes}:"
        f" {format_short(ratio)} times the throughput for {format_short(nodes, has_zeros=False)} times the nodes."
    )
