"""A figure of the report as a file of its package_file, for a viewer that shows one file at a time."""

from __future__ import annotations

from dashboards.report.data import ReportData
from dashboards.report.figures.figure import Figure
from dashboards.report.figures.registry import report_figures
from dashboards.report.html import embedded_json, html_page, package_file, plotly

_MAIN = ("progress", "memory", "heat", "parallel")
"""Each file holds plotly.js, five megabytes, so only what is looked at again and again is one."""


def figure_pages(data: ReportData) -> dict[str, str]:
    """The main figures by their keys, each a whole HTML file as the report is; what cannot be drawn is left out."""
    figures = report_figures(data)
    return {key: _page(data, figures[key]) for key in _MAIN if figures[key].plot}


def _page(data: ReportData, figure: Figure) -> str:
    title = f"{data.name}: {figure.title}"
    drawn = embedded_json({figure.key: figure.plot})
    scripts = (plotly(), package_file("page.js"))
    return html_page("figure.html.jinja", title, scripts, data=data, figure=figure, figures=drawn).text
