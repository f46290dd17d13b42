"""Report figures as plotly graph objects, for notebooks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import plotly.graph_objects as go

from dashboards.report.figures.figure import Figure
from dashboards.report.figures.registry import report_figures
from dashboards.report.html import package_file
from dashboards.search_view import SearchView

_MARGIN = {"l": 58, "r": 18, "t": 64, "b": 44}
_MARGIN_ABOVE_LEGEND = 96
_SIZE = 12.5


def graph_figures(view: SearchView, is_dark: bool = False) -> dict[str, go.Figure]:
    """Drawable figures by key, in the page's light or dark colours."""
    colors = _colors(is_dark)
    return {key: _graph_figure(figure, colors) for key, figure in report_figures(view).items() if figure.plot}


def _graph_figure(figure: Figure, colors: Mapping[str, str]) -> go.Figure:
    drawn = figure.plot or {}
    return go.Figure(_resolve_colors({"data": drawn["data"], "layout": _theme(figure, drawn["layout"])}, colors))


def _theme(figure: Figure, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Layout with the theme that page.js applies, and the figure's title."""
    has_legend = "legend" in layout or layout.get("showlegend", False)
    margin = _MARGIN | ({"t": _MARGIN_ABOVE_LEGEND} if has_legend else {})
    base = {
        "title": {"text": figure.title, "x": 0, "xref": "paper", "y": 1, "yref": "container", "pad": {"t": 16}},
        "height": figure.height + margin["t"],
        "paper_bgcolor": "@paper",
        "plot_bgcolor": "@paper",
        "showlegend": has_legend,
        "font": {"size": _SIZE, "color": "@ink"},
        "margin": margin,
        "hoverlabel": {"bgcolor": "@paper", "bordercolor": "@grid", "font": {"color": "@ink"}},
    }
    axes = {name: _axis(layout[name]) for name in layout if re.fullmatch(r"[xy]axis\d*", name)}
    return base | dict(layout) | axes


def _axis(axis: Mapping[str, Any]) -> dict[str, Any]:
    lines = dict.fromkeys(("gridcolor", "zerolinecolor", "linecolor"), "@grid")
    title = {**axis.get("title", {}), "font": {"size": _SIZE, "color": "@muted"}}
    return {**lines, "automargin": True, "tickfont": {"color": "@muted"}, **axis, "title": title}


def _resolve_colors(value: Any, colors: Mapping[str, str]) -> Any:
    """Copy with every "@name" replaced by its colour."""
    if isinstance(value, str):
        return colors[value[1:]] if value.startswith("@") else value
    if isinstance(value, Mapping):
        return {name: _resolve_colors(inner, colors) for name, inner in value.items()}
    return [_resolve_colors(inner, colors) for inner in value] if isinstance(value, (list, tuple)) else value


@cache
def _colors(is_dark: bool) -> Mapping[str, str]:
    """Colours of page.css by name: its first block is light, its second dark."""
    blocks = re.findall(r":root[^{]* \{([^}]*)\}", package_file("page.css"))
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", blocks[is_dark]))
