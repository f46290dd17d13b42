"""Spread between runs of one layout, and the confidence interval of their median. Pure; the rule: docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_high, median_low

SPREAD_ALLOWANCE = 0.03
"""Prior relative spread between runs: equal hardware is not equally fast at another hour."""
ALLOWANCE_WEIGHT = 4
"""Degrees of freedom of the prior spread."""

_NORMAL_95 = 1.96
# Two-sided 95 % quantiles of Student's t for 4 to 30 degrees of freedom.
_STUDENT_95 = (
    2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
# 99 % quantiles.
_STUDENT_99 = (
    4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169, 3.106, 3.055, 3.012, 2.977, 2.947, 2.921, 2.898,
    2.878, 2.861, 2.845, 2.831, 2.819, 2.807, 2.797, 2.787, 2.779, 2.771, 2.763, 2.756, 2.750,
)  # fmt: skip


@dataclass(frozen=True)
class RunMeasurement:
    """Median over one run's steps of a positive quantity, and its 95 % interval where there were enough steps."""

    value: float
    low: float | None = None
    high: float | None = None

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
    return student_95(freedom) * math.sqrt(between / len(runs) + steps_variance(runs))


def variance_between(groups: Sequence[Sequence[RunMeasurement]]) -> tuple[float, int]:
    """Variance of the logarithm between runs of one layout, and its degrees of freedom: the prior, corrected by the
    runs of these layouts, a group each."""
    freedom = ALLOWANCE_WEIGHT + sum(len(runs) - 1 for runs in groups)
    return (ALLOWANCE_WEIGHT * SPREAD_ALLOWANCE**2 + sum(map(_squares, groups))) / freedom, freedom


def steps_variance(runs: Sequence[RunMeasurement]) -> float:
    """Variance that the steps of at least one run add to that of their mean's logarithm."""
    return sum(run.standard_error**2 for run in runs) / len(runs) ** 2


def student_95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t for at least 4 degrees of freedom; that of 30 for more than 30."""
    return _STUDENT_95[min(freedom - 4, len(_STUDENT_95) - 1)]


def student_99(freedom: int) -> float:
    """Two-sided 99 % quantile of Student's t, likewise."""
    return _STUDENT_99[min(freedom - 4, len(_STUDENT_99) - 1)]


def geometric_median(values: Sequence[float]) -> float:
    """Median of positive values; of an even number the geometric mean of the middle two.

    So the median of speeds stays the inverse of the median of the times they come from.
    """
    return math.sqrt(median_low(values) * median_high(values))


def _squares(runs: Sequence[RunMeasurement]) -> float:
    logs = [math.log(run.value) for run in runs]
    centre = fmean(logs)
    return sum((value - centre) ** 2 for value in logs)
