"""Is the layout as fast as it was? Two sets of runs compared: pure. The rule in words: docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trials.trial import Word

SPREAD_ALLOWANCE = 0.03
"""Relative spread between runs that is taken for granted, since equal hardware at another hour is not equally fast."""
ALLOWANCE_WEIGHT = 4
"""Degrees of freedom that allowance counts for beside the spread that was seen."""
WIDE_MARGINS = 3
"""A replay is called reproduced only if a change of this many margins is excluded."""

_NORMAL_95 = 1.96
# Two-sided 95 % quantiles of Student's t for 4 to 30 degrees of freedom.
_STUDENT_95 = (
    2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class ReplayVerdict(Word):
    REPRODUCED = "reproduced"
    SLOWER = "slower"
    FASTER = "faster"
    INCONCLUSIVE = "inconclusive"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Run:
    """One measurement: median step time in seconds, and its 95 % interval where there were steps enough for one."""

    step_time_s: float
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None

    @property
    def standard_error(self) -> float:
        """Relative standard error of the median over this run's steps; the allowance where it is unknown."""
        if not self.step_time_low_s or not self.step_time_high_s:
            return SPREAD_ALLOWANCE
        return math.log(self.step_time_high_s / self.step_time_low_s) / (2 * _NORMAL_95)


@dataclass(frozen=True)
class Comparison:
    """How fast the replay is relative to the recorded runs (above 1: faster), with a 95 % interval."""

    verdict: ReplayVerdict
    ratio: float
    low: float
    high: float


def compare(recorded: Sequence[Run], measured: Sequence[Run], margin: float) -> Comparison:
    """The verdict on two sets of runs; both hold at least one.

    Runs vary more than the steps of one run, so the interval of the ratio rests on the spread between runs: the
    allowance, corrected by what repeats on either side show, plus each run's own uncertainty (a two-sample t interval
    of log step times with a moderated variance; Smyth 2004, doi 10.2202/1544-6115.1027).
    """
    before, after = ([math.log(run.step_time_s) for run in runs] for runs in (recorded, measured))
    freedom = ALLOWANCE_WEIGHT + len(before) + len(after) - 2
    squares = ALLOWANCE_WEIGHT * SPREAD_ALLOWANCE**2 + _squares(before) + _squares(after)
    variance = squares / freedom * (1 / len(before) + 1 / len(after))
    variance += _steps_variance(recorded) + _steps_variance(measured)
    half_width = _student_95(freedom) * math.sqrt(variance)
    middle = fmean(before) - fmean(after)
    ratio, low, high = (math.exp(x) for x in (middle, middle - half_width, middle + half_width))
    return Comparison(_judged(ratio, low, high, margin), ratio, low, high)


def _judged(ratio: float, low: float, high: float, margin: float) -> ReplayVerdict:
    """Slower and faster need both a change beyond the margin and an interval without 1; doubt is inconclusive."""
    if ratio < 1 - margin and high < 1:
        return ReplayVerdict.SLOWER
    if ratio > 1 + margin and low > 1:
        return ReplayVerdict.FASTER
    wide = WIDE_MARGINS * margin
    if abs(ratio - 1) <= margin and low > 1 - wide and high < 1 + wide:
        return ReplayVerdict.REPRODUCED
    return ReplayVerdict.INCONCLUSIVE


def _squares(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)


def _steps_variance(runs: Sequence[Run]) -> float:
    return sum(run.standard_error**2 for run in runs) / len(runs) ** 2


def _student_95(freedom: int) -> float:
    index = freedom - ALLOWANCE_WEIGHT
    return _STUDENT_95[min(index, len(_STUDENT_95) - 1)]


def fingerprint_differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields that are not the same; None where one side does not know it."""
    names = [*recorded, *(name for name in here if name not in recorded)]
    return [
        {"field": name, "recorded": recorded.get(name), "here": here.get(name)}
        for name in names
        if recorded.get(name) != here.get(name)
    ]
