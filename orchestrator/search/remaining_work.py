"""Remaining work of a search, by its record, for planning pilots and shared jobs."""

from __future__ import annotations

from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.search.context import SearchObjective
from orchestrator.search.finalists import chosen_finalists
from orchestrator.search.index import SearchIndex
from orchestrator.search.stopping import Limits, remaining_layouts
from trials.ledger.events import SearchRecord
from trials.trial import Trial


def remaining_work(search: SearchRecord, limits: Limits, num_finalists: int, now: float) -> RemainingWork:
    """Return all that the search may still do: layouts, attempts in flight, and repeats of up to `num_finalists`."""
    repeats = num_finalists * limits.finalist_repeats
    attempts = remaining_layouts(search.num_layouts, limits) + len(search.in_flight) + repeats
    return RemainingWork(
        max(1, attempts),
        limits.parallel_trials,
        _node_hours_left(search, limits),
        _wall_s_left(search, limits, now),
        search.pilots,
    )


class RemainingRepeats:
    """Repeats that a search may still make of its finalists, one after another on the nodes of the largest."""

    def __init__(self, goal: SearchObjective, limits: Limits):
        self._goal = goal
        self._limits = limits
        self._index: SearchIndex | None = None
        self._trials: tuple[Trial, ...] = ()
        self._attempts = 1
        self._num_nodes: int | None = None

    def work(self, search: SearchRecord, now: float) -> RemainingWork:
        """Return the work that is left by this record, a later one of the same search at each call."""
        if self._index is None or search.trials is not self._trials:
            self._count(search)
        return RemainingWork(
            self._attempts,
            1,
            _node_hours_left(search, self._limits),
            _wall_s_left(search, self._limits, now),
            search.pilots,
            self._num_nodes,
        )

    def _count(self, search: SearchRecord) -> None:
        goal, limits = self._goal, self._limits
        if self._index is None:
            self._index = SearchIndex(search, goal.objective, goal.global_batch_size, goal.headroom, goal.others)
        self._index.update(search)
        self._trials = search.trials
        finalists = chosen_finalists(self._index, limits.finalists, goal.baseline_keys)
        ended = sum(trial.state.is_ended for trial in self._index.repeats)
        self._attempts = max(1, len(finalists) * limits.finalist_repeats - ended)
        self._num_nodes = max((layout.num_nodes for layout in finalists), default=None)


def _node_hours_left(search: SearchRecord, limits: Limits) -> float | None:
    budget = limits.budget_node_hours
    return None if budget is None else max(0.0, budget - search.node_hours_used)


def _wall_s_left(search: SearchRecord, limits: Limits, now: float) -> float | None:
    wall_s = limits.max_wall_time_s
    return None if wall_s is None else max(0.0, wall_s - (now - search.created_at))
