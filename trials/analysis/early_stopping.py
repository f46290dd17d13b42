"""Early stopping of a running trial: the incumbents it is compared with, read from best.json.

The driver swaps the file in. A file that is missing, damaged, of another search, for another objective or batch, or
measured with other software or hardware gives no incumbent. Where fewer nodes are a goal, the file has the fastest
layout of each number of nodes, and a trial is compared with those on as many nodes or fewer
(trials/analysis/pareto.py). Standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from search_spaces.decoding import Bound, JsonObject
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, lower_bound_of
from trials.attempt_result import COMPARABLE, are_comparable
from trials.files.folders import read_as
from trials.outcome_types import MeasuredMetrics
from trials.trial import TrialKind, TrialSpec

READ_EVERY_S = 10.0
"""A trial of an hour looks a few hundred times, one of ten seconds once."""


@dataclass(frozen=True)
class FastestOnNodes:
    """The fastest layout on a number of nodes: a lower bound of its tokens per second, and what it was measured
    with."""

    trial: str
    num_nodes: Annotated[int, Bound("1 or more", lambda count: count > 0)]
    threshold: float
    fingerprint: Mapping[str, Any]


@dataclass(frozen=True)
class Incumbents(JsonObject):
    """best.json: the objectives, whose first decides, and the fastest layouts."""

    SCHEMA = "parlay.incumbents/1"

    search_id: str
    global_batch_size: int
    objectives: Annotated[tuple[Objective, ...], Bound("at least one", len)]
    incumbents: tuple[FastestOnNodes, ...]


@dataclass(frozen=True)
class Incumbent:
    """The fastest comparable layout so far, and the step time (seconds) at which this trial's layout would be as
    fast."""

    trial: str
    step_time_s: float


class IncumbentWatcher:
    """Reads best.json every `READ_EVERY_S` seconds. Used by one rank, which shares the result with the others."""

    def __init__(
        self,
        spec: TrialSpec,
        path: Path,
        fingerprint: Mapping[str, Any],
        now: Callable[[], float] = time.monotonic,
    ):
        self.incumbent: Incumbent | None = None
        self._spec = spec
        self._path = path
        self._fingerprint = fingerprint
        self._now = now
        self._next_look = -math.inf

    def look(self) -> Incumbent | None:
        """The incumbent as last read; the file is read again when the last read is older than `READ_EVERY_S`."""
        if self._now() >= self._next_look:
            self.incumbent = read_incumbent(self._spec, self._path, self._fingerprint)
            self._next_look = self._now() + READ_EVERY_S
        return self.incumbent


def may_stop_early(spec: TrialSpec) -> bool:
    """True if the trial may end before its measurement is complete: repeats never, others as their rules say."""
    return spec.measure.early_stopping and spec.kind is TrialKind.SEARCH


def read_incumbent(spec: TrialSpec, path: Path, fingerprint: Mapping[str, Any]) -> Incumbent | None:
    """The incumbent in best.json; None where there is nothing to compare with."""
    try:
        best = read_as(Incumbents, path)
    except (OSError, ValueError):
        return None
    return None if best is None else _incumbent(spec, best, fingerprint)


def pruned_detail(metrics: MeasuredMetrics, incumbent: Incumbent) -> str:
    """The outcome's message about why a trial ended itself."""
    return (
        f"{metrics.tokens_per_sec:,.0f} tokens/s: a step takes {metrics.step_time_s:.4g} s; {incumbent.trial} "
        f"would need at most {incumbent.step_time_s:.4g} s, and the gap exceeds the spread between runs"
    )


def incumbents_of(rankings: Sequence[Ranking], search_id: str, global_batch_size: int) -> Incumbents | None:
    """best.json by the ranking of each number of nodes; None where no layout counts as the fastest."""
    fastest = tuple(_fastest_on_nodes(ranking.fastest) for ranking in rankings if ranking.fastest is not None)
    if not fastest:
        return None
    objectives = (rankings[0].objective, *rankings[0].others)
    return Incumbents(search_id, global_batch_size, objectives, fastest)


def _fastest_on_nodes(layout: RankedLayout) -> FastestOnNodes:
    outcome = layout.first.last_attempt and layout.first.last_attempt.outcome
    found: Mapping[str, Any] = outcome.fingerprint if outcome else {}
    fingerprint = {name: found[name] for name in COMPARABLE if name in found}
    threshold = lower_bound_of(layout, Objective.TOKENS_PER_SEC)
    return FastestOnNodes(layout.trial, layout.layout.num_nodes, threshold, fingerprint)


def _incumbent(spec: TrialSpec, best: Incumbents, fingerprint: Mapping[str, Any]) -> Incumbent | None:
    """The incumbent that asks the most of this trial, among those faster than it in every goal."""
    if (best.search_id, best.global_batch_size) != (spec.search_id, spec.global_batch_size):
        return None
    others = [one for one in best.incumbents if one.trial != spec.trial]
    alike = [one for one in others if are_comparable(fingerprint, one.fingerprint)]
    wanted = {one.trial: _tokens_per_sec_to_match(one, spec.layout.num_nodes, best.objectives) for one in alike}
    name = max(wanted, key=lambda trial: wanted[trial], default=None)
    if name is None or not wanted[name] > 0:
        return None
    return Incumbent(name, spec.global_batch_size * spec.model.seq_length / wanted[name])


def _tokens_per_sec_to_match(incumbent: FastestOnNodes, num_nodes: int, goals: Sequence[Objective]) -> float:
    """Tokens per second below which a layout on `num_nodes` nodes is worse than the incumbent in every goal.

    0 where the layout takes fewer nodes and these are a goal themselves, as they are with a single objective, and where
    energy is a goal, which does not follow from throughput.
    """
    if not all(goal.follows_from_throughput for goal in goals):
        return 0.0
    if len(goals) == 1 and num_nodes < incumbent.num_nodes:
        return 0.0
    share = num_nodes / incumbent.num_nodes
    return incumbent.threshold * min(1.0 if goal is Objective.TOKENS_PER_SEC else share for goal in goals)
