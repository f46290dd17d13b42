"""Figure type and shared building blocks. Pure; keys are those of plotly.js.

A colour is "@name": one of the page's colours in page.css, resolved for the light or the dark scheme when drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.trial_text import format_short

SEQUENTIAL = [[0.0, "@s0"], [0.25, "@s1"], [0.5, "@s2"], [0.75, "@s3"], [1.0, "@s4"]]
"""Colour scale from slow to fast. Text in "@onslow" has a contrast of 4.5 on its first half, text in "@onfast" on its
second, in either scheme."""


LOG_FROM = 4
"""Ratio of largest to smallest value from which an axis is logarithmic."""


@dataclass(frozen=True)
class Figure:
    """Figure with its text.

    `summary` states the result, also where nothing can be drawn (`plot` None). `note` explains how to read the plot.
    `height` is in CSS pixels.
    """

    key: str
    title: str
    summary: str
    plot: Mapping[str, Any] | None = None
    height: int = 340
    note: str | None = None


def plot(traces: Sequence[Mapping[str, Any]], **layout: Any) -> dict[str, Any]:
    """Plot of these traces, with layout settings."""
    return {"data": list(traces), "layout": layout}


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """Axis with a title."""
    return {"title": {"text": title}, **settings}


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """Logarithmic axis from `low` to `high` with full tick labels; plotly labels 0.5 and 50 as 5."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if high > 10 * low else (1, 2, 3, 5, 7)
    ticks = [digit * 10.0**power for power in powers for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [format_short(tick, has_zeros=False) for tick in ticks]}


def by_range(values: Sequence[float]) -> dict[str, Any]:
    """Logarithmic axis for values that differ by more than four times, else a linear one."""
    low, high = min(values), max(values)
    return logarithmic(low, high) if 0 < LOG_FROM * low < high else {"type": "linear", "rangemode": "tozero"}


def scatter(x: Sequence[Any], y: Sequence[Any], text: Sequence[str], name: str, color: str, **marker: Any) -> dict:
    """Scatter trace with a tooltip for each point."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": list(text),
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": color, "size": 8, "line": {"width": 1, "color": "@paper"}, **marker},
    }


def line(x: Sequence[Any], y: Sequence[Any], name: str, color: str, **settings: Any) -> dict:
    """Line trace without points."""
    drawn = {"color": color, "width": 2} | settings.pop("line", {})
    base = {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": list(y), "hoverinfo": "skip"}
    return base | {"line": drawn} | settings
