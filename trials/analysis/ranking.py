"""Ranking of measured layouts, with statistical ties. Pure; the rule is explained in docs/measuring.md."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, NamedTuple

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.failure_policy import policy_of
from trials.measurement.run_variance import RunMeasurement, geometric_median, log_half_width
from trials.outcome_types import MeasuredMetrics
from trials.trial import Flag, LowerStrEnum, Outcome, Trial, TrialKind, TrialState

SUSPECT_FLAGS = frozenset({Flag.SUSPECT_NODE, Flag.FINGERPRINT_CHANGED})
"""Flags of a measurement that has to be repeated before it may be the best."""

_SPEEDS = (
    "tokens_per_sec",
    "tokens_per_sec_per_gpu",
    "samples_per_sec",
    "model_tflops_per_gpu",
    "mfu",
    "mfu_causal",
    "hfu",
)
_TIMES = ("step_time_s", "step_time_p95_s", "fastest_rank_step_time_s", "startup_s")
_PEAKS = ("peak_memory_gib", "peak_memory_allocated_gib", "peak_host_memory_gib")
_EARLIEST = ("host_memory_full_at_step",)
_TOKENS_PER_BILLION = 1e9
_SECONDS_PER_HOUR = 3600

MIN_MEMORY_SAVING = 0.1
"""Relative memory saving for which a finalist is preferred to the fastest one it is tied with. Peaks of one layout's
runs differ by a few percent; smaller savings are not useful."""


class Objective(LowerStrEnum):
    """Objective of a search; the last one is minimised, the others are maximised."""

    TOKENS_PER_SEC = "tokens_per_sec"
    TOKENS_PER_SEC_PER_GPU = "tokens_per_sec_per_gpu"
    NODE_HOURS_PER_BILLION_TOKENS = "node_hours_per_billion_tokens"


def objectives_of(given: Any) -> tuple[Objective, ...]:
    """The objectives in search.json's `objective`: one name, or a list whose first decides. ValueError for others."""
    return tuple(map(Objective, given)) if isinstance(given, (list, tuple)) and given else (Objective(given),)


def objective_json(objectives: Sequence[Objective]) -> Any:
    """The inverse of `objectives_of`."""
    names = [objective.value for objective in objectives]
    return names if len(names) > 1 else names[0]


@dataclass(frozen=True)
class Ranking:
    """Measured layouts of one global batch, best first; suspect ones come last, and a single suspect run is never best.

    A layout measured several times appears once: as the first of its trials that counts, with `measured` over all its
    `runs` (by layout key). Once layouts are measured again as finalists, only these compete. `fastest` is the first.
    `best` is `fastest`, unless another finalist is tied with it (overlapping 95 % intervals) and needs less memory;
    `ties` are the other layouts tied with `fastest`. A layout with less free memory than `headroom` asks comes last and
    is none of these. `others` are further objectives; the first decides. `failing` are keys of layouts of which a
    repeat failed for a reason that is not retried.
    """

    objective: Objective
    ordered: tuple[Trial, ...] = ()
    best: Trial | None = None
    ties: tuple[Trial, ...] = ()
    runs: Mapping[str, tuple[Trial, ...]] = field(default_factory=dict)
    fastest: Trial | None = None
    headroom: MemoryHeadroom | None = None
    others: tuple[Objective, ...] = ()
    failing: frozenset[str] = frozenset()

    def has_headroom(self, trial: Trial) -> bool:
        """True if this layout, one of `ordered`, leaves the required memory free."""
        return _has_headroom(trial, self.headroom)


@dataclass(frozen=True)
class Speedup:
    """Ratio of two layouts' speeds, with the widest interval that their own intervals allow.

    The interval is None where either of theirs is unknown.
    """

    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Speed:
    """A throughput, larger is better, with its 95 % interval where one is known."""

    value: float
    interval: tuple[float, float] | None

    def overlaps(self, other: _Speed) -> bool:
        """True if the intervals overlap; an unknown interval is the point itself."""
        low, high = self.interval or (self.value, self.value)
        other_low, other_high = other.interval or (other.value, other.value)
        return low <= other_high and other_low <= high


class RankingKey(NamedTuple):
    """Sort key of a layout: too little memory, suspect, cannot be the best, not a finalist; then the higher score."""

    is_unfit: bool
    is_suspect: bool
    cannot_be_best: bool
    is_no_finalist: bool
    negative_score: float

    def may_tie_with(self, first: RankingKey) -> bool:
        """True if the layout competes with the first one on equal terms, as finalists do with each other."""
        return self[:-1] == first[:-1]


@dataclass(frozen=True)
class _Contender:
    """One layout with all its trials, of which at least one was measured."""

    trials: tuple[Trial, ...]

    @property
    def runs(self) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if _is_measured(trial))

    @property
    def counted(self) -> tuple[Trial, ...]:
        return runs_that_count(self.runs)

    @property
    def is_suspect(self) -> bool:
        return is_suspect(self.counted[0])

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
        return any(t.state is TrialState.FAILED and policy_of(t.reason).retries == 0 for t in self._repeats)

    @property
    def _repeats(self) -> list[Trial]:
        second = suspect_reruns(self.trials)
        return [t for t in self.trials if t.kind is TrialKind.REPEAT and t.trial not in second]

    def order(self, objective: Objective, headroom: MemoryHeadroom | None) -> RankingKey:
        """Sort key; the better layout has the smaller one."""
        is_unfit = headroom is not None and not headroom.is_satisfied(highest_peak_gib(self.counted))
        cannot_be_best = is_unfit or not self.may_be_best
        return RankingKey(is_unfit, self.is_suspect, cannot_be_best, not self.is_finalist, -self.score(objective))

    def score(self, objective: Objective) -> float:
        """The speed; for a finalist the lower bound of its interval, so that one good run among bad ones does not
        win."""
        if self.is_finalist:
            return lower_bound_of(self.counted, objective)
        return _speed(merged(self.counted), objective).value


def rank(
    trials: Sequence[Trial],
    objective: Objective,
    global_batch_size: int,
    headroom: MemoryHeadroom | None = None,
    others: tuple[Objective, ...] = (),
) -> Ranking:
    """RankingKey the measured layouts of this global batch (sequences per step): finalists by the lower bounds of their
    95 % intervals, then the others by their point estimates; last those that leave too little memory free."""
    contenders = _contenders(trials, global_batch_size)
    placed = sorted(((c.order(objective, headroom), c) for c in contenders), key=lambda found: found[0])
    ordered = tuple(merged(contender.counted) for _, contender in placed)
    runs = {contender.trials[0].layout.key: contender.runs for _, contender in placed}
    failing = frozenset(contender.trials[0].layout.key for _, contender in placed if contender.is_failing)
    if not placed or placed[0][0].cannot_be_best:
        return Ranking(objective, ordered, runs=runs, headroom=headroom, others=others, failing=failing)
    first, fastest = placed[0][0], ordered[0]
    peers = [trial for trial, (order, _) in zip(ordered, placed, strict=True) if order.may_tie_with(first)]
    alike = [trial for trial in peers if _speed(trial, objective).overlaps(_speed(fastest, objective))]
    may_choose = not (first.is_no_finalist or first.is_suspect)
    best = _with_memory_to_spare(alike) if may_choose else fastest
    ties = tuple(trial for trial in alike if trial is not best)
    return Ranking(objective, ordered, best, ties, runs, fastest, headroom, others, failing)


def order_of(
    trials: Sequence[Trial], objective: Objective, global_batch_size: int, headroom: MemoryHeadroom | None = None
) -> RankingKey | None:
    """The sort key that `rank` gives one layout, of which `trials` are all trials; None where it is not ranked."""
    contender = next(_contenders(trials, global_batch_size), None)
    return None if contender is None else contender.order(objective, headroom)


def runs_that_count(runs: Sequence[Trial]) -> tuple[Trial, ...]:
    """The measured runs of one layout that count: suspect ones only where there are no others."""
    return tuple(run for run in runs if not is_suspect(run)) or tuple(runs)


def needs_repeat(trial: Trial) -> bool:
    """True if this run of the search was measured on a node that may have slowed it down."""
    return trial.kind is TrialKind.SEARCH and _is_measured(trial) and Flag.SUSPECT_NODE in trial.flags


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


def peak_memory_gib(trial: Trial) -> float | None:
    """GiB of a measured trial's fullest rank (reserved on a GPU, resident on a CPU); None where unknown."""
    return None if trial.measured is None else trial.measured.peak_memory_gib


def highest_peak_gib(runs: Sequence[Trial]) -> float | None:
    """GiB of the fullest rank over several runs of one layout; None where unknown."""
    return max((gib for gib in map(peak_memory_gib, runs) if gib is not None), default=None)


def merged(runs: Sequence[Trial]) -> Trial:
    """The first of several measured trials of one layout, with `measured` over all of them and all their flags.

    Speeds and times are medians over the runs, with intervals that rest on the spread between them; peaks are the
    highest, what ends a training the earliest; the rest is the first run's. A single run is itself.
    """
    first, last = runs[0], runs[0].last_attempt
    if len(runs) == 1 or last is None or last.outcome is None:
        return first
    flags = tuple(dict.fromkeys(flag for run in runs for flag in run.flags))
    outcome = replace(last.outcome, measured=_merge(_measurements(runs)), flags=flags)
    return first.with_attempt(replace(last, outcome=outcome))


def value_of(trial: Trial, objective: Objective) -> float:
    """The objective of a measured trial, turned so that larger is better; ValueError for any other trial.

    Node-hours per token are minimised; tokens per second and node take their place.
    """
    if not _is_measured(trial):
        raise ValueError(f"trial {trial.trial} is {trial.state} and has no value")
    return _speed(trial, objective).value


def lower_bound_of(runs: Sequence[Trial], objective: Objective) -> float:
    """Lower end of the layout's 95 % interval over these measured runs, turned as in `value_of`."""
    return value_of(merged(runs), objective) * math.exp(
        -log_half_width(list(map(_run_measurement, _measurements(runs))))
    )


def in_objective_unit(speed: float, objective: Objective) -> float:
    """Convert a value of `value_of` to the objective's own unit (node-hours per billion tokens, or a speed as it
    is)."""
    if objective is not Objective.NODE_HOURS_PER_BILLION_TOKENS:
        return speed
    return _TOKENS_PER_BILLION / _SECONDS_PER_HOUR / speed


def is_faster(one: Trial, other: Trial, objective: Objective) -> bool:
    """True if one measured trial beats another by more than their 95 % intervals."""
    new, old = _speed(one, objective), _speed(other, objective)
    return new.value > old.value and not new.overlaps(old)


def is_suspect(run: Trial | Outcome) -> bool:
    """True if the machine may have slowed the measurement down (of a merged trial: all runs that count)."""
    return not SUSPECT_FLAGS.isdisjoint(run.flags)


def upper_bound_of(trial: Trial, objective: Objective) -> float | None:
    """Upper bound of the objective for a trial that was pruned or ran out of time, turned as in `value_of`.

    None for any other trial, and where it measured too little.
    """
    last = trial.last_attempt
    if not policy_of(trial.reason).bounds_throughput or last is None or last.outcome is None:
        return None
    high = None if last.outcome.measured is None else last.outcome.measured.tokens_per_sec_high
    return None if high is None else high / throughput_divisor(trial.layout, objective)


def throughput_divisor(layout: Layout, objective: Objective) -> int:
    """The number that tokens per second are divided by for the objective: 1, GPUs or nodes."""
    if objective is Objective.TOKENS_PER_SEC:
        return 1
    per_gpu = objective is Objective.TOKENS_PER_SEC_PER_GPU
    return layout.num_gpus if per_gpu else layout.num_nodes


def speedup_over(baseline: Trial, trial: Trial, objective: Objective) -> Speedup | None:
    """The speedup of `trial` over `baseline`; None unless both were measured at one global batch."""
    if not (_is_measured(trial) and _is_measured(baseline)):
        return None
    if trial.layout.global_batch_size != baseline.layout.global_batch_size:
        return None
    new, old = _speed(trial, objective), _speed(baseline, objective)
    if new.interval is None or old.interval is None:
        return Speedup(new.value / old.value)
    return Speedup(new.value / old.value, new.interval[0] / old.interval[1], new.interval[1] / old.interval[0])


def _is_measured(trial: Trial) -> bool:
    return trial.state is TrialState.MEASURED


def _has_headroom(trial: Trial, headroom: MemoryHeadroom | None) -> bool:
    return headroom is None or headroom.is_satisfied(peak_memory_gib(trial))


def _contenders(trials: Sequence[Trial], global_batch_size: int) -> Iterator[_Contender]:
    by_layout: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.layout.global_batch_size == global_batch_size:
            by_layout.setdefault(trial.layout.key, []).append(trial)
    for group in by_layout.values():
        if any(map(_is_measured, group)):
            yield _Contender(tuple(group))


def _with_memory_to_spare(alike: Sequence[Trial]) -> Trial:
    """Among tied finalists, the fastest first, the one that needs much less memory on no more nodes; else the first.

    An unknown peak never wins.
    """
    fastest = alike[0]
    limit_gib, nodes = peak_memory_gib(fastest), fastest.layout.num_nodes
    known = {t.trial: gib for t in alike if t.layout.num_nodes <= nodes and (gib := peak_memory_gib(t)) is not None}
    leanest = min((t for t in alike if t.trial in known), key=lambda t: known[t.trial], default=fastest)
    if limit_gib is None or known[leanest.trial] > (1 - MIN_MEMORY_SAVING) * limit_gib:
        return fastest
    return leanest


def _measurements(runs: Sequence[Trial]) -> list[MeasuredMetrics]:
    return [run.measured for run in runs if run.measured is not None]


def _merge(runs: Sequence[MeasuredMetrics]) -> MeasuredMetrics:
    names = (*_SPEEDS, *_TIMES, *_PEAKS, *_EARLIEST)
    known = {name: [getattr(m, name) for m in runs if getattr(m, name) is not None] for name in names}
    found: dict[str, Any] = {name: geometric_median(known[name]) for name in (*_SPEEDS, *_TIMES) if known[name]}
    found |= {name: max(known[name]) for name in _PEAKS if known[name]}
    found |= {name: min(known[name]) for name in _EARLIEST if known[name]}
    factor = math.exp(log_half_width(list(map(_run_measurement, runs))))
    for name, low, high in (
        ("tokens_per_sec", "tokens_per_sec_low", "tokens_per_sec_high"),
        ("step_time_s", "step_time_low_s", "step_time_high_s"),
    ):
        found |= {low: found[name] / factor, high: found[name] * factor}
    return replace(runs[0], **found, time_s=_time_parts(runs, found["step_time_s"]))


def _time_parts(runs: Sequence[MeasuredMetrics], step_time_s: float) -> Mapping[str, float] | None:
    """Mean shares of the profiled runs, scaled so that they add up to the step time over all runs."""
    known = [run.time_s for run in runs if run.time_s]
    if not known:
        return runs[0].time_s
    shares = {part: fmean(time_s[part] / sum(time_s.values()) for time_s in known) for part in known[0]}
    return {part: share * step_time_s for part, share in shares.items()}


def _run_measurement(run: MeasuredMetrics) -> RunMeasurement:
    return RunMeasurement(run.tokens_per_sec, run.tokens_per_sec_low, run.tokens_per_sec_high)


def _speed(trial: Trial, objective: Objective) -> _Speed:
    metrics, sharers = trial.measured, throughput_divisor(trial.layout, objective)
    assert metrics is not None, "only measured trials are ranked"
    low, high = metrics.tokens_per_sec_low, metrics.tokens_per_sec_high
    interval = None if low is None or high is None else (low / sharers, high / sharers)
    return _Speed(metrics.tokens_per_sec / sharers, interval)
