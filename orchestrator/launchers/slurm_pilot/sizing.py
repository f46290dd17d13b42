"""Size, time limit, placement and cost of pilots. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

IDLE_S = 120.0
"""Time that a pilot waits for its next step before it ends.

A dead driver is not waited for longer; a live one needs seconds between two trials.
"""

TAIL_S = IDLE_S + 30.0
"""Longest time that a pilot holds its nodes after its last step: idle time, the agent's end, and Slurm's notice of it.

It is reserved until the pilot is booked as ended.
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

    `booked` are the pilots whose end is in the search's record.
    """

    attempts: int
    parallel: int
    node_hours: float | None = None
    wall_s: float | None = None
    booked: Collection[str] = ()


def planned_pilot_s(rules: PilotRules, work: RemainingWork, time_limit_s: float) -> float:
    """Return the time to request: all remaining attempts at their limit and one retry, within the search's limits.

    Never less than one attempt needs.
    """
    rounds = math.ceil(work.attempts / work.parallel) + 1
    most = [rules.longest_s, rounds * (time_limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S]
    if work.node_hours is not None:
        most.append(work.node_hours * 3600 / rules.num_nodes)
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


def max_share_s(rules: PilotRules, time_limit_s: float, num_nodes: int, unbooked_node_s: float) -> float:
    """Return the seconds to reserve for each of an attempt's nodes, so that they cover its highest possible cost.

    Alone in its pilot it pays for all nodes: before it, while it runs, and while they are idle. `unbooked_node_s` is
    what other pilots may hold that is not booked yet.
    """
    seconds = STARTUP_S + IDLE_S + time_limit_s + STEP_ENDING_S + TAIL_S
    return (rules.num_nodes * seconds + unbooked_node_s) / num_nodes
