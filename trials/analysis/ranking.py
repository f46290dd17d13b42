"""Ranking of measured layouts, with statistical ties. Pure; the rule is explained in docs/measuring.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout, ranked_layouts
from trials.failure_policy import policy_of
from trials.trial import LowerStrEnum, Trial

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

    Once layouts are measured again as finalists, only these compete. `fastest` is the first. `best` is `fastest`,
    unless another finalist is tied with it (overlapping 95 % intervals) and needs less memory; `ties` are the other
    layouts tied with `fastest`. A layout with less free memory than `headroom` asks comes last and is none of these.
    `others` are further objectives; the first decides.
    """

    objective: Objective
    ordered: tuple[RankedLayout, ...] = ()
    best: RankedLayout | None = None
    ties: tuple[RankedLayout, ...] = ()
    fastest: RankedLayout | None = None
    headroom: MemoryHeadroom | None = None
    others: tuple[Objective, ...] = ()

    def has_headroom(self, layout: RankedLayout) -> bool:
        """True if the layout leaves the required memory free."""
        return _has_headroom(layout, self.headroom)


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


def rank(
    trials: Sequence[Trial],
    objective: Objective,
    global_batch_size: int,
    headroom: MemoryHeadroom | None = None,
    others: tuple[Objective, ...] = (),
) -> Ranking:
    """Rank the measured layouts of this global batch (sequences per step): finalists by the lower bounds of their
    95 % intervals, then the others by their point estimates; last those that leave too little memory free."""
    layouts = ranked_layouts(trials, global_batch_size)
    placed = sorted(((_key(layout, objective, headroom), layout) for layout in layouts), key=lambda found: found[0])
    ordered = tuple(layout for _, layout in placed)
    if not placed or placed[0][0].cannot_be_best:
        return Ranking(objective, ordered, headroom=headroom, others=others)
    first, fastest = placed[0]
    peers = [layout for key, layout in placed if key.may_tie_with(first)]
    alike = [layout for layout in peers if _speed(layout, objective).overlaps(_speed(fastest, objective))]
    may_choose = not (first.is_no_finalist or first.is_suspect)
    best = _with_memory_to_spare(alike) if may_choose else fastest
    ties = tuple(layout for layout in alike if layout is not best)
    return Ranking(objective, ordered, best, ties, fastest, headroom, others)


def order_of(
    trials: Sequence[Trial], objective: Objective, global_batch_size: int, headroom: MemoryHeadroom | None = None
) -> RankingKey | None:
    """The sort key that `rank` gives one layout, of which `trials` are all trials; None where it is not ranked."""
    layout = next(ranked_layouts(trials, global_batch_size), None)
    return None if layout is None else _key(layout, objective, headroom)


def _key(layout: RankedLayout, objective: Objective, headroom: MemoryHeadroom | None) -> RankingKey:
    """Sort key; the better layout has the smaller one. A finalist's score is the lower bound of its interval, so that
    one good run among bad ones does not win."""
    is_unfit = not _has_headroom(layout, headroom)
    score = lower_bound_of(layout, objective) if layout.is_finalist else value_of(layout, objective)
    cannot_be_best = is_unfit or not layout.may_be_best
    return RankingKey(is_unfit, layout.is_suspect, cannot_be_best, not layout.is_finalist, -score)


def _has_headroom(layout: RankedLayout, headroom: MemoryHeadroom | None) -> bool:
    return headroom is None or headroom.is_satisfied(layout.measured.peak_memory_gib)


def value_of(measured: TrialOrLayout, objective: Objective) -> float:
    """The objective of a measured trial or layout, turned so that larger is better; ValueError for any other trial.

    Node-hours per token are minimised; tokens per second and node take their place.
    """
    return _speed(measured, objective).value


def lower_bound_of(layout: RankedLayout, objective: Objective) -> float:
    """Lower end of the layout's 95 % interval, turned as in `value_of`."""
    return value_of(layout, objective) * layout.relative_lower_bound


def in_objective_unit(speed: float, objective: Objective) -> float:
    """Convert a value of `value_of` to the objective's own unit (node-hours per billion tokens, or a speed as it
    is)."""
    if objective is not Objective.NODE_HOURS_PER_BILLION_TOKENS:
        return speed
    return _TOKENS_PER_BILLION / _SECONDS_PER_HOUR / speed


def is_faster(one: RankedLayout, other: RankedLayout, objective: Objective) -> bool:
    """True if one layout beats another by more than their 95 % intervals."""
    new, old = _speed(one, objective), _speed(other, objective)
    return new.value > old.value and not new.overlaps(old)


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


def speedup_over(baseline: TrialOrLayout, layout: RankedLayout, objective: Objective) -> Speedup | None:
    """The speedup of `layout` over `baseline`; None unless that was measured, at the same global batch."""
    if baseline.measured is None or layout.layout.global_batch_size != baseline.layout.global_batch_size:
        return None
    new, old = _speed(layout, objective), _speed(baseline, objective)
    if new.interval is None or old.interval is None:
        return Speedup(new.value / old.value)
    return Speedup(new.value / old.value, new.interval[0] / old.interval[1], new.interval[1] / old.interval[0])


def _with_memory_to_spare(alike: Sequence[RankedLayout]) -> RankedLayout:
    """Among tied finalists, the fastest first, the one that needs much less memory on no more nodes; else the first.

    An unknown peak never wins.
    """
    fastest = alike[0]
    limit_gib, nodes = fastest.measured.peak_memory_gib, fastest.layout.num_nodes
    peaks = {one.trial: one.measured.peak_memory_gib for one in alike if one.layout.num_nodes <= nodes}
    known = {name: gib for name, gib in peaks.items() if gib is not None}
    leanest = min((one for one in alike if one.trial in known), key=lambda one: known[one.trial], default=fastest)
    if limit_gib is None or known[leanest.trial] > (1 - MIN_MEMORY_SAVING) * limit_gib:
        return fastest
    return leanest


def _speed(measured: TrialOrLayout, objective: Objective) -> _Speed:
    metrics, sharers = measured.measured, throughput_divisor(measured.layout, objective)
    if metrics is None:
        raise ValueError(f"trial {measured.trial} was not measured and has no value")
    low, high = metrics.tokens_per_sec_low, metrics.tokens_per_sec_high
    interval = None if low is None or high is None else (low / sharers, high / sharers)
    return _Speed(metrics.tokens_per_sec / sharers, interval)
