"""Data and sentences of the report: result, cost, trials, what to do next and the use of a recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.report.explanation import describe_failures, explanation_of
from dashboards.report.page import report_without_scripts
from dashboards.report.sentences import (
    alternatives,
    describe_comparison,
    describe_confidence,
    describe_cost,
    describe_spending,
    describe_state,
)
from dashboards.report.table import table
from dashboards.report.use_it import LaunchCommand, use_it
from dashboards.search_view import SearchView
from dashboards.terminal.headline import headline, sentence
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, STATES, a_full_search, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import SLOWEST
from trials.files.folders import SearchFolder
from trials.trial import FailureReason


def view_of(search, after_s=3600.0):
    return SearchView.of(search.record, START + after_s)


ASKED = {"constraints": {"min_free_memory_gib": 4.0}, "measure": {"memory_limit_gib": 5.0}}
MINIMISED = "node_hours_per_billion_tokens"


def test_the_answer_is_how_many_times_faster_than_today_and_how_sure():
    search = a_search(objectives=[MINIMISED])
    search.end()
    words = "1.50x better than the baseline in tokens/s per node (1.44–1.56)"
    assert headline(view_of(search).verdict) == words
    search = SearchUnderTest(spec())
    search.measure(search.start(BASELINE), 1000.0)
    words = "Running, 1 of 20 layouts. Only the baseline has been measured so far"
    assert headline(view_of(search).verdict) == words


def test_what_a_search_cost_and_when_it_pays_back_is_told_and_each_straggler_named():
    search = a_search()
    search.end("completed", "converged")
    view = view_of(search)
    assert headline(view.verdict) == "1.50x faster than the baseline (1.44–1.56)"
    assert describe_comparison(view).endswith("; the 95 % interval of the speedup is 1.44–1.56.")
    assert describe_state(view).startswith("Completed: converged")
    assert describe_cost(view).startswith("0.75 node-hours, 3 trials (2 measured, 1 failed)")
    for words in ("33 % attempts that measured nothing", "pays back after 1.5 hours", "1.34 hours to 1.7 hours"):
        assert words in describe_spending(view)
    replayed = search.record.spec | {"launcher": {"kind": "simulated", "table": "a.csv"}}
    assert describe_spending(replace(view, search=replace(search.record, spec=replayed))) is None
    search = SearchUnderTest(spec())
    search.measure(search.start(BASELINE), 1000.0, ("straggler",), slowest_rank=SLOWEST)
    search.measure(search.start(FASTEST), 1500.0, slowest_rank=SLOWEST | {"rank": 5, "slowdown": 1.02})
    view = view_of(search)
    assert any(words.startswith("Slowest rank: 5 on n2 ") for words in describe_confidence(view))
    remark = table(view)["remark"]
    assert [(words := remark(run)) and words[:17] for run in search.record.trials] == ["slowest rank: 3 o", None]


def test_where_the_best_was_chosen_for_its_memory_it_is_recommended_and_the_reason_said_once():
    search, third = SearchUnderTest(spec()), Layout(tensor_parallel=8, data_parallel=1, grad_accum_steps=8)
    for kind in ("search", "repeat", "repeat"):
        for layout, speed, peak_gib in ((FASTEST, 1530.0, 63.0), (third, 1490.0, 55.5), (BASELINE, 1000.0, 50.0)):
            search.measure(search.start(layout, kind), speed, peak_memory_gib=peak_gib)
    search.end()
    view = view_of(search)
    words = "Recommended: t0002. t0001 is 3 % faster, within noise, but needs 63 GiB instead of 55.5."
    assert (sentence(view.verdict), [tie.trial for tie in view.ranking.ties]) == (words, ["t0001"])
    assert [next(iter(table(view)["marks"](row))) for row in view.rows] == ["tie", "recommended", "baseline"]
    page = report_without_scripts(view).text
    assert page.count("within noise") == page.count("Recommended layout, t0002") == 1
    assert "Best" not in page


def test_several_objectives_have_several_answers_and_each_is_said():
    few = Layout(tensor_parallel=4, data_parallel=1, grad_accum_steps=8)
    many = Layout(num_nodes=2, tensor_parallel=4, data_parallel=2, grad_accum_steps=4)
    search = SearchUnderTest(spec(baseline=None, objectives=["tokens_per_sec", MINIMISED]))
    search.measure(search.start(few), 900.0)
    search.measure(search.start(many), 1500.0)
    view = view_of(search)
    assert (view.objective.value, view.best.trial) == ("tokens_per_sec", "t0002")
    ((name, other),) = alternatives(view)
    assert (name, other) == (
        "n1 tp4 pp1 dp1 mb1",
        "t0001 on 1 node has 60 % of its tokens/s at 83 % of its node-hours a token",
    )
    assert other in report_without_scripts(view).text


def test_where_no_layout_leaves_the_memory_asked_for_the_search_says_why_and_what_is_faster_is_not_denied():
    search = a_search(**ASKED, cluster=Cluster(ACCELERATORS["cpu"], 4, 2).to_json())
    assert view_of(search).best is None
    search.end("failed", "no_feasible_layout", "t0001 comes nearest")
    view = view_of(search)
    assert headline(view.verdict) == "No measured layout qualifies as the best"
    assert "t0001 comes nearest" in sentence(view.verdict)
    search = SearchUnderTest(spec(**ASKED, cluster=Cluster(ACCELERATORS["cpu"], 1, 1).to_json()))
    search.measure(search.start(BASELINE), 1000.0, peak_memory_gib=0.5)
    search.measure(search.start(FASTEST), 2000.0, peak_memory_gib=2.0)
    search.end()
    view = view_of(search)
    assert headline(view.verdict) == "No measured layout that leaves 4 GiB free is faster than the baseline"
    assert sentence(view.verdict) == "Recommended: t0001. t0002 is 100 % faster, but leaves too little memory free."


def test_trials_of_another_batch_do_not_compete_and_a_simulated_clock_may_be_ahead_of_ours():
    search = a_search()
    search.measure(search.start(Layout(grad_accum_steps=64)), 9000.0)
    view = view_of(search, after_s=1.0)
    last = search.record.trials[-1]
    assert (view.best.layout, view.speed(last), last.measured.tokens_per_sec) == (FASTEST, None, 9000.0)
    assert view.elapsed_s / 3600 == pytest.approx(max(view.ended_h(t) for t in search.record.trials))


def test_failures_are_told_by_reason_and_by_the_axis_value_that_they_share():
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
    search.prune(search.start(Layout(tensor_parallel=8)), 300.0)
    words = "Time limit: 3 of 3 had micro-batch 8, and 0 of the 6 that ran."
    told = [
        "6 trials of 13 failed: 3 trainer crashed, 3 time limit.",
        "1 trial stopped early: too slow to become the best.",
        words,
    ]
    assert describe_failures(search.record) == told
    assert all(sentence in report_without_scripts(view_of(search)).text for sentence in told)


AGAIN = "parlay run search.yaml"


@pytest.mark.parametrize(
    ("state", "words", "commands"),
    [
        ("all_failed", "All 6 logs end with: OutOfMemoryError", ["parlay logs tiny-abcdef t0003", AGAIN]),
        ("refused", "", ["parlay doctor search.yaml --submit-test", AGAIN]),
        ("only_baseline", "3 trials of 4 failed", ["parlay logs tiny-abcdef t0002", AGAIN]),
        ("nothing_yet", "", ["parlay watch tiny-abcdef"]),
    ],
)
def test_a_search_without_a_comparison_says_why_and_what_to_do(state, words, commands):
    found = explanation_of(SearchView.of(STATES[state]().record, START + 660))
    assert [command.command for command in found.commands] == commands
    assert words in " ".join(found.sentences)
    assert bool(found.sentences) == bool(words)


def test_a_baseline_that_failed_says_why_before_the_other_failures():
    search = SearchUnderTest(spec(measure={"memory_limit_gib": 0.27}))
    search.fail(search.start(BASELINE), FailureReason.GPU_OOM, outcome={"rank": 0, "phase": "warmup"})
    search.measure(search.start(FASTEST), 1500.0)
    search.end()
    found = explanation_of(view_of(search))
    limit = "its limit is 0.27 GiB (measure.memory_limit_gib)"
    assert found.sentences[:2] == (
        f"The baseline (t0001): rank 0 ran out of memory in phase warmup; {limit}.",
        "1 trial of 2 failed: 1 out of memory.",
    )
    assert [command.command for command in found.commands] == ["parlay logs tiny-abcdef t0001"]


@pytest.mark.parametrize("search", [a_full_search, STATES["one_trial"]])
def test_a_search_with_a_best_layout_to_use_needs_none(search):
    assert explanation_of(SearchView.of(search().record, START)) is None


@pytest.mark.parametrize(("phase", "has_more"), [("start", False), ("build", True)])
def test_of_a_memory_limit_that_ended_all_trials_the_first_advice_is_to_raise_it(phase, has_more):
    search = SearchUnderTest({"measure": {"memory_limit_gib": 0.02}})
    for size in (1, 2):
        name = search.start(Layout(micro_batch_size=size))
        search.fail(name, FailureReason.GPU_OOM, outcome={"rank": 0, "phase": phase})
    search.end("failed", "no_feasible_layout")
    _, to_try, *evidence = explanation_of(SearchView.of(search.record, START)).sentences
    assert to_try.startswith("To try: a larger measure.memory_limit_gib (now 0.02)")
    assert ("a smaller micro_batch_size" in to_try) is has_more
    assert any(words.startswith("All had ZeRO 0") for words in evidence) is has_more


RECIPE = """\
layout: {engine: nanotron}
start: sbatch launch.sbatch
exports:
- {trainer: deepspeed, status: not_measured, unrun_start: deepspeed YOUR_SCRIPT}
- {trainer: torchtitan, status: refused, unrun_start: null}
- {trainer: nanotron, status: not_measured, unrun_start: torchrun run_train.py, files: [nanotron.yaml]}
"""


def folder_with(path, text: str) -> SearchFolder:
    (path / "recipe").mkdir()
    (path / "recipe" / "recipe.yaml").write_text(text)
    return SearchFolder(path)


def test_the_command_of_the_layouts_engine_comes_first_and_before_it_what_measured_the_layout(tmp_path):
    use = use_it(folder_with(tmp_path, RECIPE))
    assert use.recipe == str(tmp_path / "recipe")
    assert use.start == f"cd {tmp_path}/recipe && sbatch launch.sbatch"
    assert use.replay == f"parlay replay {tmp_path.name}"
    assert use.launches == (
        LaunchCommand("nanotron", "torchrun run_train.py", False, ("nanotron.yaml",)),
        LaunchCommand("DeepSpeed", "deepspeed YOUR_SCRIPT", False),
    )
    measured = RECIPE.replace("deepspeed, status: not_", "deepspeed, status: ")
    (tmp_path / "recipe" / "recipe.yaml").write_text(measured)
    assert use_it(SearchFolder(tmp_path)).launches[0] == LaunchCommand("DeepSpeed", "deepspeed YOUR_SCRIPT", True)


@pytest.mark.parametrize(
    "text", ["", "a: [", "layout: 3\nexports: {a: 1}", "exports: [1, {unrun_start: 2}]\nstart: [1]"]
)
def test_a_damaged_recipe_has_no_commands(tmp_path, text):
    use = use_it(folder_with(tmp_path, text))
    assert use is None or (use.start, use.launches) == (None, ())
    assert use_it(SearchFolder(tmp_path / "none")) is None
