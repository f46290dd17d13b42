"""Text of a trial's outcome."""

from __future__ import annotations

import pytest

from dashboards.trial_text import (
    FLAG_DESCRIPTIONS,
    describe_fullest_rank,
    describe_slowest_rank,
    describe_step_time,
    describe_verification,
    flag_lines,
    format_short,
)
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import FULLEST, SLOWEST
from trials.trial import Flag


def test_every_flag_is_described_in_one_line():
    assert set(FLAG_DESCRIPTIONS) == set(Flag)
    assert all("\n" not in text and len(text) < 100 for text in FLAG_DESCRIPTIONS.values())


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


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (FULLEST | {"limit_gib": 62.0, "free_gib": 1.0, "alloc_retries": 2}, "66 of 80 GiB used, 1 GiB free (measure."),
        (FULLEST | {"alloc_retries": 2}, "; 2 allocations failed"),
        ({"rank": 0, "host": "n1", "used_gib": 0.25}, "fullest rank: 0 on n1, 0.25 GiB used"),
    ],
)
def test_the_fullest_rank_is_described_by_what_is_known_of_it(rank, words):
    assert words in describe_fullest_rank(rank)
    assert describe_fullest_rank({}) is None


def test_where_a_steps_time_goes_is_reported_in_shares_the_largest_first():
    time_s = {"compute": 0.06, "tensor": 0.0, "pipeline": 0.0001, "data_parallel": 0.015, "bubble": 0.025}
    assert describe_step_time(time_s) == "step time: compute 60 %, bubble 25 %, data_parallel 15 %"
    assert describe_step_time(None) is None


def test_values_that_no_test_trained_are_named():
    assert describe_verification({"level": "run", "values": []}).endswith(
        "trained all axis values of the layout with its engine"
    )
    parsed = describe_verification({"level": "parsed", "values": ["torch_compile True"]})
    assert parsed == "verified: parsed; its trainer's parser accepts, but no test of Parlay trained: torch_compile True"
    by_rule = describe_verification({"level": "by rule", "values": ["offload optimizer", "bucket_mib 4"]})
    assert by_rule.endswith("Parlay's rules allow, but no test of Parlay trained: offload optimizer, bucket_mib 4")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (0.12345, "0.123"),
        (999.4, "999"),
        (999.6, "1.00k"),
        (9268.0, "9.27k"),
        (1.5e6, "1.50M"),
        (2.0, "2.00"),
        (0, "0"),
        (20, "20.0"),
    ],
)
def test_short_numbers_have_three_significant_digits(value: float | None, text: str):
    assert format_short(value) == text
