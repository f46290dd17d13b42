"""How far runs of one layout lie apart, and what follows for their middle: pure. The rule in words: docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, median_low

SPREAD_ALLOWANCE = 0.03
"""Relative spread between runs that is taken for granted, since equal hardware at another hour is not equally fast."""
ALLOWANCE_WEIGHT = 4
"""Degrees of freedom that allowance counts for beside the spread that was seen."""

_NORMAL_95 = 1.96
# Two-sided 95 % quantiles of Student's t for 4 to 30 degrees of freedom.
_STUDENT_95 = (
    2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """The median over one run's steps of something positive, and its 95 % interval where there were steps enough."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def standard_error(self) -> float:
        """Relative standard error of the median over this run's steps; the allowance where it is unknown."""
        if not self.low or not self.high:
            return SPREAD_ALLOWANCE
        return math.log(self.high / self.low) / (2 * _NORMAL_95)


def log_half_width(*sides: Sequence[Reading]) -> float:
    """Half the width of the 95 % interval of the logarithm of one side's middle, or of the ratio of two.

    Runs vary more than the steps of one run, so the interval rests on the spread between runs: the allowance,
    corrected by what repeats on every side show, plus each run's own uncertainty (a t interval of logarithms with a
    moderated variance; Smyth 2004, doi 10.2202/1544-6115.1027). Each side holds at least one run.
    """
    freedom = ALLOWANCE_WEIGHT + sum(len(side) - 1 for side in sides)
    squares = ALLOWANCE_WEIGHT * SPREAD_ALLOWANCE**2 + sum(map(_squares, sides))
    variance = squares / freedom * sum(1 / len(side) for side in sides) + sum(map(_steps_variance, sides))
    return _student_95(freedom) * math.sqrt(variance)


def middle(values: Sequence[float]) -> float:
    """The median of positive values; of an even number the geometric mean of the middle two, so that the middle of
    speeds and that of the times they come from stay each other's inverse."""
    return math.sqrt(median_low(values) * median_high(values))


def _squares(side: Sequence[Reading]) -> float:
    logs = [math.log(reading.value) for reading in side]
    centre = fmean(logs)
    return sum((value - centre) ** 2 for value in logs)


def _steps_variance(side: Sequence[Reading]) -> float:
    return sum(reading.standard_error**2 for reading in side) / len(side) ** 2


def _student_95(freedom: int) -> float:
    index = freedom - ALLOWANCE_WEIGHT
    return _STUDENT_95[min(index, len(_STUDENT_95) - 1)]
