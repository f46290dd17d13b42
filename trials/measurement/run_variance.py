"""Spread between runs of one layout, and the confidence interval of their median. Pure; the rule: docs/recipe.md.

Student's t distribution with whole degrees of freedom, exactly, is here since the standard library lacks it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median_high, median_low

SPREAD_ALLOWANCE = 0.03
"""Prior relative spread between runs: equal hardware is not equally fast at another hour."""
ALLOWANCE_WEIGHT = 4
"""Degrees of freedom of the prior spread."""

_NORMAL_95 = 1.96
_MAX_T = 1e6


@dataclass(frozen=True)
class RunMeasurement:
    """Median over one run's steps of a positive quantity, and its 95 % interval where there were enough steps."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """Its ends; the point itself where they are unknown."""
        return (self.value, self.value) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def inverse(self) -> RunMeasurement:
        """One over it."""
        if self.low is None or self.high is None:
            return RunMeasurement(1 / self.value)
        return RunMeasurement(1 / self.value, 1 / self.high, 1 / self.low)

    def over(self, divisor: float) -> RunMeasurement:
        low, high = (None if end is None else end / divisor for end in (self.low, self.high))
        return RunMeasurement(self.value / divisor, low, high)

    @property
    def standard_error(self) -> float:
        """Relative standard error of the median over this run's steps; the prior spread where it is unknown."""
        if not self.low or not self.high:
            return SPREAD_ALLOWANCE
        return math.log(self.high / self.low) / (2 * _NORMAL_95)


def log_half_width(runs: Sequence[RunMeasurement]) -> float:
    """Half the width of the 95 % interval of the logarithm of the geometric median of at least one run.

    Runs vary more than the steps of one run, so the interval rests on the spread between runs: the prior, corrected by
    repeats, plus each run's own uncertainty (a t interval of logarithms with a moderated variance; Smyth 2004, doi
    10.2202/1544-6115.1027).
    """
    between, freedom = variance_between([runs])
    return student_quantile(0.05, freedom) * math.sqrt(between / len(runs) + steps_variance(runs))


def variance_between(groups: Sequence[Sequence[RunMeasurement]]) -> tuple[float, int]:
    """Variance of the logarithm between runs of one layout, and its degrees of freedom: the prior, corrected by the
    runs of these layouts, a group each."""
    freedom = ALLOWANCE_WEIGHT + sum(len(runs) - 1 for runs in groups)
    return (ALLOWANCE_WEIGHT * SPREAD_ALLOWANCE**2 + sum(map(_squares, groups))) / freedom, freedom


def steps_variance(runs: Sequence[RunMeasurement]) -> float:
    """Variance that the steps of at least one run add to that of their mean's logarithm."""
    return sum(run.standard_error**2 for run in runs) / len(runs) ** 2


def geometric_median(values: Sequence[float]) -> float:
    """Median of positive values; of an even number the geometric mean of the middle two.

    So the median of speeds stays the inverse of the median of the times they come from.
    """
    return math.sqrt(median_low(values) * median_high(values))


def _squares(runs: Sequence[RunMeasurement]) -> float:
    logs = [math.log(run.value) for run in runs]
    centre = fmean(logs)
    return sum((value - centre) ** 2 for value in logs)


def student_tails(t: float, freedom: int) -> float:
    """Probability that |T| exceeds |t| (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for step in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * step + 2) / (2 * step + 3) if is_odd else (2 * step + 1) / (2 * step + 2))
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - within)


def student_above(t: float, freedom: int) -> float:
    """Probability that T exceeds t."""
    half = student_tails(t, freedom) / 2
    return half if t >= 0 else 1.0 - half


@lru_cache(maxsize=1024)
def student_quantile(tails: float, freedom: int) -> float:
    """The t that |T| exceeds with this probability, by bisection; at most a million."""
    low, high = 0.0, _MAX_T
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tails(middle, freedom) > tails else (low, middle)
    return high
