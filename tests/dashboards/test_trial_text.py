"""Text of a trial's outcome."""

from __future__ import annotations

from dashboards.trial_text import FLAG_DESCRIPTIONS, describe_step_time, flag_lines
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
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


def test_where_a_steps_time_goes_is_reported_in_shares_the_largest_first():
    time_s = {"compute": 0.06, "tensor": 0.0, "pipeline": 0.0001, "data_parallel": 0.015, "bubble": 0.025}
    assert describe_step_time(time_s) == "step time: compute 60 %, bubble 25 %, data_parallel 15 %"
    assert describe_step_time(None) is None
