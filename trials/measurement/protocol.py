"""Measurement protocol: warm-up, precision, and when to stop. Pure; standard library only.

docs/measuring.md explains the rules.

Warm-up ends by stability: after the first step at which the median of the newest three step times lies within 10 % of
the median of the three before. Compilation, allocator growth and the first collectives make early steps slower, and a
median of three forgives a single stray step. `max_warmup_steps` ends it in any case.

The 95 % interval of the median is taken from order statistics (David & Nagaraja, Order Statistics, 3rd ed., 7.1): it
assumes nothing about the shape of the distribution, and needs at least six steps; with fewer it is unknown.

A step that would take longer than half a minute is not run in full: its time is extrapolated from two shorter ones
(`TwoPointExtrapolation`, `StepPlan`).

A measurement is suspect when the machine rather than the layout may have made it: when its steps drift (`slows_down`),
or when one of its devices is slower than the others at equal work (`slow_ranks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from statistics import median, median_low

from search_spaces.layouts.layout import Layout
from trials.measure_rules import MeasureRules
from trials.measurement.run_variance import RunMeasurement, log_half_width
from trials.measurement.step_log import StepPhase
from trials.trial import LowerStrEnum, TrialKind, TrialSpec

STABILITY_WINDOW = 3
STABILITY_TOLERANCE = 0.10
CONFIDENCE = 0.95
SUSPECT_SLOWDOWN = 0.15
"""Slowdown from which a device is suspect. Devices of one model differ by 8 % on average (docs/measuring.md)."""
MIN_DRIFT_STEPS = 15
"""Fewest steps for a drift test: five a third. Fewer look like a drift by chance too often."""
LONGEST_STEP_S = 30.0
"""Longer steps are extrapolated from shorter ones: eight full steps of a large model may be tens of node-hours."""
MIN_ENERGY_TIME_S = 3.0
"""Least time over which energy is measured: the counters of GPUs advance every 0.1 s at the latest, 3 % of it."""
PROBE_SIZE = 4096
"""Rows and columns of the matrix product that compares devices: 0.14 TFLOP, 0.2 ms on the fastest, a few on the
slowest."""


class StopReason(LowerStrEnum):
    """Reason why measuring ended."""

    PRECISE = "precise"
    MAX_STEPS = "max_steps"
    TIME_LIMIT = "time_limit"
    PRUNED = "pruned"


@dataclass
class Measurement:
    """Step times of one trial's full steps, and the decision to go on. All ranks feed equal numbers and so agree.

    A finalist is measured longer, where the time limit allows it: for `finalist_steps`, or `finalist_time_s`. So is a
    trial whose energy counts: for `MIN_ENERGY_TIME_S`.
    """

    rules: MeasureRules
    is_finalist: bool = False
    step_times_s: list[float] = field(default_factory=list)
    stop: StopReason | None = None
    _costs_s: list[float] = field(default_factory=list)

    @property
    def phase(self) -> StepPhase:
        """Phase of the next step."""
        return StepPhase.WARMUP if self.warmup_steps is None else StepPhase.MEASURED

    def add(
        self, step_time_s: float, elapsed_s: float, cost_s: float | None = None, target_step_time_s: float | None = None
    ) -> None:
        """Take in a full step, `elapsed_s` seconds after the trial started.

        `cost_s` is the time spent on measuring the step, where that is not `step_time_s`. `target_step_time_s` is the
        step time at which this layout could still be the best; None without an incumbent to compare with.
        """
        self.step_times_s.append(step_time_s)
        self._costs_s.append(step_time_s if cost_s is None else cost_s)
        self.stop = self._stop(elapsed_s, target_step_time_s)

    @property
    def warmup_steps(self) -> int | None:
        """Number of warm-up steps; None during warm-up."""
        return warmup_length(self.step_times_s, self.rules.max_warmup_steps)

    @property
    def measured_times_s(self) -> list[float]:
        warmup = self.warmup_steps
        return [] if warmup is None else self.step_times_s[warmup:]

    @property
    def has_enough_steps(self) -> bool:
        return len(self.measured_times_s) >= self.rules.min_steps

    @property
    def is_wide(self) -> bool:
        """True if the interval was still wider than asked after the most steps; too few steps have no interval."""
        return self.stop is StopReason.MAX_STEPS and median_interval(self.measured_times_s) is not None

    def _stop(self, elapsed_s: float, target_step_time_s: float | None) -> StopReason | None:
        measured = self.measured_times_s
        is_late = elapsed_s + self._time_needed_to_end_s() > self.rules.time_limit_s
        if is_late or self._is_long_enough(measured):
            if self.has_enough_steps and _is_precise(measured, self.rules.ci_relative_width):
                return StopReason.PRECISE
            if len(measured) >= self.rules.max_steps:
                return StopReason.MAX_STEPS
        if is_late:
            return StopReason.TIME_LIMIT
        is_beaten = target_step_time_s is not None and is_slower_than(target_step_time_s, measured)
        return StopReason.PRUNED if is_beaten else None

    def _is_long_enough(self, measured: Sequence[float]) -> bool:
        if self.rules.energy and sum(measured) < MIN_ENERGY_TIME_S:
            return False
        is_long = len(measured) >= self.rules.finalist_steps or sum(measured) >= self.rules.finalist_time_s
        return is_long or not self.is_finalist

    def _time_needed_to_end_s(self) -> float:
        """Seconds reserved for one more step, twice as slow as the slowest recent one, and for writing the outcome.

        The first step is left out: it may have compiled for minutes.
        """
        return 2 * max(self._costs_s[1:][-STABILITY_WINDOW:], default=0.0) + 1.0


@dataclass(frozen=True)
class TwoPointExtrapolation:
    """Two numbers of micro-batches per step, from whose times that of a step of `full` follows: T = a + b m.

    The shorter one fills the pipeline twice and holds as many micro-batches at once as a full step, so that its memory
    peak is the same; both are multiples of the stages, as interleaved schedules require. It is not much shorter than a
    twelfth of a full step: extrapolation multiplies its noise.
    """

    short: int
    long: int
    full: int

    @classmethod
    def of(cls, layout: Layout) -> TwoPointExtrapolation | None:
        """None where a pair of short steps would cost more than half a full step, and with GPipe, which holds all
        micro-batches of a step at once."""
        stages, full = layout.pipeline_parallel, layout.grad_accum_steps
        least = stages * (layout.virtual_pipeline_stages + 1)
        if layout.pipeline_schedule == "gpipe" or 6 * least > full:
            return None
        short = max(least, full // (12 * stages) * stages)
        return cls(short, 2 * short, full)

    def full_time_s(self, short_s: float, long_s: float) -> float:
        """The time of a full step, on the line through both."""
        return short_s + (long_s - short_s) / (self.long - self.short) * (self.full - self.short)


def extrapolation_of(spec: TrialSpec) -> TwoPointExtrapolation | None:
    """The short steps that this trial may be measured by; finalists, replays, and trials whose energy counts run full
    steps."""
    is_shortened = spec.kind is TrialKind.SEARCH and not spec.measure.energy
    return TwoPointExtrapolation.of(spec.layout.canonical()) if is_shortened else None


class StepPlan:
    """Number of micro-batches of each step. Trials of the search begin with short steps where these are cheaper, and
    keep to them where a full step would take longer than `LONGEST_STEP_S`."""

    def __init__(self, spec: TrialSpec):
        self.extrapolation = extrapolation_of(spec)
        self.is_extrapolated = False
        self._full = spec.layout.grad_accum_steps
        self._times_s: list[float] = []

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the next step: one short step alone, then short and long ones in turn."""
        if self.extrapolation is None:
            return self._full
        is_long = len(self._times_s) > 0 and len(self._times_s) % 2 == 0
        return self.extrapolation.long if is_long else self.extrapolation.short

    def add(self, step_time_s: float) -> tuple[float, float] | None:
        """Take in a step; returns the time of a full step and the time spent on it, once known (seconds)."""
        if self.extrapolation is None:
            return step_time_s, step_time_s
        shorts = self.extrapolation
        self._times_s.append(step_time_s)
        if len(self._times_s) == 1:
            # An upper bound: nothing is warm yet, and the fixed part of a step is multiplied, too.
            self._use_full_steps_below(step_time_s * shorts.full / shorts.short)
            return None
        if len(self._times_s) % 2 == 0:
            return None
        short_s = self._times_s[-2]
        full_s = shorts.full_time_s(short_s, step_time_s)
        if not self.is_extrapolated:
            self._use_full_steps_below(full_s)
        self.is_extrapolated = self.extrapolation is not None
        return (full_s, short_s + step_time_s) if self.is_extrapolated else None

    def _use_full_steps_below(self, full_s: float) -> None:
        if full_s <= LONGEST_STEP_S:
            self.extrapolation = None


def warmup_length(step_times_s: Sequence[float], max_warmup_steps: int) -> int | None:
    """Number of warm-up steps by the rule above; None while warm-up lasts. Further steps never change the result."""
    for end in range(2 * STABILITY_WINDOW, min(len(step_times_s), max_warmup_steps) + 1):
        earlier = median(step_times_s[end - 2 * STABILITY_WINDOW : end - STABILITY_WINDOW])
        newest = median(step_times_s[end - STABILITY_WINDOW : end])
        if abs(newest - earlier) <= STABILITY_TOLERANCE * earlier:
            return end
    return max_warmup_steps if len(step_times_s) >= max_warmup_steps else None


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A distribution-free interval of the median with a confidence of at least 95 %; None with too few values.

    The k-th smallest and k-th largest values enclose the median unless fewer than k values fall on one side of it:
    coverage is 1 - 2 P(Binomial(n, 1/2) < k).
    """
    ordered, n = sorted(values), len(values)
    k = _values_cut_off(n)
    return (ordered[k - 1], ordered[n - k]) if k else None


@lru_cache
def _values_cut_off(n: int) -> int:
    """The largest k of the interval above, in integers: 2^-n underflows a float from a thousand steps on."""
    most = math.floor(Fraction(1 - CONFIDENCE) * 2 ** (n - 1)) if n else 0
    tail, ways, k = 0, 1, 0
    while (tail := tail + ways) <= most:
        ways = ways * (n - k) // (k + 1)
        k += 1
    return k


def is_slower_than(target_step_time_s: float, measured_times_s: Sequence[float]) -> bool:
    """True if a layout with these measured steps takes longer than `target_step_time_s` a step in any other run, too.

    Compared is the lower end of the 95 % interval over runs (`run_variance.py`). False with too few steps, and where
    they drift.
    """
    interval = time_interval(measured_times_s)
    if interval is None or slows_down(measured_times_s):
        return False
    middle_s = median(measured_times_s)
    return middle_s / math.exp(log_half_width([RunMeasurement(middle_s, *interval)])) > target_step_time_s


def slows_down(measured_times_s: Sequence[float]) -> bool:
    """True if the steps became slower while they were measured, as on a device that overheats.

    The median of the last third lies at least 15 % above that of the first, and their spreads do not overlap; stray
    steps, the slowest tenth of the first third and the fastest tenth of the last, are left out of the spreads.
    """
    if len(measured_times_s) < MIN_DRIFT_STEPS:
        return False
    third = len(measured_times_s) // 3
    strays = third // 10
    first, last = sorted(measured_times_s[:third]), sorted(measured_times_s[-third:])
    return median(last) >= (1 + SUSPECT_SLOWDOWN) * median(first) and first[-1 - strays] < last[strays]


def slow_ranks(probe_ms_by_rank: Sequence[float]) -> tuple[int, ...]:
    """Ranks whose device took more than 15 % longer than the median rank's for equal work."""
    if not probe_ms_by_rank:
        return ()
    limit_ms = (1 + SUSPECT_SLOWDOWN) * median_low(probe_ms_by_rank)
    return tuple(rank for rank, ms in enumerate(probe_ms_by_rank) if ms > limit_ms)


def time_interval(times_s: Sequence[float]) -> tuple[float, float] | None:
    """The interval of their median. Also unknown where it reaches below zero, as disturbed short steps may make it."""
    interval = median_interval(times_s)
    return None if interval is None or interval[0] <= 0 else interval


def _is_precise(measured: Sequence[float], relative_width: float) -> bool:
    interval = median_interval(measured)
    return interval is not None and interval[1] - interval[0] <= relative_width * median(measured)
