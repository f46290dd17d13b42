"""All figures of the report, and their order. Pure."""

from __future__ import annotations

from dashboards.report.figures.figure import Figure
from dashboards.report.figures.layouts import layout_figures
from dashboards.report.figures.search import search_figures
from dashboards.report.figures.tradeoffs import tradeoff_figure
from dashboards.search_view import SearchView

SECTIONS = (
    ("search", "Progress", ("progress", "importance")),
    ("layouts", "Layouts", ("memory", "heat")),
    ("best", None, ("time",)),
    ("accuracy", "Prediction accuracy", ("predictions",)),
)
"""Key, title (None: that of the best layout) and figures of each section of the page, in order."""

_WIDE = {"progress", "importance", "time", "predictions"}


def wide_figures(view: SearchView) -> set[str]:
    """Keys of the figures over both columns of the page."""
    return _WIDE | ({"memory", "heat"} if len(view.node_counts) > 1 or len(view.objectives) > 1 else set())


def report_figures(view: SearchView) -> dict[str, Figure]:
    """Figures by key, in the order of the page."""
    order = [key for _, _, keys in SECTIONS for key in keys]
    drawn = (*search_figures(view), tradeoff_figure(view), *layout_figures(view))
    return {figure.key: figure for figure in sorted(drawn, key=lambda figure: order.index(figure.key))}
