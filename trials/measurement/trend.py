"""Trend of a series by step: a robust slope that a single jump does not fake. Pure; standard library only.

The slope is the median over all pairs of points, its interval that of Kendall's test of trend (Theil 1950; Sen 1968,
doi 10.1080/01621459.1968.10480934): no noise distribution is assumed. A series that is flat but for one jump has more
flat pairs than the interval leaves out, so its slope may be zero, where least squares would find growth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

FEWEST_POINTS = 8
"""Fewest points for an interval: with fewer even steady growth is too likely to be chance."""
_NORMAL_99 = 2.576
_MOST_POINTS = 200
"""Limit of points, since pairs grow with their square."""


@dataclass(frozen=True)
class Slope:
    """Units per step, and the lower end of its 99 % interval (None with fewer than eight points)."""

    value: float
    low: float | None

    def is_above(self, least: float) -> bool:
        """True if the whole interval lies above this slope."""
        return self.low is not None and self.low > least


def slope_of(series: Sequence[tuple[int, float]]) -> Slope | None:
    """The slope of (step, value), steps ascending; None with fewer than two points."""
    points = _thinned(series)
    slopes = sorted((b - a) / (j - i) for (i, a), (j, b) in combinations(points, 2))
    if not slopes:
        return None
    return Slope(median(slopes), slopes[_first_inside(len(points))] if len(points) >= FEWEST_POINTS else None)


def _thinned(series: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    stride = -(-len(series) // _MOST_POINTS)
    return list(series[:: max(1, stride)])


def _first_inside(points: int) -> int:
    """The rank, from 0, of the smallest slope inside Sen's interval, by the normal approximation of Kendall's S."""
    pairs = points * (points - 1) // 2
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    return max(0, math.floor((pairs - _NORMAL_99 * deviation) / 2))
