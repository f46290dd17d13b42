"""Spread between runs: their geometric median and its interval."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.measurement.run_variance import (
    SPREAD_ALLOWANCE,
    RunMeasurement,
    geometric_median,
    log_half_width,
    student_95,
    student_99,
)

values = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9)


@pytest.mark.slow
@given(values)
def test_the_middle_of_speeds_is_the_inverse_of_the_middle_of_times(speeds):
    assert geometric_median(speeds) * geometric_median([1 / speed for speed in speeds]) == pytest.approx(1.0)
    assert min(speeds) * (1 - 1e-9) <= geometric_median(speeds) <= max(speeds) * (1 + 1e-9)


def test_the_last_quantile_of_the_table_stands_for_all_beyond_it():
    assert [student_95(freedom) for freedom in (29, 30, 31)] == [2.045, 2.042, 2.042]
    assert [student_99(freedom) for freedom in (29, 30, 31)] == [2.756, 2.750, 2.750]


def test_one_run_is_as_unsure_as_runs_are_taken_to_differ():
    assert log_half_width([RunMeasurement(5.0, 5.0, 5.0)]) == pytest.approx(2.776 * SPREAD_ALLOWANCE)


def test_repeats_that_agree_narrow_the_interval_and_repeats_that_do_not_widen_it():
    once = log_half_width([RunMeasurement(5.0, 5.0, 5.0)])
    agreeing = log_half_width([RunMeasurement(5.0, 5.0, 5.0)] * 3)
    assert agreeing == pytest.approx(2.447 * SPREAD_ALLOWANCE * math.sqrt(4 / 6 / 3))
    assert agreeing < once < log_half_width([RunMeasurement(value, value, value) for value in (4.0, 5.0, 6.0)])


def test_a_run_whose_own_interval_is_unknown_or_wide_adds_to_it():
    sure = log_half_width([RunMeasurement(5.0, 5.0, 5.0)])
    assert log_half_width([RunMeasurement(5.0)]) == pytest.approx(2.776 * SPREAD_ALLOWANCE * math.sqrt(2))
    assert log_half_width([RunMeasurement(5.0, 4.0, 6.0)]) > sure
