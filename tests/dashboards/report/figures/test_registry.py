"""Plots and summaries of the figures."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import partial

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures import registry
from dashboards.report.figures.tradeoffs import memory_front
from dashboards.report.page import report_without_scripts
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, STATES, a_full_search, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from trials.trial import FailureReason


def report_figures(search):
    return registry.report_figures(report_data(search.record, START + 3600))


def only_running():
    search = SearchUnderTest(spec())
    search.start(BASELINE)
    return search


def only_failed():
    search = SearchUnderTest(spec())
    for reason in FailureReason:
        search.fail(search.start(BASELINE), reason)
    search.end("failed", "no_feasible_layout")
    return search


def with_settings():
    """Environment variables of words and numbers, each unset in some layout."""
    search = a_search(12)
    for settings in ("-env.OMP_NUM_THREADS", "env.NCCL_ALGO=Ring env.OMP_NUM_THREADS=2", "env.OMP_NUM_THREADS=10"):
        search.measure(search.start(replace(BASELINE, settings=settings)), 1100.0)
    return search


@pytest.mark.parametrize(
    "search",
    [SearchUnderTest, only_running, only_failed, a_search, partial(a_search, 18), with_settings],
    ids=["empty", "running", "failed", "ended", "larger", "settings"],
)
def test_every_figure_has_words_and_only_finite_numbers(search):
    for figure in report_figures(search()).values():
        assert figure.summary.endswith(".")
        json.dumps(figure.plot, allow_nan=False)


def test_figures_are_in_the_order_of_the_page():
    data = report_data(a_full_search().record, START + 3600)
    drawn = [key for key, figure in registry.report_figures(data).items() if figure.plot]
    page = report_without_scripts(data).text
    assert drawn == re.findall(r'data-figure="(\w+)"', page)


def test_no_run_lies_above_the_line_of_the_highest():
    """A layout that was measured twice is drawn by its runs, and its speed over both by a line of its own."""
    search = a_search()
    search.measure(search.start(FASTEST, "repeat"), 1300.0)
    traces = {trace["name"]: trace for trace in report_figures(search)["progress"].plot["data"]}
    assert traces["measured"]["y"] == [1000.0, 1500.0, 1300.0]
    assert traces["highest so far"]["y"] == [1000.0, 1500.0, 1500.0, 1500.0]
    assert traces["fastest so far: t0003"]["y"] == [pytest.approx(math.sqrt(1500.0 * 1300.0))] * 2
    assert traces["baseline"]["y"] == [1000.0, 1000.0]
    assert len(traces["failed"]["x"]) == 1


def test_a_run_above_the_speed_over_all_runs_is_not_said_to_be_within_2_percent_of_it():
    search = a_search()
    search.measure(search.start(FASTEST, "repeat"), 1000.0)
    words = report_figures(search)["progress"].summary
    assert "within 2 %" not in words
    assert words.endswith("a run had reached 98 % of that.")


def test_the_pareto_line_has_what_nothing_beats_in_both():
    trial = report_data(a_search().record, START).trials[0]
    points = [(1.0, 10.0), (2.0, 30.0), (2.0, 20.0), (3.0, 25.0), (4.0, 40.0), (1.0, 5.0)]
    metrics = [(replace(trial.metrics, peak_memory_gib=memory), speed) for memory, speed in points]
    trials = [replace(trial, metrics=known, speed=speed) for known, speed in metrics]
    assert [(t.peak_memory_gib, t.speed) for t in memory_front(trials)] == [(1.0, 10.0), (2.0, 30.0), (4.0, 40.0)]


def test_the_heat_map_has_the_best_of_each_cell_and_a_cross_where_all_failed():
    plot = report_figures(a_search())["heat"].plot
    slow, fast = plot["data"]
    assert plot["layout"]["xaxis"]["ticktext"] == ["1", "2", "4"]
    assert plot["layout"]["yaxis"]["ticktext"] == ["1", "2"]
    assert (slow["z"], slow["textfont"]) == ([[None, None, 1000.0], [None, None, None]], {"color": "@onslow"})
    assert (fast["z"], fast["textfont"]) == ([[None, None, None], [None, 1500.0, None]], {"color": "@onfast"})
    assert slow["text"][0] == ["", "", "1.00k"]
    assert {(heat["zmin"], heat["zmax"]) for heat in plot["data"]} == {(1000.0, 1500.0)}
    (cross,) = plot["layout"]["annotations"]
    assert (cross["x"], cross["y"]) == (0, 0)


def test_the_heat_map_does_not_speak_of_sizes_that_failed_where_none_did():
    assert report_figures(a_full_search())["heat"].summary.endswith("5 combinations measured.")


def test_the_fastest_fifth_of_the_layouts_is_drawn_strongest_and_says_what_it_has_in_common():
    figure = report_figures(a_search(18))["parallel"]
    assert [trace["line"]["color"] for trace in figure.plot["data"]] == ["@s0", "@s1", "@s2", "@s3", "@s4"]
    assert figure.summary.endswith("The fastest 20 % have no setting in common.")
    first = report_figures(a_search(2))["parallel"]
    assert [trace["line"]["color"] for trace in first.plot["data"]] == ["@s2", "@s4"]
    assert "The fastest 20 % all have tensor 2" in first.summary


def test_failures_are_counted_by_reason():
    search = a_search()
    search.prune(search.start(Layout(data_parallel=8, micro_batch_size=1)), 500.0)
    figure = report_figures(search)["failures"]
    assert {bar["name"]: sum(bar["y"]) for bar in figure.plot["data"]} == {"out of memory": 1}
    assert figure.summary.startswith("1 trial of 4 failed: 1 out of memory. 1 trial stopped early")
    assert "stopped early" not in report_figures(a_search())["failures"].summary


def test_failures_by_axis_value_are_of_all_reasons_and_say_of_which_no_value_tells():
    search = SearchUnderTest(spec())
    for tensor in (1, 2, 4):
        for size in (1, 2, 4, 8):
            trial = search.start(Layout(tensor_parallel=tensor, data_parallel=8 // tensor, micro_batch_size=size))
            if size == 8:
                search.fail(trial, FailureReason.TIME_LIMIT)
            elif tensor == size:
                search.fail(trial, FailureReason.SCRIPT_ERROR)
            else:
                search.measure(trial, 1000.0)
    figure = report_figures(search)["failures_by_axis"]
    assert figure.summary == (
        "Time limit: 3 of 3 had micro-batch 8, and 0 of the 6 that ran. "
        "No axis value explains the rest: 3 trainer crashed."
    )
    assert {bar["name"]: bar["y"] for bar in figure.plot["data"]} == {
        "ran": [2, 2, 2, 0],
        "time limit": [0, 0, 0, 3],
        "trainer crashed": [1, 1, 1, 0],
    }


def test_importance_says_what_it_rests_on_and_nothing_below_ten():
    assert report_figures(a_search(9))["importance"].plot is None
    figure = report_figures(a_search(18))["importance"]
    assert figure.plot["data"][0]["y"][-1] == "tensor"
    assert "18 measured layouts" in figure.summary


def test_predictions_are_those_of_the_proposal():
    search = a_search()
    trials = tuple(replace(t, prediction={"step_time_s": 1.1, "peak_memory_gib": 1.5}) for t in search.record.trials)
    search.records[-1] = replace(search.record, trials=trials)
    figure = report_figures(search)["predictions"]
    scatter = [trace for trace in figure.plot["data"] if trace["mode"] == "markers"]
    assert scatter[0]["x"] == [1.0, pytest.approx(1000 / 1500)]
    assert scatter[0]["y"] == [1.1, 1.1]
    assert "in time (2 trials)" in figure.summary
    assert "in memory (2 trials)" in figure.summary


def test_the_error_of_predictions_is_told_by_range_where_enough_have_one():
    search = a_search(9)
    measured = iter((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0, 20.0, 30.0))
    data = report_data(search.record, START)
    trials = tuple(
        replace(t, metrics=replace(t.metrics, step_time_s=next(measured)), predicted_step_time_s=5.0)
        if t.metrics
        else t
        for t in data.trials
    )
    assert sum(t.metrics is not None for t in trials) == 9
    summary = registry.report_figures(replace(data, trials=trials))["predictions"].summary
    assert (
        "in time (9 trials; 150 % from 1.00 to 3.00 s, 20 % from 4.00 to 6.00 s, 300 % from 10.0 to 30.0 s)" in summary
    )


def test_the_ticks_of_a_logarithmic_axis_say_their_whole_value():
    axis = report_figures(a_full_search())["predictions"].plot["layout"]["xaxis"]
    assert axis["type"] == "log"
    ticks = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert ticks.items() >= {"0.5": 0.5, "1": 1.0, "5": 5.0, "10": 10.0}.items()


def test_what_more_nodes_bring_is_drawn_where_several_numbers_of_nodes_were_measured():
    assert "nodes" not in report_figures(a_search())
    search = SearchUnderTest(spec(objective=["tokens_per_sec", "node_hours_per_billion_tokens"]))
    for nodes, speed in ((1, 900.0), (2, 1500.0), (4, 1400.0)):
        search.measure(search.start(replace(BASELINE, num_nodes=nodes)), speed)
    figure = report_figures(search)["nodes"]
    assert figure.summary.startswith(
        "Measured on 1, 2 and 4 nodes. 2 layouts are worth considering, from t0001 on 1 node"
    )
    assert figure.summary.endswith("1.67 times the speed for 2 times the nodes.")
    by_name = {trace["name"]: trace for trace in figure.plot["data"]}
    assert (by_name["Pareto front"]["x"], by_name["Pareto front"]["y"]) == ([1, 2], [900.0, 1500.0])
    assert (by_name["linear scaling"]["x"], by_name["linear scaling"]["y"]) == ([1, 4], [900.0, 3600.0])
    assert by_name["Fastest so far"]["x"] == [2]


def several_nodes(objectives=("tokens_per_sec", "joules_per_token")):
    """Eleven micro-batches on two nodes, slower the larger, and a layout on one and on four nodes."""
    search = SearchUnderTest(spec(objective=list(objectives), global_batch_size=2**11))
    for power in range(11):
        layout = Layout(num_nodes=2, micro_batch_size=2**power, data_parallel=2, grad_accum_steps=2 ** (10 - power))
        energy = {"joules_per_token": 2.0 + power}
        search.measure(search.start(layout), 1500.0 - 100 * power, **energy, peak_memory_gib=10.0 - power / 2)
    for nodes, speed, joules in ((1, 600.0, 1.0), (4, 1450.0, 9.0)):
        layout = Layout(num_nodes=nodes, tensor_parallel=2, grad_accum_steps=2**11)
        search.measure(search.start(layout), speed, joules_per_token=joules, peak_memory_gib=20.0)
    search.fail(search.start(Layout(num_nodes=4, tensor_parallel=4, grad_accum_steps=2**11)), FailureReason.GPU_OOM)
    return search


def test_the_front_of_the_objectives_is_drawn_and_named_where_there_are_several():
    assert "objectives" not in report_figures(a_search())
    figure = report_figures(several_nodes())["objectives"]
    by_name = {trace["name"]: trace for trace in figure.plot["data"]}
    front = by_name["Pareto front"]
    assert (front["x"], front["y"]) == ([2.0, 1.0], [1500.0, 600.0])
    names = [note["text"].split()[0] for note in figure.plot["layout"]["annotations"]]
    assert names == ["n2", "n1"]
    assert all(f"{nodes} tp" in figure.summary for nodes in names)
    assert "(1.50k tokens/s, 2.00 J/token)" in figure.summary
    assert list(by_name) == ["1 node", "2 nodes", "4 nodes", "Pareto front"]


def test_a_third_objective_has_a_panel_of_its_own():
    objectives = ("tokens_per_sec", "joules_per_token", "node_hours_per_billion_tokens")
    layout = report_figures(several_nodes(objectives))["objectives"].plot["layout"]
    assert layout["xaxis"]["title"]["text"] == "J/token (lower is better)"
    assert layout["xaxis2"]["title"]["text"] == "node-hours per billion tokens (lower is better)"
    assert layout["grid"]["columns"] == 2


def test_numbers_of_nodes_are_not_pooled():
    figures = report_figures(several_nodes())
    heat = figures["heat"].plot
    assert heat["layout"]["xaxis"]["ticktext"] == ["2", "1", "2", "4"]
    assert heat["data"][0]["z"] == [[1.0, 1.0, 1.0, None]]
    titles = [note["text"] for note in heat["layout"]["annotations"]]
    assert titles == ["\N{MULTIPLICATION SIGN}", "1 node", "2 nodes", "4 nodes"]
    assert "on 11 measured layouts on 2 nodes;" in figures["importance"].summary
    assert figures["importance"].plot["data"][0]["y"] == ["micro-batch"]
    lines = [trace for trace in figures["memory"].plot["data"] if trace["name"] == "Pareto front"]
    assert [len(line["x"]) for line in lines] == [1, 11, 1]
    assert figures["memory"].summary.startswith("On 2 nodes: ")


def test_colours_are_the_pages_own():
    """A colour that is written out would be wrong in the dark."""
    text = json.dumps([figure.plot for figure in report_figures(a_search(18)).values()])
    assert "#" not in text
    assert "rgb" not in text


def test_a_queue_in_which_no_trial_waited_is_not_drawn():
    data = report_data(a_search().record, START)
    drawn, plain = (
        registry.report_figures(
            replace(data, trials=tuple(replace(trial, queue_wait_s=wait_s) for trial in data.trials))
        )["cost"]
        for wait_s in (10.0, 0.0)
    )
    assert "xaxis2" in drawn.plot["layout"]
    assert "xaxis2" not in plain.plot["layout"]
    assert plain.summary.endswith("no time in the queue.")


def test_a_single_layout_is_not_compared_with_itself():
    figures = report_figures(STATES["one_trial"]())
    assert [figures[key].plot for key in ("memory", "heat", "parallel")] == [None] * 3
