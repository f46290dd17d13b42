"""Size, time limit and placement of pilots. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from slurm.request import max_job_s

IDLE_S = 120.0
"""Time that a pilot waits for its next step before it ends.

A dead driver is not waited for longer; a live one needs seconds between two trials.
"""

STARTUP_S = 300.0
"""Longest time from the start of a job to its agent's first heartbeat.

Prologs, modules and a first Python from a cold file system take seconds or minutes. An agent without a heartbeat by
then hangs, and its job is cancelled: it would hold its nodes until its limit.
"""

SLOW_START_S = 60.0
"""A pilot that has run for so long without its agent is reported."""

ROOM_S = 60.0
"""Time that has to remain of a pilot beyond an attempt's limit: for its end, and the inaccuracy of Slurm's clock."""

STEP_ENDING_S = 15.0
"""Time from a step's limit until its nodes are free."""

_ROUNDING_S = 1e-6
"""Of sums of node-hours."""

LONGEST_PILOT_S = 4 * 3600.0
"""Default of a pilot's longest time: most partitions allow it, and shorter jobs start earlier on a full cluster."""


@dataclass(frozen=True)
class PilotRules:
    """Parameters of all pilots of a search. `longest_s` is the longest time of one."""

    num_nodes: int
    tasks_per_node: int
    longest_s: float = LONGEST_PILOT_S


@dataclass(frozen=True)
class RemainingWork:
    """Remaining work of the search: attempts, how many at once, and limits (None: no limit).

    `node_hours` are neither used nor reserved. `pilots` are those in the search's record.
    """

    attempts: int
    parallel: int
    node_hours: float | None = None
    wall_s: float | None = None
    pilots: Collection[str] = ()


def planned_pilot_s(rules: PilotRules, work: RemainingWork, time_limit_s: float, ending_s: float) -> float | None:
    """Return the time to request: all remaining attempts at their limit and one retry, within the search's limits.

    Never less than one attempt needs; None where the budget, beside the `ending_s` that Slurm may add, leaves less.
    """
    rounds = math.ceil(work.attempts / work.parallel) + 1
    most = [rules.longest_s, rounds * (time_limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S]
    if work.node_hours is not None:
        left_s = work.node_hours * 3600 / rules.num_nodes + _ROUNDING_S
        if left_s < max_job_s(min_pilot_s(time_limit_s), ending_s):
            return None
        most.append((left_s - ending_s) // 60 * 60)  # Slurm's limits are whole minutes
    if work.wall_s is not None:
        most.append(work.wall_s)
    return max(min(most), min_pilot_s(time_limit_s))


def min_pilot_s(time_limit_s: float) -> float:
    """Return the shortest time of a pilot in which an attempt of this limit is started."""
    return time_limit_s + STARTUP_S + ROOM_S


def choose_nodes(
    nodes: Sequence[str], num_nodes: int, busy: Collection[str], avoided: Collection[str], suspects: Collection[str]
) -> tuple[str, ...] | None:
    """Return the first free nodes in the pilot's order, suspect ones last; None where too few are free.

    Layouts of one size therefore run on the same nodes as long as these are free, which keeps them comparable.
    """
    free = [node for node in nodes if node not in busy and node not in avoided]
    free.sort(key=lambda node: node in suspects)
    return tuple(sorted(free[:num_nodes], key=nodes.index)) if len(free) >= num_nodes else None
