"""Figure of the speed against memory and each further objective: Pareto fronts, numbers of nodes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.report.figures.figure import Figure, axis, by_range, line, plot, scatter
from dashboards.report.sentences import best_title, format_trial
from dashboards.search_view import SearchView
from dashboards.terminal.headline import UNITS
from dashboards.trial_text import format_short
from search_spaces.layouts.short_name import short_name
from trials.analysis.pareto import pareto
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, in_objective_unit, known_value_of, value_of
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
    value: Callable[[RankedLayout], float | None]
    wants_most: bool
    layouts: Sequence[RankedLayout]
    speed: Callable[[RankedLayout], float]

    def x(self, layout: RankedLayout) -> float:
        return self.value(layout) or 0.0

    def front(self, layouts: Sequence[RankedLayout]) -> list[RankedLayout]:
        """Pareto front by point estimates, from the best value to the highest speed."""
        sign, front = -1 if self.wants_most else 1, list[RankedLayout]()
        for layout in sorted(layouts, key=lambda t: (sign * self.x(t), -self.speed(t))):
            if not front or self.speed(layout) > self.speed(front[-1]):
                front.append(layout)
        return front


def tradeoff_figure(view: SearchView) -> Figure:
    """Speed against memory and each further objective, with the Pareto front on each number of nodes."""
    title = "Throughput against memory" if len(view.objectives) < 2 else "Trade-offs"
    panels = [panel for panel in _panels(view) if len(panel.layouts) > 1]
    if not panels:
        found = "Needs at least two measured layouts" if view.ranking.ordered else "No measured layout"
        return Figure("memory", title, f"{found} that reported their memory.")
    several = len(view.node_counts) > 1
    return Figure(
        "memory",
        title,
        " ".join([*(_describe_front(panel, view) for panel in panels), *_describe_scaling(view)]),
        plot(
            [trace for place, panel in enumerate(panels, 1) for trace in _traces(view, panel, place)],
            legend={"orientation": "h", "y": 1.12, "x": 0},
            **{name: settings for place, panel in enumerate(panels, 1) for name, settings in _axes(view, panel, place)},
            **({"grid": {"rows": 1, "columns": len(panels), "pattern": "independent"}} if len(panels) > 1 else {}),
        ),
        height=380,
        note="A line is the Pareto front" + (" on one number of nodes." if several else "."),
    )


def _panels(view: SearchView) -> Iterator[_Panel]:
    def speed(layout: RankedLayout) -> float:
        return value_of(layout, view.objective)

    for objective in view.objectives[1:]:
        direction = "lower" if objective.is_minimised else "higher"
        unit = _OBJECTIVE_UNITS[objective]

        def value(layout: RankedLayout, objective: Objective = objective) -> float | None:
            known = known_value_of(layout, objective)
            return None if known is None else in_objective_unit(known, objective)

        known = [t for t in view.ranking.ordered if value(t) is not None]
        yield _Panel(f"{unit} ({direction} is better)", unit, value, not objective.is_minimised, known, speed)
    known = [t for t in view.ranking.ordered if _peak_gib(t) is not None]
    yield _Panel("peak memory of a rank (GiB)", "GiB", _peak_gib, False, known, speed)


def _peak_gib(layout: RankedLayout) -> float | None:
    return layout.measured.peak_memory_gib


def _axes(view: SearchView, panel: _Panel, place: int) -> Iterator[tuple[str, dict[str, Any]]]:
    number = "" if place == 1 else str(place)  # the first axis of plotly has none
    yield f"xaxis{number}", axis(panel.title, **by_range([panel.x(t) for t in panel.layouts]))
    yield f"yaxis{number}", axis(UNITS[view.objective], **by_range([panel.speed(t) for t in panel.layouts]))


def _traces(view: SearchView, panel: _Panel, place: int) -> Iterator[dict[str, Any]]:
    """Layouts by number of nodes, each with its Pareto front, and the best layout."""
    where = {"xaxis": f"x{place}", "yaxis": f"y{place}"}
    several = len(view.node_counts) > 1
    for index, nodes in enumerate(view.node_counts):
        here = [t for t in panel.layouts if t.layout.num_nodes == nodes]
        color, symbol = _MARKERS[index % len(_MARKERS)]
        name, legend = plural(nodes, "node") if several else "measured", {"showlegend": place == 1}
        yield _points(view, panel, here, name, color, symbol=symbol, opacity=0.7) | where | legend
        front, front_color = panel.front(here), color if several else "@accent"
        drawn = line([panel.x(t) for t in front], [panel.speed(t) for t in front], "Pareto front", front_color)
        shape = {"line": {"shape": "vh" if panel.wants_most else "hv", "width": 2, "color": front_color}}
        yield drawn | shape | where | {"showlegend": place == 1 and not several}
    best = [t for t in panel.layouts if t is view.best]
    star = {"symbol": "star", "size": 17, "line": {"width": 1.5, "color": "@paper"}}
    yield _points(view, panel, best, best_title(view), "@c2", **star) | where | {"showlegend": place == 1}


def _points(
    view: SearchView, panel: _Panel, layouts: Sequence[RankedLayout], name: str, color: str, **marker: Any
) -> dict[str, Any]:
    text = [
        f"{format_trial(t, view.varying)}<br>{format_short(panel.speed(t))} {UNITS[view.objective]},"
        f" {format_short(panel.x(t))} {panel.unit}"
        for t in layouts
    ]
    return scatter([panel.x(t) for t in layouts], [panel.speed(t) for t in layouts], text, name, color, **marker)


def _describe_front(panel: _Panel, view: SearchView) -> str:
    """The ends of the front on as many nodes as the best layout has."""
    nodes = view.best_num_nodes
    here = [t for t in panel.layouts if t.layout.num_nodes == nodes] or panel.layouts
    front, unit = panel.front(here), UNITS[view.objective]
    where = f"On {plural(here[0].layout.num_nodes, 'node')}: " if len(view.node_counts) > 1 else ""
    first, last = front[0], front[-1]
    known = f"{format_short(panel.x(first))} {panel.unit} at {format_short(panel.speed(first))} {unit}"
    named = f"{first.trial} ({short_name(first.layout, view.varying)})"
    if first is last:
        return f"{where}{named} has both the best value and the highest throughput: {known}."
    return (
        f"{where}{len(front)} of {plural(len(here), 'layout')} are on the Pareto front, from {named} with {known} to"
        f" {last.trial} with {format_short(panel.x(last))} {panel.unit} at {format_short(panel.speed(last))}."
    )


def _describe_scaling(view: SearchView) -> Iterator[str]:
    """Speed of the Pareto-optimal layouts on the fewest and the most nodes, where there are several."""
    points = sorted(pareto(view.ranking), key=lambda t: t.layout.num_nodes)
    if not points or points[0].layout.num_nodes == points[-1].layout.num_nodes:
        return
    few, many = points[0], points[-1]
    ratio = many.measured.tokens_per_sec / few.measured.tokens_per_sec
    nodes = many.layout.num_nodes / few.layout.num_nodes
    yield (
        f"From {few.trial} on {plural(few.layout.num_nodes, 'node')} to {many.trial} on {many.layout.num_nodes}:"
        f" {format_short(ratio)} times the throughput for {format_short(nodes, has_zeros=False)} times the nodes."
    )
