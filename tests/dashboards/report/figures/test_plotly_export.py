"""Figures as plotly graph objects: the same data, complete, and in the page's colours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures.plotly_export import graph_figures
from dashboards.report.figures.registry import report_figures
from tests.dashboards.report.searches import a_full_search
from tests.dashboards.searches import START, SearchUnderTest


@pytest.fixture(scope="module")
def data():
    return report_data(a_full_search().record, START)


def words_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for inner in value.values() for word in words_in(inner)]
    if isinstance(value, (list, tuple)):
        return [word for inner in value for word in words_in(inner)]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
@pytest.mark.parametrize("is_dark", [False, True])
def test_every_figure_that_the_page_draws_is_there_with_its_title_and_points(data, is_dark):
    drawn = {key: figure for key, figure in report_figures(data).items() if figure.plot}
    figures = graph_figures(data, is_dark)
    assert list(figures) == list(drawn)
    for key, figure in figures.items():
        assert figure.layout.title.text == drawn[key].title
        told = json.loads(figure.to_json())["data"]
        assert [trace["type"] for trace in told] == [trace["type"] for trace in drawn[key].plot["data"]]


@pytest.mark.slow
def test_no_colour_is_left_a_word_of_ours_and_dark_ones_differ(data):
    light, dark = (graph_figures(data, is_dark)["progress"] for is_dark in (False, True))
    for figure in graph_figures(data).values():
        assert not [word for word in words_in(json.loads(figure.to_json())) if word.startswith("@")]
    assert (light.layout.paper_bgcolor, dark.layout.paper_bgcolor) == ("#ffffff", "#171b20")


def test_without_a_measurement_there_is_nothing_to_draw():
    assert graph_figures(report_data(SearchUnderTest().record, START)) == {}
