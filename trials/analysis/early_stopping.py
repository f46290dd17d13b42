"""Early stopping of a running trial: the incumbents it is compared with, read from best.json.

The driver swaps the file in. A file that is missing, damaged, of another search, for another objective or batch, or
measured with other software or hardware gives no incumbent. Where fewer nodes are a goal, the file has the fastest
layout of each number of nodes, and a trial is compared with those on as many nodes or fewer
(trials/analysis/pareto.py). Standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.decoding import require_schema
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, lower_bound_of
from trials.attempt_result import COMPARABLE, are_comparable
from trials.files.folders import read_json
from trials.outcome_types import MeasuredMetrics
from trials.trial import TrialKind, TrialSpec

INCUMBENTS_SCHEMA = "parlay.incumbents/1"

READ_EVERY_S = 10.0
"""A trial of an hour looks a few hundred times, one of ten seconds once."""


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
        best = read_json(path)
        return None if best is None else _incumbent(spec, best, fingerprint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def pruned_detail(metrics: MeasuredMetrics, incumbent: Incumbent) -> str:
    """The outcome's message about why a trial ended itself."""
    return (
        f"{metrics.tokens_per_sec:,.0f} tokens/s: a step takes {metrics.step_time_s:.4g} s; {incumbent.trial} "
        f"would need at most {incumbent.step_time_s:.4g} s, and the gap exceeds the spread between runs"
    )


def best_file(
    ranking: Ranking, by_nodes: Sequence[Ranking], search_id: str, global_batch_size: int
) -> dict[str, Any] | None:
    """best.json: the fastest layout's results over all its runs, and the incumbents by number of nodes.

    None where no layout counts as the fastest.
    """
    fastest = ranking.fastest
    if fastest is None:
        return None
    return {
        "schema": INCUMBENTS_SCHEMA,
        "search_id": search_id,
        "trial": fastest.trial,
        "objective": ranking.objective.value,
        "objectives": [objective.value for objective in (ranking.objective, *ranking.others)],
        "global_batch_size": global_batch_size,
        "threshold": lower_bound_of(fastest, ranking.objective),
        "fingerprint": _comparable(fastest),
        "incumbents": list(_incumbents(by_nodes)),
        **fastest.measured.to_json(),
    }


def _incumbents(by_nodes: Sequence[Ranking]) -> Iterator[dict[str, Any]]:
    for ranking in by_nodes:
        if (fastest := ranking.fastest) is not None:
            yield {
                "trial": fastest.trial,
                "num_nodes": fastest.layout.num_nodes,
                "threshold": lower_bound_of(fastest, Objective.TOKENS_PER_SEC),
                "fingerprint": _comparable(fastest),
            }


def _comparable(layout: RankedLayout) -> dict[str, Any]:
    outcome = layout.first.last_attempt and layout.first.last_attempt.outcome
    fingerprint: Mapping[str, Any] = outcome.fingerprint if outcome else {}
    return {name: fingerprint[name] for name in COMPARABLE if name in fingerprint}


def _incumbent(spec: TrialSpec, best: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Incumbent | None:
    """The incumbent that asks the most of this trial, among those faster than it in every goal."""
    require_schema(best, INCUMBENTS_SCHEMA)
    if best["search_id"] != spec.search_id or best["global_batch_size"] != spec.global_batch_size:
        return None
    goals = tuple(map(Objective, best["objectives"]))
    others = [incumbent for incumbent in best["incumbents"] if incumbent["trial"] != spec.trial]
    alike = [incumbent for incumbent in others if are_comparable(fingerprint, incumbent["fingerprint"])]
    wanted = {
        incumbent["trial"]: _tokens_per_sec_to_match(incumbent, spec.layout.num_nodes, goals) for incumbent in alike
    }
    name = max(wanted, key=lambda trial: wanted[trial], default=None)
    if name is None or not wanted[name] > 0:
        return None
    return Incumbent(name, spec.global_batch_size * spec.model.seq_length / wanted[name])


def _tokens_per_sec_to_match(incumbent: Mapping[str, Any], num_nodes: int, goals: Sequence[Objective]) -> float:
    """Tokens per second below which a layout on `num_nodes` nodes is worse than the incumbent in every goal.

    0 where the layout takes fewer nodes and these are a goal themselves, as they are with a single objective, and where
    energy is a goal, which does not follow from throughput.
    """
    if not all(goal.follows_from_throughput for goal in goals):
        return 0.0
    if len(goals) == 1 and num_nodes < incumbent["num_nodes"]:
        return 0.0
    share = num_nodes / incumbent["num_nodes"]
    return incumbent["threshold"] * min(1.0 if goal is Objective.TOKENS_PER_SEC else share for goal in goals)
