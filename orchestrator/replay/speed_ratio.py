"""Speed ratio of two sets of runs, with a verdict. Pure; the rule is explained in docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from orchestrator.config.answer import AnswerPart
from orchestrator.replay.sessions import Run, by_session, log_change
from trials.trial import LowerStrEnum

EQUIVALENCE_MARGINS = 3
"""`reproduced` requires that a change of this many margins is excluded."""

_JOB_SPECIFIC = ("job_id", "probe_ms_by_rank")
_OBJECTS = ("scripts", "script_modified", "environment")


class ReplayVerdict(LowerStrEnum):
    REPRODUCED = "reproduced"
    """The ratio is within the margin of 1."""
    SLOWER = "slower"
    """Slower by more than the margin."""
    FASTER = "faster"
    """Faster by more than the margin."""
    INCONCLUSIVE = "inconclusive"
    """The interval allows several of these."""
    IMPOSSIBLE = "impossible"
    """The layout cannot be measured here."""


class Confidence(IntEnum):
    """Confidence, in percent, of the interval that must exclude 1 for slower or faster.

    Higher if the question is asked repeatedly, since chance alone answers more often then.
    """

    SINGLE_TEST = 95
    REPEATED_TEST = 99


@dataclass(frozen=True)
class SpeedRatio:
    """Speed ratio of the later runs to the earlier ones, with its 95 % and 99 % intervals, and that of each later
    session."""

    value: float
    low: float
    high: float
    low_99: float
    high_99: float
    by_session: tuple[float, ...]

    def interval(self, confidence: Confidence) -> tuple[float, float]:
        """The ends of the interval."""
        return (self.low, self.high) if confidence is Confidence.SINGLE_TEST else (self.low_99, self.high_99)


@dataclass(frozen=True)
class Comparison:
    """Comparison of two sets of runs: the ratio of their median steps, and of their fast steps where all runs have
    them.

    Above 1, the later runs are faster.
    """

    verdict: ReplayVerdict
    speed: SpeedRatio
    fast: SpeedRatio | None

    @property
    def ratio(self) -> float:
        return self.speed.value

    @property
    def low(self) -> float:
        return self.speed.low

    @property
    def high(self) -> float:
        return self.speed.high


class Ratios(AnswerPart):
    """Throughput of the second side over the first, with 95 % intervals. Null where unknown."""

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    fast_ratio: float | None
    """The same for the fastest tenth of the steps."""
    fast_ratio_low: float | None
    fast_ratio_high: float | None


def ratio_fields(found: Comparison | None) -> dict[str, Any]:
    """Fields of Ratios; None without a comparison."""
    speed, fast = (None, None) if found is None else (found.speed, found.fast)
    return _ratio_fields("ratio", speed) | _ratio_fields("fast_ratio", fast)


def compare_runs(
    recorded: Sequence[Run],
    measured: Sequence[Run],
    margin: float,
    confidence: Confidence = Confidence.REPEATED_TEST,
) -> Comparison:
    """Compare two sets of runs, each with at least one. The intervals are based on the spread between sessions."""
    speed, fast = _ratio(recorded, measured), None
    before, after = ([run.by_fast_steps for run in runs] for runs in (recorded, measured))
    if None not in (*before, *after):
        fast = _ratio([run for run in before if run], [run for run in after if run])
    return Comparison(_verdict(speed, fast or speed, margin, confidence), speed, fast)


def _ratio(recorded: Sequence[Run], measured: Sequence[Run]) -> SpeedRatio:
    before, after = by_session(recorded), by_session(measured)
    found = log_change(before, after)
    low, high = (math.exp(found.change + sign * found.half_width_95) for sign in (-1, 1))
    low_99, high_99 = (math.exp(found.change + sign * found.half_width_99) for sign in (-1, 1))
    alone = tuple(math.exp(log_change(before, [session]).change) for session in after)
    return SpeedRatio(math.exp(found.change), low, high, low_99, high_99, alone)


def _verdict(speed: SpeedRatio, precise: SpeedRatio, margin: float, confidence: Confidence) -> ReplayVerdict:
    """The verdict, by the median steps and by the fast ones.

    Other work on a machine slows many steps of a run, but a slower machine, library or layout slows all of them, the
    fast ones included. Slower and faster require a change beyond the margin, an interval of that confidence without 1,
    and no session that contradicts: a machine that was as fast as before even once is not slower. Everything else is
    inconclusive.
    """
    low, high = precise.interval(confidence)
    if max(speed.value, precise.value) < 1 - margin and max(high, *precise.by_session) < 1:
        return ReplayVerdict.SLOWER
    if min(speed.value, precise.value) > 1 + margin and min(low, *precise.by_session) > 1:
        return ReplayVerdict.FASTER
    wide = EQUIVALENCE_MARGINS * margin
    is_near = max(abs(ratio.value - 1) for ratio in (speed, precise)) <= margin
    if is_near and precise.low > 1 - wide and precise.high < 1 + wide:
        return ReplayVerdict.REPRODUCED
    return ReplayVerdict.INCONCLUSIVE


def _ratio_fields(name: str, ratio: SpeedRatio | None) -> dict[str, float | None]:
    values = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def fingerprint_differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fields that differ, None where one side lacks them; fields that differ from job to job are left out.

    An environment variable or a file is a field of its own, such as `environment.NAME`, if both sides know theirs.
    """
    before, now = _fields(recorded, here), _fields(here, recorded)
    return [
        {"field": name, "recorded": before.get(name), "here": now.get(name)}
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _fields(fingerprint: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a fingerprint, with the entries of objects that the other one has, too."""
    fields = {name: value for name, value in fingerprint.items() if name not in (*_JOB_SPECIFIC, *_OBJECTS)}
    for name in _OBJECTS:
        if isinstance(fingerprint.get(name), Mapping) and isinstance(other.get(name), Mapping):
            fields |= {f"{name}.{key}": value for key, value in fingerprint[name].items()}
    return fields
