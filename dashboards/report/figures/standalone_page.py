"""Report figures as standalone HTML files, for MLflow's artifact viewer."""

from __future__ import annotations

from dashboards.report.data import ReportData
from dashboards.report.figures.figure import Figure
from dashboards.report.figures.registry import report_figures
from dashboards.report.html import embedded_json, html_page, package_file, plotly

_MAIN = ("progress", "memory", "heat")
"""Figures with a file of their own. Each file holds plotly.js (5 MB), so there are only a few."""


def figure_pages(data: ReportData) -> dict[str, str]:
    """Main figures by key, each as a self-contained HTML file; figures without a plot are omitted."""
    figures = report_figures(data)
    return {key: _page(data, figures[key]) for key in _MAIN if figures[key].plot}


def _page(data: ReportData, figure: Figure) -> str:
    title = f"{data.name}: {figure.title}"
    drawn = embedded_json({figure.key: figure.plot})
    scripts = (plotly(), package_file("page.js"))
    return html_page("figure.html.jinja", title, scripts, data=data, figure=figure, figures=drawn).text
