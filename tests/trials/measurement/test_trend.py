from __future__ import annotations

import random

import pytest

from trials.measurement.trend import FEWEST_POINTS, slope_of


def series(values: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(values, 1))


def grows(values: list[float]) -> bool:
    slope = slope_of(series(values))
    return slope is not None and slope.is_above(0.0)


def test_the_slope_of_a_line_is_its_slope():
    slope = slope_of([(3, 1.0), (4, 1.5), (6, 2.5)])
    assert slope is not None
    assert slope.value == pytest.approx(0.5)


def test_one_point_has_no_slope():
    assert slope_of([(1, 1.0)]) is None
    assert slope_of([]) is None


def test_a_steady_leak_is_seen_from_eight_steps_on():
    assert FEWEST_POINTS == 8
    assert grows([1.0 + step for step in range(8)])
    assert not grows([1.0 + step for step in range(7)])


def test_a_leak_is_seen_through_noise():
    draw = random.Random(2)
    assert grows([0.5 * step + draw.gauss(0, 2) for step in range(30)])


@pytest.mark.parametrize("at", range(1, 20))
def test_one_jump_is_no_growth(at):
    assert not grows([1.0] * at + [50.0] * (20 - at))


def test_a_slow_growth_is_not_above_a_faster_one():
    slope = slope_of(series([0.5 * step for step in range(20)]))
    assert slope is not None
    assert slope.is_above(0.4)
    assert not slope.is_above(0.5)


def test_what_falls_or_stays_does_not_grow():
    assert not grows([1.0] * 20)
    assert not grows([20.0 - step for step in range(20)])


@pytest.mark.slow
def test_noise_is_taken_for_growth_once_in_two_hundred_times():
    draw = random.Random(7)
    found = sum(grows([draw.gauss(0, 1) for _ in range(12)]) for _ in range(4000))
    assert found / 4000 == pytest.approx(0.005, abs=0.003)


def test_a_long_series_takes_no_longer():
    slope = slope_of([(step, 0.25 * step) for step in range(100_000)])
    assert slope is not None
    assert slope.value == pytest.approx(0.25)
