"""Text of a trial's outcome."""

from __future__ import annotations

import pytest

from dashboards.trial_text import (
    describe_fullest_rank,
    describe_slowest_rank,
    describe_verification,
    flag_lines,
    format_short,
)
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import FULLEST, SLOWEST


def test_a_flag_is_reported_once_with_the_measurements_that_have_it():
    search = SearchUnderTest()
    for number in range(8):
        search.measure(search.start(Layout(micro_batch_size=number + 1)), 5.0, ("extrapolated",))
    search.measure(search.start(Layout()), 5.0, ("time_limit", "extrapolated"))
    first, second = flag_lines(search.record.trials)
    assert first.startswith("! t0001, t0002, t0003, t0004, t0005, t0006 and 3 more extrapolated: step time ")
    assert second.startswith("! t0009 time_limit: ")
    assert flag_lines(search.records[3].trials) == []


def test_the_slowest_rank_is_named_with_its_node():
    words = "slowest rank: 3 on n2 computes 0.42 s (p95 0.45 s) of a step, 1.40 times as long as ranks with equal work"
    assert describe_slowest_rank(SLOWEST) == words
    assert describe_slowest_rank({}) is None
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 5.0, ("straggler",), slowest_rank=SLOWEST)
    assert flag_lines(search.record.trials)[1] == f"! t0001 {words}"


def test_the_fullest_rank_is_described_by_what_is_known_of_it():
    limited = describe_fullest_rank(FULLEST | {"limit_gib": 62.0, "free_gib": 1.0, "alloc_retries": 2})
    assert "66 of 80 GiB used, 1 GiB free (measure." in limited
    assert "; 2 allocations failed" in limited
    assert describe_fullest_rank({"rank": 0, "host": "n1", "used_gib": 0.25}) == "fullest rank: 0 on n1, 0.25 GiB used"
    assert describe_fullest_rank({}) is None


def test_values_that_no_test_trained_are_named():
    assert describe_verification({"level": "run", "values": []}).endswith(
        "trained all axis values of the layout with its engine"
    )
    by_rule = describe_verification({"level": "by rule", "values": ["offload optimizer", "bucket_mib 4"]})
    assert by_rule.endswith("Parlay's rules allow, but no test of Parlay trained: offload optimizer, bucket_mib 4")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (1.5e6, "1.50M"),
        (0, "0"),
    ],
)
def test_short_numbers_have_three_significant_digits(value: float | None, text: str):
    assert format_short(value) == text
