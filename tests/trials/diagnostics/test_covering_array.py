from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trials.diagnostics.covering_array import cover, value_combinations

AXES = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (1, 2), "d": (1, 2)}
POINTS = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())]


def test_all_pairs_of_four_axes_are_covered_by_far_fewer_than_all_points():
    shown = [value_combinations(point, tuple(AXES), 2) for point in POINTS]
    chosen = cover(shown, [1.0] * len(POINTS))
    covered = {pair for index in chosen for pair in shown[index]}
    assert covered == {((a, x), (b, y)) for a, b in combinations(AXES, 2) for x, y in product(AXES[a], AXES[b])}
    assert len(chosen) <= 12  # nine at least: three times three values


def test_the_cheapest_that_show_all_are_taken():
    assert cover([{"x", "y"}, {"x", "y"}], [2.0, 1.0]) == [1]
    assert cover([{"x", "y"}, {"x"}, {"y"}], [5.0, 1.0, 1.0]) == [1, 2]


@pytest.mark.slow
@given(st.lists(st.frozensets(st.integers(0, 20)), max_size=12))
def test_everything_that_any_shows_is_shown_by_those_chosen_and_none_is_chosen_for_nothing(shown):
    chosen = cover(shown, [1.0] * len(shown))
    assert frozenset().union(*(shown[index] for index in chosen)) == frozenset().union(*shown)
    for index in chosen:
        assert not shown[index] <= frozenset().union(*(shown[other] for other in chosen if other != index))
