"""Two software stacks measured in turns: the paired ratio, and which pairs go on."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from search_spaces.layouts.layout import Layout
from trials.analysis.finals import FinalsEnding
from trials.analysis.stack_pairs import PairedRuns, StackPair, are_two_sides, in_pairs, paired_ratio, paired_standing
from trials.measurement.run_variance import RunMeasurement

PYTHON = {"python": "/opt/b/bin/python"}


def runs(own: Sequence[float], other: Sequence[float]) -> list[PairedRuns]:
    measured = [RunMeasurement(value, 0.999 * value, 1.001 * value) for value in (*own, *other)]
    return list(zip(measured[: len(own)], measured[len(own) :], strict=True))


def test_what_both_runs_of_a_pair_met_does_not_widen_the_interval():
    alike = paired_ratio(runs((100, 50, 100), (110, 55, 110)))
    assert alike.value == pytest.approx(1.1)
    assert alike.low > 1.05
    apart = paired_ratio(runs((100, 50, 100), (55, 110, 110)))
    assert apart.low < 1 < apart.high
    found = paired_ratio(runs((100,), (103,)))
    assert (found.pairs, found.low < 1 < found.high) == (1, True)
    assert paired_ratio(()) is None


def test_the_interval_covers_the_ratio_as_often_as_it_says_where_runs_vary_as_the_prior_says():
    numbers, covered = random.Random(1), 0
    for _ in range(400):
        own, other = ([math.exp(numbers.gauss(0, 0.02)) for _ in range(3)] for _ in range(2))
        found = paired_ratio(runs(own, other))
        covered += found.low <= 1 <= found.high
    assert covered >= 0.93 * 400


def test_a_pair_goes_on_until_it_is_told_apart_tied_or_at_the_limit():
    clear = StackPair("a", "A", runs((100, 100), (150, 151)))
    doubtful = StackPair("b", "B", runs((100, 100), (103, 104)))
    tied = StackPair("c", "C", runs([100] * 60, [100] * 60))
    found = paired_standing([clear, doubtful, tied], 1, 3)
    assert (found.ending, found.next_round) == (None, {"b", "B"})
    assert paired_standing([clear, doubtful], 3, 3).ending is FinalsEnding.LIMIT
    assert paired_standing([clear], 1, 3).ending is FinalsEnding.DECIDED
    assert paired_standing([clear, tied], 1, 3).ending is FinalsEnding.TIE
    unpaired = StackPair("a", "A", ())
    assert paired_standing([unpaired], 1, 3).next_round == {"a", "A"}
    assert paired_standing([unpaired], 3, 3).ending is FinalsEnding.LIMIT
    assert paired_standing([], 1, 3).ending is FinalsEnding.CUT_SHORT


def test_the_sides_of_a_layout_lie_together_and_one_without_the_other_is_left_out():
    one, other = Layout(data_parallel=2), Layout(tensor_parallel=2)
    sides = [layout.with_software(PYTHON) for layout in (one, other)]
    assert in_pairs([sides[0], other, one]) == [one, sides[0]]
    assert in_pairs([sides[0], sides[1], other, one], is_reversed=True) == [sides[0], one, sides[1], other]
    assert are_two_sides(one, sides[0])
    assert not are_two_sides(one, sides[1])
    assert not are_two_sides(one, one)
