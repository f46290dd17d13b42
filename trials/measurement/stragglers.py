"""Stragglers: ranks that compute longer than those with equal work, and hold them up. Pure; standard library only.

Ranks end a step together, so a slow one shows by its compute time alone: the step's time without the time for which it
waited in collectives. docs/measuring.md has the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.routing import BALANCED, Routing
from trials.measurement.metrics import percentile
from trials.measurement.protocol import SUSPECT_SLOWDOWN, median_interval, slow_ranks
from trials.outcome_types import SlowestRank

PEER_DIMS = ("tp", "dp")
"""Dimensions along which ranks have equal work. Stages do not, nor do the parts of a sequence: causal attention."""


@dataclass(frozen=True)
class RankTimes:
    """One rank's compute time over the timed steps, in seconds.

    `slowdown` is the median over the steps of its time over the median of its peers' in the same step, `slowdown_low`
    the lower end of its 95 % interval, None with fewer than six steps. Without peers all of them are None.
    """

    compute_s: float
    compute_p95_s: float
    peers_compute_s: float | None = None
    slowdown: float | None = None
    slowdown_low: float | None = None

    @property
    def is_straggler(self) -> bool:
        """True if it is more than 15 % slower than its peers, for sure."""
        return self.slowdown_low is not None and self.slowdown_low > 1 + SUSPECT_SLOWDOWN


def rank_times(
    layout: Layout, routing: str | None, steps: Sequence[Sequence[float]], by_document: bool = False
) -> list[RankTimes]:
    """Times of all ranks, in rank order, from their compute times of each timed step; [] without one. `by_document`:
    attention is within documents, so that data-parallel ranks have unequal work."""
    found = [RankTimes(median(own_s), percentile(own_s, 0.95)) for own_s in zip(*steps, strict=True)]
    if not found:
        return []
    for group in _equal_ranks(layout, routing, by_document):
        for rank, peers_s in _peers_by_rank(group, steps).items():
            found[rank] = _compared(found[rank], [step[rank] for step in steps], peers_s)
    return found


def slowest_rank(times: Sequence[RankTimes], hosts: Sequence[str], num_steps: int) -> SlowestRank | None:
    """The rank that is slowest by its peers, with all stragglers; None where no rank has peers. Times and hosts are in
    rank order."""
    compared = [rank for rank, one in enumerate(times) if one.slowdown is not None]
    if not compared:
        return None
    rank = max(compared, key=lambda rank: times[rank].slowdown or 0.0)
    stragglers = [rank for rank in compared if times[rank].is_straggler]
    return SlowestRank(
        rank=rank,
        host=hosts[rank],
        compute_s=times[rank].compute_s,
        compute_p95_s=times[rank].compute_p95_s,
        peers_compute_s=times[rank].peers_compute_s or 0.0,
        slowdown=times[rank].slowdown or 0.0,
        steps=num_steps,
        stragglers=stragglers,
        straggler_hosts=list(dict.fromkeys(hosts[rank] for rank in stragglers)),
    )


def suspect_ranks(fingerprint: Mapping[str, Any], slowest: SlowestRank | None) -> tuple[int, ...]:
    """Ranks that make their nodes suspect, by an outcome's `fingerprint` and `slowest_rank`: slow devices and
    stragglers, ascending."""
    devices = slow_ranks(fingerprint.get("probe_ms_by_rank") or ())
    return tuple(sorted({*devices, *(() if slowest is None else slowest["stragglers"])}))


def _equal_ranks(layout: Layout, routing: str | None, by_document: bool) -> list[list[int]]:
    """Groups of several ranks with equal work."""
    if layout.expert_parallel > 1 and Routing.of(routing).kind != BALANCED:
        return []  # a router gives ranks with different experts different work
    dims = PEER_DIMS[:1] if by_document else PEER_DIMS
    groups = layout.mesh.groups(*(dim for dim in dims if dim in layout.mesh.sizes))
    return [group for group in groups if len(group) > 1]


def _peers_by_rank(group: Sequence[int], steps: Sequence[Sequence[float]]) -> dict[int, list[float]]:
    """The median of each rank's peers in each step. Of an even number the lower: of as many slow ranks as others, the
    others are the measure."""
    found: dict[int, list[float]] = {rank: [] for rank in group}
    middle = (len(group) - 2) // 2
    for step in steps:
        ordered = sorted(group, key=lambda rank: step[rank])
        for place, rank in enumerate(ordered):
            found[rank].append(step[ordered[middle + (place <= middle)]])
    return found


def _compared(times: RankTimes, own_s: Sequence[float], peers_s: Sequence[float]) -> RankTimes:
    if min(peers_s) <= 0:
        return times
    ratios = [own / usual for own, usual in zip(own_s, peers_s, strict=True)]
    interval = median_interval(ratios)
    return replace(
        times,
        peers_compute_s=median(peers_s),
        slowdown=median(ratios),
        slowdown_low=None if interval is None else interval[0],
    )
