"""Figures of trade-offs: the search's own objectives, and memory by number of nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures.registry import report_figures
from tests.dashboards.report.searches import BASELINE, FASTEST, spec
from tests.dashboards.searches import START, SearchUnderTest


def figures_of(*speeds: tuple[int, float], **more):
    search = SearchUnderTest(spec(**more))
    for num_nodes, speed in speeds:
        search.measure(search.start(replace(BASELINE, num_nodes=num_nodes)), speed)
    search.measure(search.start(replace(FASTEST, num_nodes=1)), 500.0)
    return report_figures(report_data(search.record, START + 3600))


def test_the_pareto_front_of_the_objectives_names_every_layout_on_it():
    goals = figures_of((1, 900.0), (2, 1500.0), objective=["tokens_per_sec", "node_hours_per_billion_tokens"])["goals"]
    measured, front = goals.plot["data"]
    assert len(measured["x"]) == 3
    assert front["text"] == ["n1 tp4 pp1 dp2 mb1", "n2 tp4 pp1 dp2 mb1"]
    assert front["x"] == [900.0, 1500.0]
    assert front["y"] == pytest.approx([1e9 / 3600 / 900, 1e9 / 3600 / 750])
    assert "n2 tp4 pp1 dp2 mb1: 1,500 tokens/s, 370 node-hours per billion tokens" in goals.summary


def test_a_single_objective_has_no_such_figure():
    assert "goals" not in figures_of((1, 900.0))


def test_each_number_of_nodes_has_a_colour_of_its_own():
    drawn = figures_of((1, 900.0), (2, 1500.0))["memory"].plot["data"]
    assert [trace["name"] for trace in drawn] == ["1 node", "2 nodes", "Pareto front", "best layout"]


def test_the_heat_map_compares_layouts_on_the_bests_nodes():
    found = figures_of((1, 900.0), (2, 1500.0))["heat"]
    assert "Highest with tensor 4 and pipeline 1 on 2 nodes" in found.summary
    assert found.plot["data"][0]["z"] == [[1500.0]]
