"""Rule of the finals: who is clearly faster, what is a tie, who goes on."""

from __future__ import annotations

import pytest

from trials.analysis.finals import Finalist, FinalsEnding, standing_after
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
