"""Ranking of measured layouts, with statistical ties. Pure; the rule is explained in docs/measuring.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout, energy_of, ranked_layouts, throughput_of
from trials.failure_policy import policy_of
from trials.measurement.run_variance import RunMeasurement, log_half_width
from trials.outcome_types import MeasuredMetrics
from trials.trial import LowerStrEnum, Trial

_TOKENS_PER_BILLION = 1e9
_SECONDS_PER_HOUR = 3600

MIN_MEMORY_SAVING = 0.1
"""Relative memory saving for which a finalist is preferred to the fastest one it is tied with. Peaks of one layout's
runs differ by a few percent; smaller savings are not useful."""


class Objective(LowerStrEnum):
    """Objective of a search."""

    TOKENS_PER_SEC = "tokens_per_sec"
    TOKENS_PER_SEC_PER_GPU = "tokens_per_sec_per_gpu"
    NODE_HOURS_PER_BILLION_TOKENS = "node_hours_per_billion_tokens"
    JOULES_PER_TOKEN = "joules_per_token"

    @property
    def is_minimised(self) -> bool:
        return self in (Objective.NODE_HOURS_PER_BILLION_TOKENS, Objective.JOULES_PER_TOKEN)

    @property
    def follows_from_throughput(self) -> bool:
        """True if throughput and number of nodes decide it; energy has to be measured."""
        return self is not Objective.JOULES_PER_TOKEN


def objectives_of_record(spec: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives of a search's record, whose first decides. ValueError for others."""
    given = spec.get("objectives", [Objective.TOKENS_PER_SEC])
    if not isinstance(given, (list, tuple)) or not given:
        raise ValueError(f"objectives are {given!r:.80}, not a list of objectives")
    return tuple(map(Objective, given))


@dataclass(frozen=True)
class Ranking:
    """Measured layouts of one global batch, best first; unproven and suspect ones come last. A single suspect run is
    never best.

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


class RankingKey(NamedTuple):
    """Sort key of a layout: too little memory, suspect, unproven, cannot be the best, not a finalist; then the higher
    score."""

    is_unfit: bool
    is_suspect: bool
    is_unproven: bool
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
    95 % intervals, then the others by their point estimates; last those that leave too little memory free. One without
    a value is not ranked."""
    layouts = (one for one in ranked_layouts(trials, global_batch_size) if known_value_of(one, objective) is not None)
    placed = sorted(((_key(layout, objective, headroom), layout) for layout in layouts), key=lambda found: found[0])
    ordered = tuple(layout for _, layout in placed)
    if not placed or placed[0][0].cannot_be_best:
        return Ranking(objective, ordered, headroom=headroom, others=others)
    first, fastest = placed[0]
    peers = [layout for key, layout in placed if key.may_tie_with(first)]
    alike = [layout for layout in peers if _overlap(speed_of(layout, objective), speed_of(fastest, objective))]
    may_choose = not (first.is_no_finalist or first.is_suspect)
    best = _with_memory_to_spare(alike) if may_choose else fastest
    ties = tuple(layout for layout in alike if layout is not best)
    return Ranking(objective, ordered, best, ties, fastest, headroom, others)


def order_of(
    trials: Sequence[Trial], objective: Objective, global_batch_size: int, headroom: MemoryHeadroom | None = None
) -> RankingKey | None:
    """The sort key that `rank` gives one layout, of which `trials` are all trials; None where it is not ranked."""
    layout = next(ranked_layouts(trials, global_batch_size), None)
    is_ranked = layout is not None and known_value_of(layout, objective) is not None
    return _key(layout, objective, headroom) if layout is not None and is_ranked else None


def _key(layout: RankedLayout, objective: Objective, headroom: MemoryHeadroom | None) -> RankingKey:
    """Sort key; the better layout has the smaller one. A finalist's score is the lower bound of its interval, so that
    one good run among bad ones does not win."""
    is_unfit = not _has_headroom(layout, headroom)
    score = lower_bound_of(layout, objective) if layout.is_finalist else value_of(layout, objective)
    cannot_be_best = is_unfit or not layout.may_be_best
    return RankingKey(is_unfit, layout.is_suspect, layout.is_unproven, cannot_be_best, not layout.is_finalist, -score)


def _has_headroom(layout: RankedLayout, headroom: MemoryHeadroom | None) -> bool:
    return headroom is None or headroom.is_satisfied(layout.measured.peak_memory_gib)


def value_of(measured: TrialOrLayout, objective: Objective) -> float:
    """The objective of a measured trial or layout, turned so that larger is better; ValueError for any other trial, and
    where its energy is the objective and unknown.

    Node-hours and joules per token are minimised; tokens per second and node and tokens per joule take their place.
    """
    return speed_of(measured, objective).value


def known_value_of(measured: TrialOrLayout, objective: Objective) -> float | None:
    """`value_of`; None where it is unknown."""
    speed = _speed_or_none(measured, objective)
    return None if speed is None else speed.value


def lower_bound_of(layout: RankedLayout, objective: Objective) -> float:
    """Lower end of the layout's 95 % interval, turned as in `value_of`."""
    runs = [_speed_of(run, layout.layout, objective) for run in layout.measurements]
    return value_of(layout, objective) * math.exp(-log_half_width([run for run in runs if run is not None]))


def in_objective_unit(speed: float, objective: Objective) -> float:
    """Convert a value of `value_of` to the objective's own unit (node-hours per billion tokens, joules per token, or a
    speed as it is)."""
    if objective is Objective.NODE_HOURS_PER_BILLION_TOKENS:
        return _TOKENS_PER_BILLION / _SECONDS_PER_HOUR / speed
    return 1 / speed if objective is Objective.JOULES_PER_TOKEN else speed


def is_faster(one: RankedLayout, other: RankedLayout, objective: Objective) -> bool:
    """True if one layout beats another by more than their 95 % intervals. False where either value is unknown."""
    new, old = _speed_or_none(one, objective), _speed_or_none(other, objective)
    return new is not None and old is not None and new.value > old.value and not _overlap(new, old)


def upper_bound_of(trial: Trial, objective: Objective) -> float | None:
    """Upper bound of the objective for a trial that was pruned or ran out of time, turned as in `value_of`.

    None for any other trial, where it measured too little, and for energy, which a slow layout may need little of.
    """
    last = trial.last_attempt
    if (
        not objective.follows_from_throughput
        or not policy_of(trial.reason).bounds_throughput
        or last is None
        or last.outcome is None
    ):
        return None
    high = None if last.outcome.measured is None else last.outcome.measured.tokens_per_sec_high
    return None if high is None else high / throughput_divisor(trial.layout, objective)


def throughput_divisor(layout: Layout, objective: Objective) -> int:
    """The number that tokens per second are divided by for the objective: 1, GPUs or nodes.

    For energy, GPUs: as long as nothing is measured, each is taken to draw the same power.
    """
    if objective is Objective.TOKENS_PER_SEC:
        return 1
    per_node = objective is Objective.NODE_HOURS_PER_BILLION_TOKENS
    return layout.num_nodes if per_node else layout.num_gpus


def speedup_over(baseline: TrialOrLayout, layout: RankedLayout, objective: Objective) -> Speedup | None:
    """The speedup of `layout` over `baseline`; None unless that was measured, at the same global batch."""
    new, old = _speed_or_none(layout, objective), _speed_or_none(baseline, objective)
    if new is None or old is None or layout.layout.global_batch_size != baseline.layout.global_batch_size:
        return None
    if new.low is None or new.high is None or old.low is None or old.high is None:
        return Speedup(new.value / old.value)
    return Speedup(new.value / old.value, new.low / old.high, new.high / old.low)


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


def speed_of(measured: TrialOrLayout, objective: Objective) -> RunMeasurement:
    """`value_of`, with its 95 % interval where one is known."""
    speed = _speed_or_none(measured, objective)
    if speed is None:
        raise ValueError(f"trial {measured.trial} was not measured and has no value")
    return speed


def _speed_or_none(measured: TrialOrLayout, objective: Objective) -> RunMeasurement | None:
    metrics = measured.measured
    return None if metrics is None else _speed_of(metrics, measured.layout, objective)


def _speed_of(metrics: MeasuredMetrics, layout: Layout, objective: Objective) -> RunMeasurement | None:
    if objective.follows_from_throughput:
        return throughput_of(metrics).over(throughput_divisor(layout, objective))
    energy = energy_of(metrics)
    return None if energy is None else energy.inverse


def _overlap(one: RunMeasurement, other: RunMeasurement) -> bool:
    (low, high), (other_low, other_high) = one.interval, other.interval
    return low <= other_high and other_low <= high
