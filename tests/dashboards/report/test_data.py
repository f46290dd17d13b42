"""Data and sentences of the report: result, cost, trials."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.report.data import report_data
from dashboards.report.page import report_without_scripts
from dashboards.report.sentences import (
    describe_confidence,
    describe_cost,
    describe_spending,
    describe_state,
)
from dashboards.report.table import table_rows
from dashboards.terminal.headline import headline, sentence
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import SLOWEST
from trials.ledger.events import EventKind
from trials.trial import FailureReason


def data_of(search, after_s=3600.0):
    return report_data(search.record, START + after_s)


def headline_of(data):
    return headline(data.verdict)


def answer_below(data):
    return sentence(data.verdict)


def ended(search: SearchUnderTest, *reason: str) -> SearchUnderTest:
    search.end(*reason)
    return search


def measured(*speeds: float, **changes) -> SearchUnderTest:
    """The baseline and a second layout, as fast as this."""
    search = SearchUnderTest(spec(**changes))
    for layout, speed in zip((BASELINE, FASTEST), speeds, strict=False):
        search.measure(search.start(layout), speed)
    return search


def failed() -> SearchUnderTest:
    search = SearchUnderTest(spec())
    search.fail(search.start(BASELINE), FailureReason.SCRIPT_ERROR)
    return search


ASKED = {"constraints": {"min_free_memory_gib": 4.0}, "measure": {"memory_limit_gib": 5.0}}
MINIMISED = "node_hours_per_billion_tokens"


@pytest.mark.parametrize(
    ("search", "words"),
    [
        (ended(a_search()), "1.50x faster than the baseline (1.44–1.56)"),
        (ended(measured(1000.0, 500.0)), "No measured layout is faster than the baseline"),
        (measured(1000.0), "Running, 1 of 20 layouts. Only the baseline has been measured so far"),
        (ended(a_search(objective=MINIMISED)), "1.50x better than the baseline in tokens/s per node (1.44–1.56)"),
        (failed(), "No layout has been measured yet"),
        (ended(failed(), "failed", "script_error"), "No layout was measured: 1 trial failed, trainer crashed"),
    ],
    ids=["faster", "slower", "running", "minimised", "not yet", "failed"],
)
def test_the_answer_is_how_many_times_faster_than_today_and_how_sure(search, words):
    assert headline_of(data_of(search)) == words


def test_what_a_search_cost_and_when_it_pays_back_is_told_and_each_straggler_named():
    data = data_of(ended(a_search(), "completed", "converged"))
    assert describe_confidence(data)[0] == "95 % confidence interval 1.44–1.56x."
    assert describe_state(data).startswith("Completed: converged")
    assert describe_cost(data).startswith("0.75 node-hours, 3 trials (2 measured, 1 failed)")
    for words in ("33 % attempts that measured nothing", "pays back after 1.5 hours", "1.34 hours to 1.7 hours"):
        assert words in describe_spending(data)
    assert describe_spending(replace(data, replayed_table="a.csv")) is None
    search = SearchUnderTest(spec())
    search.measure(search.start(BASELINE), 1000.0, ("straggler",), slowest_rank=SLOWEST)
    search.measure(search.start(FASTEST), 1500.0, slowest_rank=SLOWEST | {"rank": 5, "slowdown": 1.02})
    data = data_of(search)
    assert any(words.startswith("Slowest rank: 5 on n2 ") for words in describe_confidence(data))
    assert [trial.remark and trial.remark[:17] for trial in data.trials] == ["slowest rank: 3 o", None]


def test_where_the_best_was_chosen_for_its_memory_it_is_recommended_and_the_reason_said_once():
    search, third = SearchUnderTest(spec()), Layout(tensor_parallel=8, data_parallel=1, grad_accum_steps=8)
    for kind in ("search", "repeat", "repeat"):
        for layout, speed, peak_gib in ((FASTEST, 1530.0, 63.0), (third, 1490.0, 55.5), (BASELINE, 1000.0, 50.0)):
            search.measure(search.start(layout, kind), speed, peak_memory_gib=peak_gib)
    search.end()
    data = data_of(search)
    words = "Recommended: t0002. t0001 is 3 % faster, within noise, but needs 63 GiB instead of 55.5."
    assert (answer_below(data), data.best.ties) == (words, ("t0001",))
    assert [row.marks[0] for row in table_rows(data)] == ["tie", "recommended", "baseline"]
    page = report_without_scripts(data).text
    assert page.count("within noise") == page.count("Recommended layout, t0002") == 1
    assert "Best" not in page


def test_several_objectives_have_several_answers_and_each_is_said():
    few = Layout(tensor_parallel=4, data_parallel=1, grad_accum_steps=8)
    many = Layout(num_nodes=2, tensor_parallel=4, data_parallel=2, grad_accum_steps=4)
    search = SearchUnderTest(spec(baseline=None, objective=["tokens_per_sec", MINIMISED]))
    search.measure(search.start(few), 900.0)
    search.measure(search.start(many), 1500.0)
    data = data_of(search)
    assert (data.objective.value, data.best.trial) == ("tokens_per_sec", "t0002")
    assert data.best.points == ("t0002", "t0001")
    (other,) = data.best.trades
    assert other == "t0001 on 1 node has 60 % of its tokens/s at 83 % of its node-hours a token"
    assert other in report_without_scripts(data).text


def test_where_no_layout_leaves_the_memory_asked_for_the_search_says_why_and_what_is_faster_is_not_denied():
    search = a_search(**ASKED, cluster=Cluster(ACCELERATORS["cpu"], 4, 2).to_json())
    assert data_of(search).best is None
    search.event(EventKind.SEARCH_STATE, state="failed", end_reason="no_feasible_layout", detail="t0001 comes nearest")
    data = data_of(search)
    assert headline_of(data) == "No measured layout qualifies as the best"
    assert "t0001 comes nearest" in answer_below(data)
    search = SearchUnderTest(spec(**ASKED, cluster=Cluster(ACCELERATORS["cpu"], 1, 1).to_json()))
    search.measure(search.start(BASELINE), 1000.0, peak_memory_gib=0.5)
    search.measure(search.start(FASTEST), 2000.0, peak_memory_gib=2.0)
    search.end()
    data = data_of(search)
    assert headline_of(data) == "No measured layout that leaves 4 GiB free is faster than the baseline"
    assert answer_below(data) == "Recommended: t0001. t0002 is 100 % faster, but leaves too little memory free."


def test_trials_of_another_batch_do_not_compete_and_a_simulated_clock_may_be_ahead_of_ours():
    search = a_search()
    search.measure(search.start(Layout(grad_accum_steps=64)), 9000.0)
    data = data_of(search, after_s=1.0)
    assert (data.best.layout, data.trials[-1].speed, data.trials[-1].tokens_per_sec) == (FASTEST, None, 9000.0)
    assert data.progress.elapsed_h == max(t.ended_h for t in data.trials)
