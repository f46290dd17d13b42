"""Figures as pages of their own and as plotly's graph objects: the same as in the report, and as safe."""

from __future__ import annotations

import json

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures import standalone_page
from dashboards.report.figures.plotly_export import graph_figures
from dashboards.report.figures.registry import report_figures
from dashboards.report.figures.standalone_page import figure_pages
from tests.dashboards.report.searches import HOSTILE, a_full_search, a_search
from tests.dashboards.report.test_page import Page
from tests.dashboards.searches import START


@pytest.mark.security("reports")
def test_the_main_figures_are_each_a_page_that_draws_just_that_one_and_asks_for_nothing(monkeypatch):
    monkeypatch.setattr(standalone_page, "plotly", lambda: "var Plotly;")
    pages = figure_pages(report_data(a_search(num_measured=6, name=HOSTILE).record, START))
    assert list(pages) == ["progress", "memory", "heat", "parallel"]
    for key, text in pages.items():
        page = Page(text)
        [place] = page.all("div", **{"class": "plot"})
        [drawn] = [json.loads(script) for script in page.scripts if script.startswith("{")]
        [policy] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
        assert (place["data-figure"], list(drawn), len(page.scripts), page.all("img")) == (key, [key], 3, [])
        assert policy["content"].startswith("default-src 'none'; script-src 'sha256-")
        assert not any(name in attributes for _, attributes in page.elements for name in ("src", "href", "onerror"))


@pytest.mark.slow
def test_every_figure_that_the_page_draws_is_a_graph_object_in_the_colours_of_its_scheme():
    data = report_data(a_full_search().record, START)
    drawn = {key: figure for key, figure in report_figures(data).items() if figure.plot}
    for is_dark, background in ((False, "#ffffff"), (True, "#171b20")):
        figures = graph_figures(data, is_dark)
        assert list(figures) == list(drawn)
        for key, figure in figures.items():
            told = json.loads(figure.to_json())
            assert [trace["type"] for trace in told["data"]] == [trace["type"] for trace in drawn[key].plot["data"]]
            assert told["layout"]["title"]["text"] == drawn[key].title
            assert '"@' not in json.dumps(told), "a colour's name on the page"
            assert told["layout"]["paper_bgcolor"] == background
