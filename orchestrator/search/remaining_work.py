"""Remaining work of a search, by its record, for planning pilots."""

from __future__ import annotations

from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.search.stopping import Limits, remaining_layouts
from trials.ledger.events import SearchRecord


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


def _node_hours_left(search: SearchRecord, limits: Limits) -> float | None:
    budget = limits.budget_node_hours
    return None if budget is None else max(0.0, budget - search.node_hours_used)


def _wall_s_left(search: SearchRecord, limits: Limits, now: float) -> float | None:
    wall_s = limits.max_wall_time_s
    return None if wall_s is None else max(0.0, wall_s - (now - search.created_at))
