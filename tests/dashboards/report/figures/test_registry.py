"""Figures: plots, summaries, and their other forms."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from itertools import product

import numpy as np
import pytest

from dashboards.report.figures import registry
from dashboards.report.figures.importance import axis_importance
from dashboards.report.figures.plotly_export import graph_figures
from dashboards.report.page import report_without_scripts
from dashboards.search_view import SearchView
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, STATES, a_full_search, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import TINY
from trials.trial import FailureReason


def report_figures(search):
    return registry.report_figures(SearchView.of(search.record, START + 3600))


def only_failed():
    search = SearchUnderTest(spec())
    for reason in FailureReason:
        search.fail(search.start(BASELINE), reason)
    search.end("failed", "no_feasible_layout")
    return search


@pytest.mark.parametrize(
    "search",
    [SearchUnderTest, only_failed, partial(a_search, 18)],
    ids=["empty", "failed", "ended"],
)
def test_every_figure_has_words_and_only_finite_numbers(search):
    for figure in report_figures(search()).values():
        assert figure.summary.endswith(".")
        json.dumps(figure.plot, allow_nan=False)


def test_figures_are_in_the_order_of_the_page_and_in_its_colours():
    view = SearchView.of(a_full_search().record, START + 3600)
    figures = registry.report_figures(view)
    drawn = [key for key, figure in figures.items() if figure.plot]
    assert drawn == re.findall(r'data-figure="(\w+)"', report_without_scripts(view).text)
    text = json.dumps([figure.plot for figure in figures.values()])
    assert not any(written_out in text for written_out in ("#", "rgb")), "it would be wrong in the dark"


def drawn(search: SearchUnderTest, figure: str) -> dict[str, tuple[list, list]]:
    """Points of a figure's traces by their names."""
    traces = report_figures(search)[figure].plot["data"]
    return {trace["name"]: (list(trace["x"]), list(trace["y"])) for trace in traces}


def repeated():
    """The best layout of `a_search`, measured again 13 % slower."""
    search = a_search()
    search.measure(search.start(FASTEST, "repeat"), 1300.0)
    return search


def several_nodes(objectives=("tokens_per_sec", "joules_per_token")):
    """Eleven micro-batches on two nodes, slower the larger, and a layout on one and on four nodes."""
    search = SearchUnderTest(spec(objectives=list(objectives), global_batch_size=2**11))
    for power in range(11):
        layout = Layout(num_nodes=2, micro_batch_size=2**power, data_parallel=2, grad_accum_steps=2 ** (10 - power))
        energy = {"joules_per_token": 2.0 + power}
        search.measure(search.start(layout), 1500.0 - 100 * power, **energy, peak_memory_gib=10.0 - power / 2)
    for nodes, speed, joules in ((1, 600.0, 1.0), (4, 1450.0, 9.0)):
        layout = Layout(num_nodes=nodes, tensor_parallel=2, grad_accum_steps=2**11)
        search.measure(search.start(layout), speed, joules_per_token=joules, peak_memory_gib=20.0)
    search.fail(search.start(Layout(num_nodes=4, tensor_parallel=4, grad_accum_steps=2**11)), FailureReason.GPU_OOM)
    return search


POOLED = pytest.approx(math.sqrt(1500.0 * 1300.0))


@pytest.mark.parametrize(
    ("search", "figure", "trace", "x", "y"),
    [
        (repeated, "progress", "measured", None, [1000.0, 1500.0, 1300.0]),
        (repeated, "progress", "highest so far", None, [1000.0, 1500.0, 1500.0, 1500.0]),
        (repeated, "progress", "fastest so far: t0003", None, [POOLED, POOLED]),
        (several_nodes, "memory", "2 nodes", [10.0 - power / 2 for power in range(11)], None),
    ],
)
def test_a_figure_has_its_points(search, figure, trace, x, y):
    found = drawn(search(), figure)[trace]
    assert x is None or found[0] == x
    assert y is None or found[1] == y


@pytest.mark.parametrize(
    ("search", "figure", "words"),
    [
        (several_nodes, "memory", "2.50 times the throughput for 2 times the nodes."),
        (several_nodes, "importance", "on 11 measured layouts on 2 nodes;"),
    ],
)
def test_a_figure_is_summarised(search, figure, words):
    assert words in report_figures(search())[figure].summary


def test_a_layout_has_one_number_over_all_its_runs_and_numbers_of_nodes_are_not_pooled():
    figures = report_figures(repeated())
    for key, pooled in (("memory", "1396.42"), ("heat", "1396.42")):
        text = json.dumps(figures[key].plot)
        assert pooled in text
        assert "1500" not in text
    figures = report_figures(several_nodes())
    heat = figures["heat"].plot
    assert heat["layout"]["xaxis"]["ticktext"] == ["2", "1", "2", "4"]
    assert heat["data"][0]["z"] == [[1.0, 1.0, 1.0, None]]
    lines = [trace for trace in figures["memory"].plot["data"] if trace["name"] == "Pareto front"]
    assert [len(line["x"]) for line in lines] == [1, 1, 1, *(1, 11, 1)], "by energy, then by memory"


def test_the_heat_map_has_the_best_of_each_cell_and_a_cross_where_all_failed():
    plot = report_figures(a_search())["heat"].plot
    slow, fast = plot["data"]
    assert plot["layout"]["xaxis"]["ticktext"] == ["1", "2", "4"]
    assert plot["layout"]["yaxis"]["ticktext"] == ["1", "2"]
    assert (slow["z"], slow["text"][0]) == ([[None, None, 1000.0], [None, None, None]], ["", "", "1.00k"])
    assert fast["z"] == [[None, None, None], [None, 1500.0, None]]
    assert {(heat["zmin"], heat["zmax"]) for heat in plot["data"]} == {(1000.0, 1500.0)}
    (cross,) = plot["layout"]["annotations"]
    assert (cross["x"], cross["y"]) == (0, 0)


def test_predictions_are_those_of_the_proposal_and_their_error_is_told_by_range_where_enough_have_one():
    search = SearchUnderTest(spec())
    for size, measured in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0), 1):
        trial = search.start(Layout(micro_batch_size=size), prediction={"step_time_s": 5.0})
        search.measure(trial, 1000.0, step_time_s=measured)
    figure = report_figures(search)["predictions"]
    ranges = "150 % from 1.00 to 3.00 s, 20 % from 4.00 to 6.00 s, 300 % from 10.0 to 30.0 s"
    assert f"in time (9 trials; {ranges})" in figure.summary
    points = next(trace for trace in figure.plot["data"] if trace["mode"] == "markers")
    assert (points["x"][-1], {*points["y"]}) == (30.0, {5.0})
    axis = figure.plot["layout"]["xaxis"]
    ticks = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert axis["type"] == "log"
    assert {float(text): value for text, value in ticks.items()} == {value: value for value in ticks.values()}


def test_what_cannot_be_compared_is_not_drawn():
    figures = report_figures(STATES["one_trial"]())
    assert [figures[key].plot for key in ("memory", "heat")] == [None] * 2
    assert {"nodes", "objectives"}.isdisjoint(figures)
    assert report_figures(a_search(9))["importance"].plot is None


def grid():
    """48 layouts; the speed follows from the first two axes alone."""
    axes = product((1, 2, 4, 8), ("none", "full"), (1, 2, 4), (False, True))
    layouts = [dict(zip(("tensor", "recompute", "micro", "compiled"), values, strict=True)) for values in axes]
    speeds = [1000 / layout["tensor"] * (1.2 if layout["recompute"] == "none" else 1.0) for layout in layouts]
    return layouts, speeds


def test_axes_that_change_the_speed_come_first_others_are_near_zero_and_noise_explains_nothing():
    found = axis_importance(*grid())
    assert list(found.effects)[:2] == ["tensor", "recompute"]
    # Halved with each of three doublings, so off the geometric mean by 2^1.5, 2^0.5, 2^0.5, 2^1.5.
    assert found.effects["tensor"] == pytest.approx(1.0, abs=0.1)
    assert found.effects["recompute"] == pytest.approx(math.sqrt(1.2) - 1, abs=0.02)
    assert max(found.effects["micro"], found.effects["compiled"]) < 0.01
    assert found.explained > 0.95
    assert found.num_layouts == 48
    rng = np.random.default_rng(11)
    layouts, _ = grid()
    found = axis_importance(layouts, list(rng.lognormal(size=len(layouts))))
    assert not found.is_reliable


OF_BASELINE = {"compute": 0.6, "tensor": 0.3, "data_parallel": 0.1}
OF_BEST = {"compute": 0.52, "tensor": 0.1, "data_parallel": 0.1, "bubble": 0.05, "optimizer": 0.001}


def measured(of_baseline=None, of_best=None, **more) -> SearchUnderTest:
    search = SearchUnderTest(spec(**more))
    search.measure(search.start(BASELINE), 1000.0, time_s=of_baseline)
    search.measure(search.start(FASTEST), 1250.0, time_s=of_best)
    return search


def test_the_bridge_leads_from_one_step_time_to_the_other():
    figure = report_figures(measured(OF_BASELINE, OF_BEST))["time"]
    (bars,) = figure.plot["data"]
    assert bars["y"] == ["the baseline", "tensor", "compute", "bubble", "others", "unexplained", "t0002"]
    assert bars["x"] == pytest.approx([1.0, -0.2, -0.08, 0.05, 0.001, 0.029, 0.8])
    assert math.fsum(bars["x"][:-1]) == pytest.approx(bars["x"][-1])
    assert figure.summary == (
        "Measured: 1.00 s (the baseline) to 0.800 s (t0002). By part, as profiled: tensor"
        " \N{MINUS SIGN}0.200 s, compute \N{MINUS SIGN}0.0800 s, bubble +0.0500 s, others +0.00100 s, unexplained"
        " +0.0290 s."
    )


def test_profiled_and_predicted_seconds_are_not_mixed():
    cluster = Cluster(ACCELERATORS["a100-40gb"], 4, 2).to_json()
    figure = report_figures(measured(None, OF_BEST, model=TINY.to_json(), cluster=cluster))["time"]
    assert "as predicted by the cost model, not measured" in figure.summary
    (bars,) = figure.plot["data"]
    assert (bars["y"][0], bars["y"][-2]) == ("the baseline", "unexplained")
    assert (bars["x"][0], bars["x"][-1]) == (1.0, 0.8)
    (bars,) = report_figures(measured(None, OF_BEST))["time"].plot["data"]
    assert bars["y"][0] == "compute"


@pytest.mark.slow
def test_every_figure_that_the_page_draws_is_a_graph_object_in_the_colours_of_its_scheme():
    view = SearchView.of(a_full_search().record, START)
    drawn = {key: figure for key, figure in registry.report_figures(view).items() if figure.plot}
    for is_dark, background in ((False, "#ffffff"), (True, "#171b20")):
        figures = graph_figures(view, is_dark)
        assert list(figures) == list(drawn)
        for key, figure in figures.items():
            told = json.loads(figure.to_json())
            assert [trace["type"] for trace in told["data"]] == [trace["type"] for trace in drawn[key].plot["data"]]
            assert told["layout"]["title"]["text"] == drawn[key].title
            assert '"@' not in json.dumps(told), "a colour's name on the page"
            assert told["layout"]["paper_bgcolor"] == background
