"""Explanation of searches without a comparison: why, and the next command."""

from __future__ import annotations

import pytest

from dashboards.report.data import report_data
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import STATES, a_full_search
from tests.dashboards.searches import START, SearchUnderTest
from trials.trial import FailureReason

AGAIN = "parlay run search.yaml"


@pytest.mark.parametrize(
    ("state", "words", "commands"),
    [
        ("all_failed", "All 6 logs end with: OutOfMemoryError", ["parlay logs t0003 --search tiny-abcdef", AGAIN]),
        ("refused", "", ["parlay doctor search.yaml --submit-test", AGAIN]),
        ("only_baseline", "3 trials of 4 failed", ["parlay logs t0002 --search tiny-abcdef", AGAIN]),
        ("nothing_yet", "t0001.a1 running for 10:10 on node1 node2", ["parlay watch tiny-abcdef"]),
    ],
)
def test_a_search_without_a_comparison_says_why_and_what_to_do(state, words, commands):
    found = report_data(STATES[state]().record, START + 660).explanation
    assert [command.command for command in found.commands] == commands
    assert words in " ".join(found.sentences)
    assert bool(found.sentences) == bool(words)


@pytest.mark.parametrize("search", [a_full_search, STATES["one_trial"]])
def test_a_search_with_a_best_layout_to_use_needs_none(search):
    assert report_data(search().record, START).explanation is None


@pytest.mark.parametrize(("phase", "has_more"), [("start", False), ("build", True)])
def test_of_a_memory_limit_that_ended_all_trials_the_first_advice_is_to_raise_it(phase, has_more):
    search = SearchUnderTest({"measure": {"memory_limit_gib": 0.02}})
    for size in (1, 2):
        name = search.start(Layout(micro_batch_size=size))
        search.fail(name, FailureReason.GPU_OOM, outcome={"rank": 0, "phase": phase})
    search.end("failed", "no_feasible_layout")
    _, to_try, *evidence = report_data(search.record, START).explanation.sentences
    assert to_try.startswith("To try: a larger measure.memory_limit_gib (now 0.02)")
    assert ("a smaller micro_batch_size" in to_try) is has_more
    assert any(words.startswith("All had ZeRO 0") for words in evidence) is has_more
