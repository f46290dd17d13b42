"""The best of the search as a running trial sees it: how fast it has to be to be worth measuring to the end.

Read from best.json, which the driver swaps in. A file that is missing, damaged, of another search, for another
objective or batch, or measured with other software or hardware is nothing to compare with. Nor is a layout on more
nodes, where fewer are a goal of their own: each number of nodes has its fastest in the file, and each may be an answer
(trials/analysis/pareto.py). Standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials.analysis.ranking import Objective, Ranking, lower_bound_of, runs_that_count
from trials.attempt_result import COMPARABLE, are_comparable
from trials.files.folders import read_json
from trials.trial import Trial, TrialKind, TrialSpec, require_schema

RIVALS_SCHEMA = "parlay.rivals/1"

READ_EVERY_S = 10.0
"""A trial of an hour looks a few hundred times, one of ten seconds once."""


@dataclass(frozen=True)
class Rival:
    """The best so far, and the step time of this trial's own layout, in seconds, at which it would be as fast."""

    trial: str
    step_time_s: float


class RivalWatch:
    """Looks for the best now and then. Used by one rank, whose view the others are told."""

    def __init__(
        self,
        spec: TrialSpec,
        path: Path,
        fingerprint: Mapping[str, Any],
        now: Callable[[], float] = time.monotonic,
    ):
        self.rival: Rival | None = None
        self._spec = spec
        self._path = path
        self._fingerprint = fingerprint
        self._now = now
        self._next_look = -math.inf

    def look(self) -> Rival | None:
        """The rival as last read; read anew when the last time is a while ago."""
        if self._now() >= self._next_look:
            self.rival = read_rival(self._spec, self._path, self._fingerprint)
            self._next_look = self._now() + READ_EVERY_S
        return self.rival


def may_stop(spec: TrialSpec) -> bool:
    """Whether the trial may end itself for a rival's sake: never a repeat, and never where its rules forbid it."""
    return spec.measure.early_stopping and spec.kind is TrialKind.SEARCH


def read_rival(spec: TrialSpec, path: Path, fingerprint: Mapping[str, Any]) -> Rival | None:
    """The rival in best.json; None where there is nothing to compare with."""
    try:
        best = read_json(path)
        return None if best is None else _rival(spec, best, fingerprint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def pruned_detail(measured: Mapping[str, Any], rival: Rival) -> str:
    """Why a trial ended itself."""
    return (
        f"{measured['tokens_per_sec']:,.0f} tokens/s: a step takes {measured['step_time_s']:.4g} s, and "
        f"{rival.step_time_s:.4g} s would be as fast as {rival.trial} at least is, further apart than runs lie"
    )


def best_file(
    ranking: Ranking, by_nodes: Sequence[Ranking], search_id: str, global_batch_size: int
) -> dict[str, Any] | None:
    """best.json: what the fastest layout reached over all its runs, and what a running trial is compared with, of the
    layouts on each number of nodes by themselves. None where nothing counts as the best."""
    fastest = ranking.fastest
    if fastest is None or fastest.measured is None:
        return None
    return {
        "schema": RIVALS_SCHEMA,
        "search_id": search_id,
        "trial": fastest.trial,
        "objective": ranking.objective.value,
        "objectives": [objective.value for objective in (ranking.objective, *ranking.others)],
        "global_batch_size": global_batch_size,
        "threshold": _threshold(ranking, fastest, ranking.objective),
        "fingerprint": _comparable(fastest),
        "rivals": list(_rivals(by_nodes)),
        **fastest.measured,
    }


def _rivals(by_nodes: Sequence[Ranking]) -> Iterator[dict[str, Any]]:
    for ranking in by_nodes:
        if (fastest := ranking.fastest) is not None:
            yield {
                "trial": fastest.trial,
                "num_nodes": fastest.layout.num_nodes,
                "threshold": _threshold(ranking, fastest, Objective.TOKENS_PER_SEC),
                "fingerprint": _comparable(fastest),
            }


def _threshold(ranking: Ranking, fastest: Trial, objective: Objective) -> float:
    return lower_bound_of(runs_that_count(ranking.runs[fastest.layout.key]), objective)


def _comparable(trial: Trial) -> dict[str, Any]:
    outcome = trial.last_attempt and trial.last_attempt.outcome
    fingerprint = outcome.fingerprint if outcome else {}
    return {name: fingerprint[name] for name in COMPARABLE if name in fingerprint}


def _rival(spec: TrialSpec, best: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Rival | None:
    """The one that asks the most of the trial, of those that are faster than it in every goal."""
    require_schema(best, RIVALS_SCHEMA)
    if best["search_id"] != spec.search_id or best["global_batch_size"] != spec.global_batch_size:
        return None
    goals = tuple(map(Objective, best["objectives"]))
    others = [rival for rival in best["rivals"] if rival["trial"] != spec.trial]
    alike = [rival for rival in others if are_comparable(fingerprint, rival["fingerprint"])]
    wanted = {rival["trial"]: _wanted(rival, spec.layout.num_nodes, goals) for rival in alike}
    name = max(wanted, key=lambda trial: wanted[trial], default=None)
    if name is None or not wanted[name] > 0:
        return None
    return Rival(name, spec.global_batch_size * spec.model.seq_length / wanted[name])


def _wanted(rival: Mapping[str, Any], num_nodes: int, goals: Sequence[Objective]) -> float:
    """Tokens per second below which a layout on so many nodes is worse than the rival in every goal: never, where it
    takes fewer nodes and they are a goal themselves, as they are beside a single objective."""
    if len(goals) == 1 and num_nodes < rival["num_nodes"]:
        return 0.0
    share = num_nodes / rival["num_nodes"]
    return rival["threshold"] * min(1.0 if goal is Objective.TOKENS_PER_SEC else share for goal in goals)
