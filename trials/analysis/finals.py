"""Rule of the finals: whether another round of repeats may still tell the best layouts apart. Pure; docs/measuring.md.

Two layouts are compared by their repeats alone, which were measured in turns and not selected for luck. The verdict's
own intervals, over all runs, have to agree before a layout counts as clearly faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from trials.measurement.run_variance import (
    RunMeasurement,
    geometric_median,
    log_half_width,
    steps_variance,
    student_above,
    student_quantile,
    student_tails,
    variance_between,
)
from trials.trial import LowerStrEnum

ERROR_RATE = 0.05
"""Probability that the fastest layout of a search's finals is called clearly slower than another, over all rounds and
layouts."""
TIE_MARGIN = 0.02
"""Difference of speed below which two layouts are as good as equal."""
LEAST_CHANCE = 0.1
"""Chance that the remaining rounds tell two layouts apart, below which they are not worth it."""
MIN_RUNS = 2
"""Runs of each layout without which there is no spread between them, and so no claim."""


class Finals(LowerStrEnum):
    """Rule that ends the repeats of the finalists."""

    UNTIL_DECIDED = "until_decided"
    FIXED = "fixed"


DEFAULT_FINALS = Finals.UNTIL_DECIDED


class FinalsEnding(LowerStrEnum):
    """Reason why the finals ended."""

    DECIDED = "decided"
    """One layout is clearly faster than all others."""
    TIE = "tie"
    """Some are tied with the fastest, or further rounds would hardly tell them apart."""
    LIMIT = "limit"
    """Undecided after the last round."""
    CUT_SHORT = "cut_short"
    """A round was not completed: the budget or the search ended, or no layout was measured with both stacks."""


@dataclass(frozen=True)
class FinalsEnd:
    """End of the repeats of the finalists, with `search.finals: until_decided`."""

    ending: FinalsEnding
    rounds: int
    """Round in which they ended."""
    max_rounds: int
    """`search.finalist_repeats`."""
    layouts: int
    """Number of layouts measured again."""
    are_paired: bool = False
    """True if each layout competed with itself on the other software of an experiment."""


class _Relation(LowerStrEnum):
    """Relation of one layout to another."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    OPEN = "open"


_UNDECIDED = (_Relation.TIE, _Relation.OPEN)


@dataclass(frozen=True)
class Finalist:
    """A layout in the finals: speeds of its runs that count, and those among them that were measured in turns.

    The baseline takes part even where it leaves too little memory to win.
    """

    name: str
    runs: tuple[RunMeasurement, ...]
    repeats: tuple[RunMeasurement, ...]
    may_win: bool = True
    is_baseline: bool = False

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The verdict's 95 % interval of the logarithm of its speed."""
        centre, half = math.log(geometric_median([run.value for run in self.runs])), log_half_width(self.runs)
        return centre - half, centre + half

    @cached_property
    def log_speed(self) -> float:
        """Mean logarithm of the speed over its repeats."""
        return fmean(math.log(run.value) for run in self.repeats)

    @property
    def is_known(self) -> bool:
        return len(self.runs) >= MIN_RUNS and len(self.repeats) > 0


@dataclass(frozen=True)
class FinalsStanding:
    """Consequence of a round: the ending of the finals, or else the layouts (by name) of the next round.

    `clear` are the pairs of which the first is clearly faster than the second.
    """

    ending: FinalsEnding | None
    next_round: frozenset[str] = frozenset()
    clear: frozenset[tuple[str, str]] = frozenset()


def standing_after(finalists: Sequence[Finalist], number: int, rounds: int, entrants: int) -> FinalsStanding:
    """The standing of the layouts measured in round `number` of at most `rounds`; `entrants` were in the first.

    Those clearly slower than the leader drop out; the baseline does once it is clearly slower than all that remain.
    """
    rivals = [one for one in finalists if one.may_win and one.runs]
    if not rivals:
        return FinalsStanding(FinalsEnding.DECIDED)
    leader = max(rivals, key=lambda one: one.interval[0])
    compared = _Comparisons(finalists, number, rounds, ERROR_RATE / (rounds * max(1, entrants - 1)))
    others = [one for one in rivals if one is not leader and not one.is_baseline]
    contenders = [leader, *(one for one in others if compared.relation(leader, one) is not _Relation.FASTER)]
    baselines = [one for one in finalists if one.is_baseline and one is not leader]
    pairs = [(leader, one) for one in others] + [(one, baseline) for baseline in baselines for one in contenders]
    relations = {(one.name, other.name): compared.relation(one, other) for one, other in pairs}
    found, clear = set(relations.values()), frozenset(_clear_pairs(relations))
    if _Relation.OPEN not in found:
        return FinalsStanding(FinalsEnding.TIE if _Relation.TIE in found else FinalsEnding.DECIDED, clear=clear)
    if number == rounds:
        return FinalsStanding(FinalsEnding.LIMIT, clear=clear)
    undecided = {name for pair, relation in relations.items() for name in pair if relation in _UNDECIDED}
    kept = [one for one in baselines if one.name in undecided]
    return FinalsStanding(None, frozenset(one.name for one in (*contenders, *kept)), clear)


def _clear_pairs(relations: Mapping[tuple[str, str], _Relation]) -> Iterator[tuple[str, str]]:
    for (one, other), relation in relations.items():
        if relation is _Relation.FASTER:
            yield one, other
        elif relation is _Relation.SLOWER:
            yield other, one


class _Comparisons:
    """Comparisons of two layouts after one round, two-sided at `level` each.

    One variance between runs holds for all layouts.
    """

    def __init__(self, finalists: Sequence[Finalist], number: int, rounds: int, level: float):
        self._number, self._rounds, self._level = number, rounds, level
        self._between, self._freedom = variance_between([one.runs for one in finalists if one.runs])
        self._num_measured = sum(one.is_known for one in finalists)

    def relation(self, one: Finalist, other: Finalist) -> _Relation:
        """Relation of the first to the second."""
        if self._is_clearly_faster(one, other):
            return _Relation.FASTER
        if self._is_clearly_faster(other, one):
            return _Relation.SLOWER
        if not (one.is_known and other.is_known):
            return _Relation.OPEN
        if self._differ_by_less(one, other) or self._hardly_clears(one, other):
            return _Relation.TIE
        return _Relation.OPEN

    def _is_clearly_faster(self, one: Finalist, other: Finalist) -> bool:
        """True if the repeats say so at the level, and the verdict's intervals do not overlap."""
        if not (one.is_known and other.is_known) or one.interval[0] <= other.interval[1]:
            return False
        lead = one.log_speed - other.log_speed
        return lead > 0 and student_tails(lead / self._standard_error(one, other), self._freedom) <= self._level

    def _differ_by_less(self, one: Finalist, other: Finalist) -> bool:
        """True if the interval of the ratio is within the margin of a tie."""
        room = math.log1p(TIE_MARGIN) - abs(one.log_speed - other.log_speed)
        return room > 0 and student_tails(room / self._standard_error(one, other), self._freedom) <= self._level

    def _hardly_clears(self, one: Finalist, other: Finalist) -> bool:
        """True if the last round would tell the two apart with less than `LEAST_CHANCE`, as far as is known now.

        The predicted difference of the means over all rounds has the present one as its mean.
        """
        more = self._rounds - self._number
        if more == 0:
            return False
        run = self._between + (_steps_variance_of_a_run(one) + _steps_variance_of_a_run(other)) / 2
        deviation = math.sqrt(2 * run * more / (self._number * self._rounds))
        freedom = self._freedom + self._num_measured * more
        needed = student_quantile(self._level, freedom) * math.sqrt(2 * run / self._rounds)
        needed = max(needed, _half_width_after(one, more) + _half_width_after(other, more))
        lead = abs(one.log_speed - other.log_speed)
        chances = (student_above((needed + side * lead) / deviation, self._freedom) for side in (-1, 1))
        return sum(chances) < LEAST_CHANCE

    def _standard_error(self, one: Finalist, other: Finalist) -> float:
        sides = (one.repeats, other.repeats)
        return math.sqrt(sum(self._between / len(runs) + steps_variance(runs) for runs in sides))


def _steps_variance_of_a_run(finalist: Finalist) -> float:
    return steps_variance(finalist.repeats) * len(finalist.repeats)


def _half_width_after(finalist: Finalist, more: int) -> float:
    """Half width of the verdict's interval after so many more runs that are as spread as those so far."""
    between, freedom = variance_between([finalist.runs])
    count = len(finalist.runs) + more
    return student_quantile(0.05, freedom + more) * math.sqrt((between + _steps_variance_of_a_run(finalist)) / count)
