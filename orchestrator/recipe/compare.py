"""Is the layout as fast as it was? Two sets of runs compared: pure. The rule in words: docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trials.spread import Reading, log_half_width
from trials.trial import Word

WIDE_MARGINS = 3
"""A replay is called reproduced only if a change of this many margins is excluded."""

_OF_ONE_JOB = ("job_id", "probe_ms_by_rank")
_ENVIRONMENT = "environment"


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
    def reading(self) -> Reading:
        return Reading(self.step_time_s, self.step_time_low_s, self.step_time_high_s)


@dataclass(frozen=True)
class Comparison:
    """How fast the replay is relative to the recorded runs (above 1: faster), with a 95 % interval."""

    verdict: ReplayVerdict
    ratio: float
    low: float
    high: float


def compare(recorded: Sequence[Run], measured: Sequence[Run], margin: float) -> Comparison:
    """The verdict on two sets of runs; both hold at least one. The interval rests on the spread between runs."""
    before, after = ([run.reading for run in runs] for runs in (recorded, measured))
    half_width = log_half_width(before, after)
    change = _mean_log(before) - _mean_log(after)
    ratio, low, high = (math.exp(x) for x in (change, change - half_width, change + half_width))
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


def _mean_log(readings: Sequence[Reading]) -> float:
    return fmean(math.log(reading.value) for reading in readings)


def fingerprint_differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields that are not the same; None where one side does not know it. What differs from job to job is left
    out. A variable of the environment is a field of its own, `environment.NAME`, where both sides know theirs."""
    before, now = _fields(recorded), _fields(here)
    if isinstance(recorded.get(_ENVIRONMENT), Mapping) and isinstance(here.get(_ENVIRONMENT), Mapping):
        before, now = before | _variables(recorded), now | _variables(here)
    return [
        {"field": name, "recorded": before.get(name), "here": now.get(name)}
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _fields(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fingerprint.items() if name not in (*_OF_ONE_JOB, _ENVIRONMENT)}


def _variables(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{_ENVIRONMENT}.{name}": value for name, value in fingerprint[_ENVIRONMENT].items()}
