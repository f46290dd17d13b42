"""Runs of one layout at different hours: what they say of its speed, and how surely. Pure; in words: docs/recipe.md.

Finalists of a search are measured in turns, so what the machine is like in those minutes touches all alike. A replay
is not: its runs lie in minutes of their own, and agree with each other on those minutes' speed. Runs are therefore
grouped by session, and it is sessions that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from trials.measurement.protocol import percentile
from trials.measurement.run_variance import RunMeasurement, student_95, student_99
from trials.trial import Flag

SESSION_S = 300.0
"""Runs that begin sooner than this after a session's first run are of it, too."""

SESSION_SPREAD = 0.03
"""Relative spread between sessions that is taken for granted: equal hardware at another hour is not equally fast."""
SESSION_WEIGHT = 8
"""Degrees of freedom which that counts for beside the spread between sessions that was seen."""
RUN_SPREAD = 0.02
"""Relative spread between the runs of one session that is taken for granted."""
RUN_WEIGHT = 4

FAST_STEPS = 0.1
"""Share of a run's steps that counts as its fast ones."""


@dataclass(frozen=True)
class Run:
    """One measurement: median step time in seconds, its 95 % interval where there were steps enough for one, when it
    began, in UTC seconds since the epoch, where that is known, and the slowest of its fast steps in seconds, likewise.
    """

    step_time_s: float
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    started_s: float | None = None
    fast_step_time_s: float | None = None

    @classmethod
    def of(
        cls,
        measured: Mapping[str, Any],
        step_times_s: Sequence[float],
        started_s: float | None,
        flags: Collection[str] = (),
    ) -> Run:
        """A run from an outcome's `measured`, all its steps, warm-up first, and its flags."""
        low, high = measured.get("step_time_low_s"), measured.get("step_time_high_s")
        fast = _fast_step_time_s(measured, step_times_s, Flag.EXTRAPOLATED in flags)
        return cls(measured["step_time_s"], low, high, started_s, fast)

    @property
    def measurement(self) -> RunMeasurement:
        return RunMeasurement(self.step_time_s, self.step_time_low_s, self.step_time_high_s)

    @property
    def by_fast_steps(self) -> Run | None:
        """The same run by its fast steps, which are taken to be as surely known as the median."""
        if self.fast_step_time_s is None:
            return None
        scale = self.fast_step_time_s / self.step_time_s
        low, high = (None if end is None else end * scale for end in (self.step_time_low_s, self.step_time_high_s))
        return Run(self.fast_step_time_s, low, high, self.started_s)


@dataclass(frozen=True)
class MeasurementSession:
    """Runs of one layout that were made in the same minutes; at least one."""

    runs: tuple[Run, ...]

    @property
    def log_step_time(self) -> float:
        return fmean(math.log(run.step_time_s) for run in self.runs)

    @property
    def started_s(self) -> float | None:
        return self.runs[0].started_s


def by_session(runs: Sequence[Run]) -> tuple[MeasurementSession, ...]:
    """The sessions of at least one run, in their order. A run that does not say when it began is of the session of
    the run before it."""
    groups: list[list[Run]] = []
    for run in _by_start(runs):
        begun = groups[-1][0].started_s if groups else None
        is_new = begun is not None and run.started_s is not None and run.started_s - begun >= SESSION_S
        if is_new or not groups:
            groups.append([])
        groups[-1].append(run)
    return tuple(MeasurementSession(tuple(group)) for group in groups)


def step_time_of(sessions: Sequence[MeasurementSession]) -> float:
    """Seconds a step: the geometric mean over sessions of the geometric mean over each one's runs."""
    return math.exp(_level(sessions))


@dataclass(frozen=True)
class LogChange:
    """The logarithm of how many times as fast some runs are as others, and half the widths of its 95 % and its 99 %
    interval."""

    change: float
    half_width_95: float
    half_width_99: float


def log_change(before: Sequence[MeasurementSession], after: Sequence[MeasurementSession]) -> LogChange:
    """How much faster the runs after are than those before.

    A two-sample t interval over sessions with moderated variances (Smyth 2004, doi 10.2202/1544-6115.1027): one
    between sessions, one between the runs of a session, and each run's own over its steps.
    """
    sides = (before, after)
    freedom = SESSION_WEIGHT + sum(len(side) - 1 for side in sides)
    squares = SESSION_WEIGHT * SESSION_SPREAD**2 + sum(map(_squares_between, sides))
    variance = squares / freedom * sum(1 / len(side) for side in sides)
    variance += _run_variance(sides) * sum(_share_of_runs(side) for side in sides)
    variance += sum(map(_steps_variance, sides))
    error = math.sqrt(variance)
    return LogChange(_level(before) - _level(after), student_95(freedom) * error, student_99(freedom) * error)


def _fast_step_time_s(measured: Mapping[str, Any], step_times_s: Sequence[float], are_by_turns: bool) -> float | None:
    """None where the steps are not known. A run whose steps were shorter than the layout's, and its median scaled, has
    its fast ones scaled alike; a shorter and a longer one by turns are one step together."""
    start = measured.get("warmup_steps") or 0
    times = step_times_s[start : start + (measured.get("measured_steps") or 0)]
    if are_by_turns:
        times = [short + long for short, long in zip(times[::2], times[1::2], strict=False)]
    fast = percentile(times, FAST_STEPS) if times else 0.0
    return measured["step_time_s"] * fast / median(times) if fast > 0 else None


def _by_start(runs: Sequence[Run]) -> list[Run]:
    """In order of their beginning where all say when; as they are given where not."""
    starts = [run.started_s for run in runs]
    return list(runs) if None in starts else sorted(runs, key=lambda run: run.started_s or 0.0)


def _level(sessions: Sequence[MeasurementSession]) -> float:
    return fmean(session.log_step_time for session in sessions)


def _squares_between(side: Sequence[MeasurementSession]) -> float:
    centre = _level(side)
    return sum((session.log_step_time - centre) ** 2 for session in side)


def _run_variance(sides: Sequence[Sequence[MeasurementSession]]) -> float:
    """Between runs of one session, over all sessions of all sides."""
    sessions = [session for side in sides for session in side]
    freedom = RUN_WEIGHT + sum(len(session.runs) - 1 for session in sessions)
    return (RUN_WEIGHT * RUN_SPREAD**2 + sum(map(_squares_within, sessions))) / freedom


def _squares_within(session: MeasurementSession) -> float:
    return sum((math.log(run.step_time_s) - session.log_step_time) ** 2 for run in session.runs)


def _share_of_runs(side: Sequence[MeasurementSession]) -> float:
    """How much of the variance between runs is left in a side's mean of sessions' means."""
    return sum(1 / len(session.runs) for session in side) / len(side) ** 2


def _steps_variance(side: Sequence[MeasurementSession]) -> float:
    errors = (run.measurement.standard_error / len(session.runs) for session in side for run in session.runs)
    return sum(error**2 for error in errors) / len(side) ** 2
