"""Patterns of failures: which values set failed layouts apart, and where nothing is told."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.analysis.failure_patterns import Condition, common_last_line, failure_patterns
from trials.trial import FailureReason

OOM = FailureReason.GPU_OOM


def layout(tensor: int, micro_batch: int) -> Layout:
    return Layout(tensor_parallel=tensor, data_parallel=8 // tensor, micro_batch_size=micro_batch)


def searched(fails) -> SearchUnderTest:
    search = SearchUnderTest()
    for tensor in (1, 2, 4):
        for micro_batch in (1, 2, 4, 8):
            trial = search.start(layout(tensor, micro_batch))
            if fails(tensor, micro_batch):
                search.fail(trial, OOM, excerpt=f"step {tensor}\nout of memory\n")
            else:
                search.measure(trial, 100.0)
    return search


def test_the_value_that_tells_most_is_named_with_both_shares():
    (pattern,) = failure_patterns(searched(lambda tensor, mb: (mb >= 4 and tensor < 4) or mb == 8).record.trials)
    assert pattern.condition == Condition("micro_batch_size", 4, "at_least")
    assert (pattern.num_with, pattern.num_failed, pattern.others_with, pattern.num_others) == (5, 5, 1, 7)
    (pattern,) = failure_patterns(searched(lambda tensor, mb: mb == 8).record.trials)
    assert pattern.condition == Condition("micro_batch_size", 8)
    search = SearchUnderTest()
    search.measure(search.start(replace(layout(1, 1), settings="env.NET=lo")), 100.0)
    search.fail(search.start(replace(layout(2, 1), settings="env.NET=nope")), FailureReason.SETTING_FAILURE)
    (pattern,) = failure_patterns(search.record.trials)
    assert pattern.condition == Condition("env.NET", "nope")


def test_nothing_is_told_of_few_failures_and_the_line_with_which_most_end_is_found():
    assert failure_patterns(searched(lambda tensor, mb: (tensor, mb) in ((1, 8), (2, 8))).record.trials) == ()
    assert failure_patterns(searched(lambda tensor, mb: True).record.trials) == ()
    assert failure_patterns(searched(lambda tensor, mb: (tensor + mb) % 3 == 0).record.trials) == ()
    assert failure_patterns(()) == ()
    trials = searched(lambda tensor, mb: mb == 8).record.trials
    assert common_last_line(trials, OOM) == ("out of memory", 3)
    assert common_last_line(trials, FailureReason.HANG) is None
