"""A measured layout over all its runs: which runs count, and what they measured together. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from search_spaces.layouts.layout import Layout
from trials.failure_policy import policy_of
from trials.measurement.run_variance import RunMeasurement, geometric_median, log_half_width
from trials.outcome_types import MeasuredMetrics
from trials.trial import Flag, Outcome, Trial, TrialKind, TrialState

SUSPECT_FLAGS = frozenset({Flag.SUSPECT_NODE, Flag.FINGERPRINT_CHANGED})
"""Flags of a measurement that has to be repeated before it may be the best."""

_MEDIANS = (
    *("tokens_per_sec", "tokens_per_sec_per_gpu", "real_tokens_per_sec", "samples_per_sec", "model_tflops_per_gpu"),
    *("mfu", "mfu_causal", "hfu", "step_time_s", "step_time_p95_s", "fastest_rank_step_time_s", "startup_s"),
)
_PEAKS = (
    *("peak_memory_gib", "peak_memory_allocated_gib", "peak_device_memory_gib", "peak_host_memory_gib"),
    *("allocated_memory_slope_mib_per_step", "reserved_memory_slope_mib_per_step", "device_memory_slope_mib_per_step"),
    *("host_memory_slope_mib_per_step", "expert_tokens_most"),
)
_LEAST = ("host_memory_full_at_step", "device_memory_full_at_step", "host_memory_available_gib")


@dataclass(frozen=True)
class RankedLayout:
    """A layout of which at least one trial was measured, as ranking, best layout, report, recipe and status show it.

    `trials` are all its trials, in the order of proposals. Its numbers are medians over the runs that count, and its
    name is that of the first of them. A child run in MLflow has the numbers of its single trial instead.
    """

    trials: tuple[Trial, ...]

    @cached_property
    def runs(self) -> tuple[Trial, ...]:
        """Its measured trials."""
        return tuple(trial for trial in self.trials if trial.measured is not None)

    @cached_property
    def counted(self) -> tuple[Trial, ...]:
        """The runs that count: suspect ones only where there are no others."""
        return runs_that_count(self.runs)

    @property
    def first(self) -> Trial:
        """The run that the layout is named after, whose software and hardware stand for it."""
        return self.counted[0]

    @property
    def trial(self) -> str:
        return self.first.trial

    @property
    def layout(self) -> Layout:
        return self.first.layout

    @cached_property
    def measured(self) -> MeasuredMetrics:
        """The measurement over the runs that count; that of a single one is its own.

        Speeds and times are medians over the runs, with intervals that rest on the spread between them; peaks and
        slopes of memory are the highest, what is left of it, and the step at which it ends, the least; the rest is the
        first run's.
        """
        return _merged(self.measurements)

    @property
    def flags(self) -> tuple[Flag, ...]:
        return tuple(dict.fromkeys(flag for run in self.counted for flag in run.flags))

    @property
    def slowest_rank(self) -> Mapping[str, Any] | None:
        """`SlowestRank` of the run with the slowest one; None where no run that counts could compare its ranks."""
        known = [outcome.slowest_rank for outcome in self._outcomes if outcome.slowest_rank]
        return max(known, key=lambda one: float(one["slowdown"]), default=None)

    @property
    def fullest_rank(self) -> Mapping[str, Any] | None:
        """`FullestRank` of the run that left least memory, or else used most; None where no run that counts told it."""
        known = [outcome.fullest_rank for outcome in self._outcomes if outcome.fullest_rank]
        return min(known, key=lambda one: (one.get("free_gib", math.inf), -one["used_gib"]), default=None)

    @property
    def _outcomes(self) -> list[Outcome]:
        return [last.outcome for run in self.counted if (last := run.last_attempt) and last.outcome]

    @property
    def is_suspect(self) -> bool:
        """True if the machine may have slowed down all runs that count."""
        return is_suspect(self.first)

    @property
    def is_unproven(self) -> bool:
        """True if not all that some run trained could be seen."""
        return Flag.UNPROVEN in self.flags

    @property
    def may_be_best(self) -> bool:
        """A single suspect run never is; several may be where nothing else of the layout was measured."""
        return not self.is_suspect or len(self.counted) > 1

    @property
    def is_finalist(self) -> bool:
        """True if it was chosen to be measured again and no repeat failed for a reason that is not retried."""
        return bool(self._repeats) and not self.is_failing

    @property
    def is_failing(self) -> bool:
        """True if a repeat failed for a reason that is not retried."""
        return any(t.state is TrialState.FAILED and policy_of(t.reason).retries == 0 for t in self._repeats)

    @property
    def _repeats(self) -> list[Trial]:
        second = suspect_reruns(self.trials)
        return [t for t in self.trials if t.kind is TrialKind.REPEAT and t.trial not in second]

    @property
    def by_round(self) -> tuple[Trial | None, ...]:
        """The run of the search, then that of each round of the finals; None for one that does not count."""
        repeats, counted = [run.trial for run in self._repeats], {run.trial: run for run in self.counted}
        first = next((run for name, run in counted.items() if name not in repeats), None)
        return (first, *(counted.get(name) for name in repeats))

    @property
    def measurements(self) -> list[MeasuredMetrics]:
        """The measurements of the runs that count."""
        return [run.measured for run in self.counted if run.measured is not None]


TrialOrLayout = Trial | RankedLayout
"""One run, or a layout over its runs: both have a name (`trial`), `layout`, `measured` and `flags`."""


def ranked_layouts(trials: Sequence[Trial], global_batch_size: int) -> Iterator[RankedLayout]:
    """The measured layouts of this global batch (sequences per step), in the order of proposals."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.layout.global_batch_size == global_batch_size:
            by_layout.setdefault(trial.layout.key, []).append(trial)
    for group in by_layout.values():
        if any(trial.measured is not None for trial in group):
            yield RankedLayout(tuple(group))


def runs_that_count(runs: Sequence[Trial]) -> tuple[Trial, ...]:
    """The measured runs of one layout that count: suspect ones only where there are no others."""
    return tuple(run for run in runs if not is_suspect(run)) or tuple(runs)


def is_suspect(run: Trial | Outcome) -> bool:
    """True if the machine may have slowed the measurement down."""
    return not SUSPECT_FLAGS.isdisjoint(run.flags)


def needs_repeat(trial: Trial) -> bool:
    """True if this run of the search was measured on a node that may have slowed it down."""
    return trial.kind is TrialKind.SEARCH and trial.state is TrialState.MEASURED and Flag.SUSPECT_NODE in trial.flags


def suspect_reruns(trials: Sequence[Trial]) -> frozenset[str]:
    """Names of the repeats that replace a run on a suspect node: the first repeat of each such layout.

    They do not make their layouts finalists: these compete with all others.
    """
    first_repeats: dict[str, str] = {}
    for trial in trials:
        if trial.kind is TrialKind.REPEAT:
            first_repeats.setdefault(trial.layout.key, trial.trial)
    suspects = {trial.layout.key for trial in trials if needs_repeat(trial)}
    return frozenset(name for key, name in first_repeats.items() if key in suspects)


def highest_peak_gib(runs: Sequence[Trial]) -> float | None:
    """GiB of the fullest rank over several runs of one layout; None where unknown."""
    peaks = (run.measured.peak_memory_gib for run in runs if run.measured is not None)
    return max((gib for gib in peaks if gib is not None), default=None)


def _merged(runs: Sequence[MeasuredMetrics]) -> MeasuredMetrics:
    if len(runs) == 1:
        return runs[0]
    names = (*_MEDIANS, *_PEAKS, *_LEAST)
    known = {name: [getattr(run, name) for run in runs if getattr(run, name) is not None] for name in names}
    found: dict[str, Any] = {name: geometric_median(known[name]) for name in _MEDIANS if known[name]}
    found |= {name: max(known[name]) for name in _PEAKS if known[name]}
    found |= {name: min(known[name]) for name in _LEAST if known[name]}
    factor = math.exp(log_half_width(list(map(throughput_of, runs))))
    for name, low, high in (
        ("tokens_per_sec", "tokens_per_sec_low", "tokens_per_sec_high"),
        ("step_time_s", "step_time_low_s", "step_time_high_s"),
    ):
        found |= {low: found[name] / factor, high: found[name] * factor}
    found |= _energy_interval([energy for run in runs if (energy := energy_of(run)) is not None])
    return replace(runs[0], **found, time_s=_time_parts(runs, found["step_time_s"]))


def _energy_interval(runs: Sequence[RunMeasurement]) -> dict[str, Any]:
    """Median of the runs' joules a token, and its interval, which rests on the spread between them."""
    if not runs:
        return {}
    median, factor = geometric_median([run.value for run in runs]), math.exp(log_half_width(runs))
    ends = {"joules_per_token_low": median / factor, "joules_per_token_high": median * factor}
    return {"joules_per_token": median, **ends}


def energy_of(run: MeasuredMetrics) -> RunMeasurement | None:
    """Joules a token of a run, or of a layout over its runs; None where they are unknown."""
    if run.joules_per_token is None:
        return None
    return RunMeasurement(run.joules_per_token, run.joules_per_token_low, run.joules_per_token_high)


def _time_parts(runs: Sequence[MeasuredMetrics], step_time_s: float) -> Mapping[str, float] | None:
    """Mean shares of the profiled runs, scaled so that they add up to the step time over all runs."""
    known = [run.time_s for run in runs if run.time_s and sum(run.time_s.values()) > 0]
    if not known:
        return runs[0].time_s
    parts = {part: None for time_s in known for part in time_s}
    shares = {part: fmean(time_s.get(part, 0.0) / sum(time_s.values()) for time_s in known) for part in parts}
    return {part: share * step_time_s for part, share in shares.items()}


def throughput_of(run: MeasuredMetrics) -> RunMeasurement:
    """Tokens per second of a run, or of a layout over its runs."""
    return RunMeasurement(run.tokens_per_sec, run.tokens_per_sec_low, run.tokens_per_sec_high)
