"""Standalone figures: the same as in the report, and as safe."""

from __future__ import annotations

import json

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures import standalone_page
from dashboards.report.figures.standalone_page import figure_pages
from tests.dashboards.report.searches import a_search
from tests.dashboards.report.test_page import HOSTILE, Page
from tests.dashboards.searches import START, SearchUnderTest


@pytest.fixture(autouse=True)
def _short_plotly(monkeypatch):
    monkeypatch.setattr(standalone_page, "plotly", lambda: "var Plotly;")


def pages_of(search: SearchUnderTest) -> dict[str, str]:
    return figure_pages(report_data(search.record, START))


def test_the_main_figures_are_each_a_page_that_draws_just_that_one():
    pages = pages_of(a_search(num_measured=6))
    assert list(pages) == ["progress", "memory", "heat", "parallel"]
    for key, text in pages.items():
        page = Page(text)
        [place] = page.all("div", **{"class": "plot"})
        assert place["data-figure"] == key
        assert page.all("h1")
        [drawn] = [json.loads(script) for script in page.scripts if script.startswith("{")]
        assert list(drawn) == [key]


def test_what_cannot_be_drawn_is_no_page():
    assert pages_of(SearchUnderTest()) == {}


def test_a_page_asks_for_nothing_and_hostile_names_stay_text():
    text = pages_of(a_search(num_measured=6, name=HOSTILE))["memory"]
    page = Page(text)
    [policy] = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy["content"].startswith("default-src 'none'; script-src 'sha256-")
    assert len(page.scripts) == 3
    assert page.all("img") == []
    assert not any(name in attributes for _, attributes in page.elements for name in ("src", "href", "onerror"))
