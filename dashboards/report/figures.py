"""All figures of the report. Pure."""

from __future__ import annotations

from dashboards.report.data import ReportData
from dashboards.report.figure import Figure
from dashboards.report.layout_figures import layout_figures
from dashboards.report.search_figures import search_figures
from dashboards.report.trade_figures import trade_figures


def figures_of(data: ReportData) -> dict[str, Figure]:
    """By their keys."""
    drawn = (*search_figures(data), *trade_figures(data), *layout_figures(data))
    return {figure.key: figure for figure in drawn}
