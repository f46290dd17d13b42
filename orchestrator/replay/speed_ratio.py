"""Speed ratio of two sets of runs of different hours, with confidence intervals and a verdict. Pure; docs/recipe.md
explains the rule.

Finalists of a search are measured in turns, so that the state of the machine in those minutes affects all alike. The
runs of a replay have minutes of their own, and agree on the speed of those minutes. So runs are grouped into sessions,
and sessions are compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from statistics import fmean, median
from typing import Any, Self

from orchestrator.config.answer import AnswerPart
from trials.measurement.metrics import percentile
from trials.measurement.run_variance import RunMeasurement, student_quantile
from trials.outcome_types import MeasuredMetrics
from trials.trial import Flag, LowerStrEnum

SESSION_S = 300.0
"""Runs that start less than this after a session's first run belong to it."""

SESSION_SPREAD = 0.03
"""Prior relative spread between sessions: equal hardware is not equally fast at another hour."""
SESSION_WEIGHT = 8
"""Weight of that prior, in degrees of freedom."""
RUN_SPREAD = 0.02
"""Prior relative spread between the runs of a session."""
RUN_WEIGHT = 4

FAST_STEPS = 0.1
"""Share of a run's steps that count as fast."""
EQUIVALENCE_MARGINS = 3
"""`reproduced` requires that a change of this many margins is excluded."""


@dataclass(frozen=True)
class Run:
    """One measurement: median step time with its 95 % interval, seconds.

    `started_s` is UTC seconds since the epoch, `fast_step_time_s` the slowest of the fast steps, seconds. All but the
    median are None if unknown.
    """

    step_time_s: float
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    started_s: float | None = None
    fast_step_time_s: float | None = None

    @classmethod
    def of(
        cls,
        metrics: MeasuredMetrics,
        step_times_s: Sequence[float],
        started_s: float | None,
        flags: Collection[str] = (),
    ) -> Run:
        """A run from an outcome's metrics, its flags and all its steps, warm-up first."""
        fast = _fast_step_time_s(metrics, step_times_s, Flag.EXTRAPOLATED in flags)
        return cls(metrics.step_time_s, metrics.step_time_low_s, metrics.step_time_high_s, started_s, fast)

    @property
    def measurement(self) -> RunMeasurement:
        return RunMeasurement(self.step_time_s, self.step_time_low_s, self.step_time_high_s)

    @property
    def by_fast_steps(self) -> Run | None:
        """The same run by its fast steps, assumed to be as precise as the median."""
        if self.fast_step_time_s is None:
            return None
        scale = self.fast_step_time_s / self.step_time_s
        low, high = (None if end is None else end * scale for end in (self.step_time_low_s, self.step_time_high_s))
        return Run(self.fast_step_time_s, low, high, self.started_s)


@dataclass(frozen=True)
class MeasurementSession:
    """Runs of one layout from the same minutes; at least one."""

    runs: tuple[Run, ...]

    @property
    def log_step_time(self) -> float:
        return fmean(math.log(run.step_time_s) for run in self.runs)

    @property
    def started_s(self) -> float | None:
        return self.runs[0].started_s


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

    @classmethod
    def of(cls, recorded: Sequence[Run], measured: Sequence[Run]) -> Self:
        """The ratio by a two-sample t interval over sessions with moderated variances (Smyth 2004, doi
        10.2202/1544-6115.1027): one between sessions, one between the runs of a session, and each run's own over its
        steps."""
        before, after = sides = by_session(recorded), by_session(measured)
        freedom = SESSION_WEIGHT + sum(len(side) - 1 for side in sides)
        squares = SESSION_WEIGHT * SESSION_SPREAD**2 + sum(map(_squares_between, sides))
        variance = squares / freedom * sum(1 / len(side) for side in sides)
        variance += _run_variance(sides) * sum(_share_of_runs(side) for side in sides)
        variance += sum(map(_steps_variance, sides))
        then, error = _mean_log_step_time(before), math.sqrt(variance)
        change = then - _mean_log_step_time(after)
        ends = (sign * student_quantile(level, freedom) * error for level in (0.05, 0.01) for sign in (-1, 1))
        low, high, low_99, high_99 = (math.exp(change + end) for end in ends)
        alone = tuple(math.exp(then - session.log_step_time) for session in after)
        return cls(math.exp(change), low, high, low_99, high_99, alone)

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
    speed, fast = SpeedRatio.of(recorded, measured), None
    before, after = ([run.by_fast_steps for run in runs] for runs in (recorded, measured))
    if None not in (*before, *after):
        fast = SpeedRatio.of([run for run in before if run], [run for run in after if run])
    return Comparison(_verdict(speed, fast or speed, margin, confidence), speed, fast)


def by_session(runs: Sequence[Run]) -> tuple[MeasurementSession, ...]:
    """Sessions of these runs, in order; at least one run. A run without a start time joins the session of the run
    before it."""
    groups: list[list[Run]] = []
    for run in _by_start(runs):
        session_start_s = groups[-1][0].started_s if groups else None
        is_new = (
            session_start_s is not None and run.started_s is not None and run.started_s - session_start_s >= SESSION_S
        )
        if is_new or not groups:
            groups.append([])
        groups[-1].append(run)
    return tuple(MeasurementSession(tuple(group)) for group in groups)


def step_time_of(sessions: Sequence[MeasurementSession]) -> float:
    """Step time in seconds: the geometric mean over sessions of the geometric mean over each one's runs."""
    return math.exp(_mean_log_step_time(sessions))


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


def _fast_step_time_s(metrics: MeasuredMetrics, step_times_s: Sequence[float], are_by_turns: bool) -> float | None:
    """Time of the fast steps, None if the steps are unknown.

    A run extrapolated from shorter steps has its fast ones scaled like its median; a short and a long step taken by
    turns count as one.
    """
    start = metrics.warmup_steps or 0
    times = step_times_s[start : start + metrics.measured_steps]
    if are_by_turns:
        times = [short + long for short, long in zip(times[::2], times[1::2], strict=False)]
    fast = percentile(times, FAST_STEPS) if times else 0.0
    return metrics.step_time_s * fast / median(times) if fast > 0 else None


def _by_start(runs: Sequence[Run]) -> list[Run]:
    """Runs by start time if all are known, else in the given order."""
    starts = [run.started_s for run in runs]
    return list(runs) if None in starts else sorted(runs, key=lambda run: run.started_s or 0.0)


def _mean_log_step_time(sessions: Sequence[MeasurementSession]) -> float:
    return fmean(session.log_step_time for session in sessions)


def _squares_between(side: Sequence[MeasurementSession]) -> float:
    centre = _mean_log_step_time(side)
    return sum((session.log_step_time - centre) ** 2 for session in side)


def _run_variance(sides: Sequence[Sequence[MeasurementSession]]) -> float:
    """Variance between runs of one session, over all sessions of all sides."""
    sessions = [session for side in sides for session in side]
    freedom = RUN_WEIGHT + sum(len(session.runs) - 1 for session in sessions)
    return (RUN_WEIGHT * RUN_SPREAD**2 + sum(map(_squares_within, sessions))) / freedom


def _squares_within(session: MeasurementSession) -> float:
    return sum((math.log(run.step_time_s) - session.log_step_time) ** 2 for run in session.runs)


def _share_of_runs(side: Sequence[MeasurementSession]) -> float:
    """Factor on the variance between runs in a side's mean of session means."""
    return sum(1 / len(session.runs) for session in side) / len(side) ** 2


def _steps_variance(side: Sequence[MeasurementSession]) -> float:
    errors = (run.measurement.standard_error / len(session.runs) for session in side for run in session.runs)
    return sum(error**2 for error in errors) / len(side) ** 2
