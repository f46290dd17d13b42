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


def test_one_far_ahead_of_all_ends_the_finals_after_one_round():
    standing = after_one(finalist("a", 200, 200), finalist("b", 150, 150), finalist("baseline", 100, 100))
    assert (standing.ending, standing.next_round) == (FinalsEnding.DECIDED, frozenset())
    assert standing.clear == {("a", "b"), ("a", "baseline")}


def test_those_clearly_slower_drop_out_and_so_does_the_baseline():
    standing = after_one(
        finalist("a", 200, 200), finalist("b", 188, 188), finalist("c", 120, 120), finalist("baseline", 100, 100)
    )
    assert (standing.ending, standing.next_round) == (None, {"a", "b"})
    assert ("a", "c") in standing.clear


def test_a_baseline_that_one_contender_may_not_beat_stays():
    standing = after_one(finalist("a", 200, 200), finalist("b", 186, 186), finalist("baseline", 175, 175))
    assert standing.next_round == {"a", "b", "baseline"}


def test_those_that_the_remaining_rounds_would_hardly_tell_apart_are_a_tie():
    pair = finalist("a", 200, 200), finalist("b", 199, 199)
    assert after_one(*pair, rounds=2).ending is FinalsEnding.TIE
    assert after_one(*pair, rounds=100).ending is None, "a hundred rounds might"


def test_a_difference_that_is_surely_below_the_margin_is_a_tie():
    same = [100.0] * 60
    pair = Finalist("a", runs(*same), runs(*same)), Finalist("b", runs(*same), runs(*same))
    assert standing_after(pair, 59, 100, 2).ending is FinalsEnding.TIE


def test_a_lucky_first_run_does_not_make_a_layout_clearly_faster():
    standing = after_one(finalist("a", 400, 200), finalist("baseline", 200, 200))
    assert standing.clear == frozenset()


def test_repeats_that_the_verdict_does_not_confirm_are_not_clear():
    assert not after_one(finalist("a", 100, 140), finalist("b", 120, 120)).clear


def test_a_layout_of_a_single_run_is_never_clearly_faster_nor_slower():
    single = Finalist("a", runs(200.0), runs(200.0))
    assert after_one(single, finalist("b", 100, 100)).ending is None
    assert after_one(finalist("b", 300, 300), single).next_round == {"a", "b"}


def test_a_layout_without_a_repeat_that_counts_is_in_doubt():
    suspect = Finalist("a", runs(200.0, 201.0), ())
    assert after_one(suspect, finalist("b", 100, 100)).next_round == {"a", "b"}


def test_the_last_round_ends_the_finals_whatever_is_in_doubt():
    standing = standing_after([finalist("a", 200, 201, 202), finalist("b", 190, 191, 192)], 2, 2, 2)
    assert standing.ending is FinalsEnding.LIMIT


def test_a_layout_alone_needs_no_second_round():
    assert after_one(finalist("a", 200, 200)).ending is FinalsEnding.DECIDED


def test_where_none_may_win_nothing_is_in_doubt():
    assert after_one(finalist("baseline", 200, 200, may_win=False)).ending is FinalsEnding.DECIDED


def test_a_baseline_that_may_not_win_is_compared_all_the_same():
    fast = finalist("baseline", 300, 300, may_win=False)
    assert after_one(finalist("a", 100, 100), fast).clear == {("baseline", "a")}
    alike = finalist("baseline", 106, 106, may_win=False)
    assert after_one(finalist("a", 100, 100), alike).next_round == {"a", "baseline"}


@pytest.mark.parametrize("faster", [1.105, 1.15])
def test_more_looks_and_more_layouts_ask_for_more(faster):
    def is_clear(rounds: int, entrants: int) -> bool:
        pair = [finalist("a", 100 * faster, 100 * faster), finalist("b", 100, 100)]
        return bool(standing_after(pair, 1, rounds, entrants).clear)

    assert is_clear(1, 2)
    assert not is_clear(50, 20)
