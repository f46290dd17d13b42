"""Rule of the finals: who is clearly faster, what is a tie, who goes on, and of two software stacks in turns."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from search_spaces.layouts.layout import Layout
from trials.analysis.finals import Finalist, FinalsEnding, standing_after
from trials.analysis.stack_pairs import PairedRuns, StackPair, are_two_sides, in_pairs, paired_ratio, paired_standing
from trials.measurement.run_variance import RunMeasurement

ROUNDS = 4


def runs(*speeds: float) -> tuple[RunMeasurement, ...]:
    return tuple(RunMeasurement(speed, speed * 0.99, speed * 1.01) for speed in speeds)


def finalist(name: str, first: float, *repeats: float, may_win: bool = True) -> Finalist:
    return Finalist(name, runs(first, *repeats), runs(*repeats), may_win, is_baseline=name == "baseline")


def after_one(*finalists: Finalist, rounds: int = ROUNDS):
    return standing_after(finalists, 1, rounds, len(finalists))


SINGLE, SUSPECT = Finalist("a", runs(200.0), runs(200.0)), Finalist("a", runs(200.0, 201.0), ())
SLOW_BASELINE = finalist("baseline", 100, 100)


@pytest.mark.parametrize(
    ("finalists", "ending", "goes_on"),
    [
        ([finalist("a", 200, 200), finalist("b", 150, 150), SLOW_BASELINE], FinalsEnding.DECIDED, ""),
        ([finalist("a", 200, 200), finalist("b", 188, 188), finalist("c", 120, 120), SLOW_BASELINE], None, "a b"),
        ([finalist("a", 200, 200), finalist("b", 186, 186), finalist("baseline", 175, 175)], None, "a b baseline"),
        ([SINGLE, finalist("b", 100, 100)], None, "a b"),  # one run is never clearly faster
        ([SINGLE, finalist("b", 300, 300)], None, "a b"),  # nor slower
        ([SUSPECT, finalist("b", 100, 100)], None, "a b"),  # no repeat of it counts
        ([finalist("a", 200, 200)], FinalsEnding.DECIDED, ""),
        ([finalist("baseline", 200, 200, may_win=False)], FinalsEnding.DECIDED, ""),
        ([finalist("a", 100, 100), finalist("baseline", 106, 106, may_win=False)], None, "a baseline"),
    ],
)
def test_those_in_doubt_go_on_and_the_finals_end_where_none_is(finalists, ending, goes_on):
    standing = after_one(*finalists)
    assert (standing.ending, standing.next_round) == (ending, {*goes_on.split()})


def test_a_tie_or_the_last_round_ends_the_finals():
    pair = finalist("a", 200, 200), finalist("b", 199, 199)
    assert after_one(*pair, rounds=2).ending is FinalsEnding.TIE
    assert after_one(*pair, rounds=100).ending is None, "a hundred rounds might"
    same = [100.0] * 60
    pair = Finalist("a", runs(*same), runs(*same)), Finalist("b", runs(*same), runs(*same))
    assert standing_after(pair, 59, 100, 2).ending is FinalsEnding.TIE, "surely below the margin"
    standing = standing_after([finalist("a", 200, 201, 202), finalist("b", 190, 191, 192)], 2, 2, 2)
    assert standing.ending is FinalsEnding.LIMIT


@pytest.mark.parametrize(
    ("finalists", "clear"),
    [
        ([finalist("a", 200, 200), finalist("b", 150, 150), SLOW_BASELINE], {("a", "b"), ("a", "baseline")}),
        ([finalist("a", 400, 200), finalist("baseline", 200, 200)], set()),  # a lucky first run
        ([finalist("a", 100, 140), finalist("b", 120, 120)], set()),  # the verdict does not confirm the repeats
        ([finalist("a", 100, 100), finalist("baseline", 300, 300, may_win=False)], {("baseline", "a")}),
    ],
)
def test_who_is_clearly_faster(finalists, clear):
    assert after_one(*finalists).clear == clear


@pytest.mark.parametrize("faster", [1.105, 1.15])
def test_more_looks_and_more_layouts_ask_for_more(faster):
    def is_clear(rounds: int, entrants: int) -> bool:
        pair = [finalist("a", 100 * faster, 100 * faster), finalist("b", 100, 100)]
        return bool(standing_after(pair, 1, rounds, entrants).clear)

    assert is_clear(1, 2)
    assert not is_clear(50, 20)


PYTHON = {"python": "/opt/b/bin/python"}


def paired(own: Sequence[float], other: Sequence[float]) -> list[PairedRuns]:
    measured = [RunMeasurement(value, 0.999 * value, 1.001 * value) for value in (*own, *other)]
    return list(zip(measured[: len(own)], measured[len(own) :], strict=True))


def test_what_both_runs_of_a_pair_met_does_not_widen_the_interval():
    alike = paired_ratio(paired((100, 50, 100), (110, 55, 110)))
    assert alike.value == pytest.approx(1.1)
    assert alike.low > 1.05
    apart = paired_ratio(paired((100, 50, 100), (55, 110, 110)))
    assert apart.low < 1 < apart.high
    found = paired_ratio(paired((100,), (103,)))
    assert (found.pairs, found.low < 1 < found.high) == (1, True)
    assert paired_ratio(()) is None


def test_the_interval_covers_the_ratio_as_often_as_it_says_where_runs_vary_as_the_prior_says():
    numbers, covered = random.Random(1), 0
    for _ in range(400):
        own, other = ([math.exp(numbers.gauss(0, 0.02)) for _ in range(3)] for _ in range(2))
        found = paired_ratio(paired(own, other))
        covered += found.low <= 1 <= found.high
    assert covered >= 0.93 * 400


def test_a_pair_goes_on_until_it_is_told_apart_tied_or_at_the_limit():
    clear = StackPair("a", "A", paired((100, 100), (150, 151)))
    doubtful = StackPair("b", "B", paired((100, 100), (103, 104)))
    tied = StackPair("c", "C", paired([100] * 60, [100] * 60))
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
