"""Spread between runs, the distribution that its interval rests on, and growth over the steps of one."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.measurement.run_variance import (
    SPREAD_ALLOWANCE,
    RunMeasurement,
    geometric_median,
    log_half_width,
    student_above,
    student_quantile,
    student_tails,
)
from trials.measurement.trend import slope_of


@pytest.mark.slow
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9))
def test_the_middle_of_speeds_is_the_inverse_of_the_middle_of_times(speeds):
    assert geometric_median(speeds) * geometric_median([1 / speed for speed in speeds]) == pytest.approx(1.0)
    assert min(speeds) * (1 - 1e-9) <= geometric_median(speeds) <= max(speeds) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("runs", "width"),
    [
        ([RunMeasurement(5.0, 5.0, 5.0)], 2.7764 * SPREAD_ALLOWANCE),
        ([RunMeasurement(5.0, 5.0, 5.0)] * 3, 2.4469 * SPREAD_ALLOWANCE * math.sqrt(4 / 6 / 3)),
        ([RunMeasurement(5.0)], 2.7764 * SPREAD_ALLOWANCE * math.sqrt(2)),
    ],
    ids=["one", "agreeing", "own-interval-unknown"],
)
def test_runs_are_as_unsure_as_they_are_taken_to_differ(runs, width):
    assert log_half_width(runs) == pytest.approx(width, rel=1e-4)


def test_repeats_that_differ_and_a_run_whose_own_interval_is_wide_are_less_sure_than_one():
    once = log_half_width([RunMeasurement(5.0, 5.0, 5.0)])
    assert once < log_half_width([RunMeasurement(value, value, value) for value in (4.0, 5.0, 6.0)])
    assert once < log_half_width([RunMeasurement(5.0, 4.0, 6.0)])


@pytest.mark.parametrize(
    ("freedom", "of_95", "of_99"),
    [
        (1, 12.706, 63.657),
        (2, 4.303, 9.925),
        (4, 2.776, 4.604),
        (9, 2.262, 3.250),
        (30, 2.042, 2.750),
        (99, 1.984, 2.626),
    ],
)
def test_quantiles_are_those_of_the_printed_tables(freedom, of_95, of_99):
    found = student_quantile(0.05, freedom), student_quantile(0.01, freedom)
    assert found == pytest.approx((of_95, of_99), abs=6e-4)
    assert student_tails(0.0, freedom) == 1.0


@pytest.mark.parametrize("freedom", [1, 2, 7, 100])
def test_the_part_above_a_value_and_above_its_opposite_make_the_whole(freedom):
    assert student_above(1.3, freedom) + student_above(-1.3, freedom) == pytest.approx(1.0)
    assert student_above(1.3, freedom) < 0.5 < student_above(-1.3, freedom)


def grows(values: list[float], bound: float = 0.0) -> bool:
    slope = slope_of(list(enumerate(values, 1)))
    return slope is not None and slope.is_above(bound)


def test_the_slope_of_a_line_is_its_slope_and_one_point_has_none():
    assert slope_of([(3, 1.0), (4, 1.5), (6, 2.5)]).value == pytest.approx(0.5)
    assert slope_of([(n, 0.25 * n) for n in range(100_000)]).value == pytest.approx(0.25)
    assert slope_of([(1, 1.0)]) is slope_of([]) is None


NOISE = random.Random(2)


@pytest.mark.parametrize(
    ("values", "bound", "is_growth"),
    [
        ([1.0 + step for step in range(8)], 0.0, True),
        ([1.0 + step for step in range(7)], 0.0, False),
        ([0.5 * step + NOISE.gauss(0, 2) for step in range(30)], 0.0, True),
        ([0.5 * step for step in range(20)], 0.4, True),
        ([0.5 * step for step in range(20)], 0.5, False),
        ([1.0] * 20, 0.0, False),
        ([20.0 - step for step in range(20)], 0.0, False),
        *(([1.0] * at + [50.0] * (20 - at), 0.0, False) for at in range(1, 20)),
    ],
)
def test_growth_is_seen_from_eight_steps_on_through_noise_and_one_jump_is_none(values, bound, is_growth):
    assert grows(values, bound) is is_growth


@pytest.mark.slow
def test_noise_is_taken_for_growth_once_in_two_hundred_times():
    draw = random.Random(7)
    found = sum(grows([draw.gauss(0, 1) for _ in range(12)]) for _ in range(4000))
    assert found / 4000 == pytest.approx(0.005, abs=0.003)
