"""Student's t distribution: its tails and quantiles."""

from __future__ import annotations

import pytest

from trials.measurement.run_variance import student_95, student_99
from trials.measurement.student import student_above, student_quantile, student_tails


@pytest.mark.parametrize("freedom", range(4, 31))
def test_quantiles_are_those_of_the_printed_tables(freedom):
    assert student_quantile(0.05, freedom) == pytest.approx(student_95(freedom), abs=6e-4)
    assert student_quantile(0.01, freedom) == pytest.approx(student_99(freedom), abs=6e-4)


@pytest.mark.parametrize(
    ("t", "freedom", "tails"), [(0.0, 1, 1.0), (1.0, 1, 0.5), (12.706, 1, 0.05), (4.303, 2, 0.05), (3.182, 3, 0.05)]
)
def test_few_degrees_of_freedom_have_heavy_tails(t, freedom, tails):
    assert student_tails(t, freedom) == pytest.approx(tails, abs=1e-4)


@pytest.mark.parametrize("freedom", [1, 2, 7, 100])
def test_the_part_above_a_value_and_above_its_opposite_make_the_whole(freedom):
    assert student_above(1.3, freedom) + student_above(-1.3, freedom) == pytest.approx(1.0)
    assert student_above(1.3, freedom) < 0.5 < student_above(-1.3, freedom)
