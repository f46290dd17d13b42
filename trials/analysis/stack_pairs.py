"""Layouts measured with two software stacks in turns: the ratio of their speeds over pairs of runs. Pure.

The runs of a round are compared with each other, since both were measured in the same minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from search_spaces.layouts.layout import Layout
from trials.analysis.finals import ERROR_RATE, TIE_MARGIN, FinalsEnding, FinalsStanding
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, speed_of
from trials.measurement.run_variance import RunMeasurement, student_quantile

PAIR_SPREAD = 0.02 * math.sqrt(2)
"""Prior relative spread of the ratio of two runs of the same minutes, each of which varies by 2 %."""
PAIR_WEIGHT = 4
"""Degrees of freedom of that prior."""


PairedRuns = tuple[RunMeasurement, RunMeasurement]
"""A run with the search's own software, and one with the other, of one round."""


@dataclass(frozen=True)
class PairedRatio:
    """Speed with the other software over that with the search's own, with its 95 % interval, over this many pairs."""

    value: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class StackPair:
    """A layout with the search's own software and with the other one, by their keys, with their pairs of runs."""

    own: str
    other: str
    runs: Sequence[PairedRuns]


def are_two_sides(one: Layout, other: Layout) -> bool:
    """True if the layouts differ in nothing but the software of an experiment."""
    return one.key != other.key and one.with_software({}).key == other.with_software({}).key


def in_pairs(layouts: Sequence[Layout], is_reversed: bool = False) -> list[Layout]:
    """The layouts of which both sides are here, these next to each other: that of the search first, or last."""
    sides: dict[str, list[Layout]] = {}
    for layout in layouts:
        sides.setdefault(layout.with_software({}).key, []).append(layout)
    pairs = (sides[key] for key in sorted(sides) if len(sides[key]) == 2)
    return [side for pair in pairs for side in sorted(pair, key=_has_other_software, reverse=is_reversed)]


def _has_other_software(layout: Layout) -> bool:
    return bool(layout.of_trial.software)


def paired_runs(own: RankedLayout, other: RankedLayout, objective: Objective) -> list[PairedRuns]:
    """The pairs of runs of one layout: of each round of which both count. A run without a partner is in none."""
    rounds = zip(own.by_round, other.by_round, strict=False)
    return [(speed_of(a, objective), speed_of(b, objective)) for a, b in rounds if a is not None and b is not None]


def paired_ratio(pairs: Sequence[PairedRuns], level: float = ERROR_RATE) -> PairedRatio | None:
    """The ratio over the pairs of runs, with its interval at 1 - `level`; None without a pair.

    A t interval of the logarithm with a moderated variance (Smyth 2004, doi 10.2202/1544-6115.1027), plus the variance
    of each run over its steps.
    """
    if not pairs:
        return None
    logs = [math.log(b.value / a.value) for a, b in pairs]
    centre, count = fmean(logs), len(logs)
    freedom = PAIR_WEIGHT + count - 1
    between = (PAIR_WEIGHT * PAIR_SPREAD**2 + sum((log - centre) ** 2 for log in logs)) / freedom
    of_steps = sum(run.standard_error**2 for pair in pairs for run in pair) / count**2
    half = student_quantile(level, freedom) * math.sqrt(between / count + of_steps)
    return PairedRatio(math.exp(centre), math.exp(centre - half), math.exp(centre + half), count)


def paired_standing(pairs: Sequence[StackPair], number: int, rounds: int) -> FinalsStanding:
    """Standing after round `number` of at most `rounds`: the pairs that are neither told apart nor tied go on.

    The level of each look is that of all looks at all pairs together, shared evenly (Bonferroni).
    """
    level = ERROR_RATE / (rounds * max(1, len(pairs)))
    ratios = [(pair, paired_ratio(pair.runs, level)) for pair in pairs]
    open_pairs = [pair for pair, ratio in ratios if ratio is None or not _is_decided(ratio)]
    if not pairs:
        return FinalsStanding(FinalsEnding.CUT_SHORT)
    if open_pairs and number < rounds:
        return FinalsStanding(None, frozenset(key for pair in open_pairs for key in (pair.own, pair.other)))
    if open_pairs:
        return FinalsStanding(FinalsEnding.LIMIT)
    is_tie = any(ratio is not None and ratio.low <= 1 <= ratio.high for _, ratio in ratios)
    return FinalsStanding(FinalsEnding.TIE if is_tie else FinalsEnding.DECIDED)


def _is_decided(ratio: PairedRatio) -> bool:
    """True if one side is faster, or the two are within the margin of a tie."""
    is_tie = math.log(ratio.high) < math.log1p(TIE_MARGIN) and math.log(ratio.low) > -math.log1p(TIE_MARGIN)
    return ratio.low > 1 or ratio.high < 1 or is_tie
