"""How large a pilot is, how long, where in it an attempt runs, and what that may cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from search_spaces.hardware.cluster import Cluster

IDLE_S = 120.0
"""How long a pilot waits for its next step before it ends by itself: a driver that died is not waited for longer, and
one that lives needs seconds between two trials."""

TAIL_S = IDLE_S + 30.0
"""How long a pilot's nodes may be held after its last step: until the agent ends, and Slurm has seen it. It is reserved
as long as the pilot is not booked as ended."""

STARTUP_S = 300.0
"""From the start of a job until its agent serves, at most: prologs, modules and a first Python from a cold file system
take seconds, or minutes. What has left no sign of life by then hangs, and is cancelled: it would hold its nodes up to
its own limit."""

SLOW_START_S = 60.0
"""A pilot that has run for so long without its agent is said."""

ROOM_S = 60.0
"""An attempt is begun only where so much more than its limit is left of its pilot: for its end, and Slurm's clock."""

STEP_ENDING_S = 15.0
"""From a step's limit until its nodes are free."""

LONGEST_PILOT_S = 4 * 3600.0
"""What a pilot is asked for at most where the search file does not say: most partitions allow it, and a shorter job
starts earlier on a full cluster."""


@dataclass(frozen=True)
class PilotRules:
    """What all pilots of a search have in common. `longest_s` is how long one may be at most."""

    num_nodes: int
    tasks_per_node: int
    longest_s: float = LONGEST_PILOT_S


@dataclass(frozen=True)
class WorkLeft:
    """What the search may still do: attempts at most, so many side by side, and what limits them; None is no limit.
    `booked` are the pilots whose end is in the search's books."""

    attempts: int
    parallel: int
    node_hours: float | None = None
    wall_s: float | None = None
    booked: Collection[str] = ()


def pilot_nodes(wanted: int | None, cluster: Cluster, parallel_trials: int) -> int:
    """The nodes of each pilot: room for all trials side by side, each as large as the cluster that the search names."""
    return wanted if wanted is not None else cluster.num_nodes * parallel_trials


def planned_pilot_s(rules: PilotRules, work: WorkLeft, time_limit_s: float) -> float:
    """Seconds to ask for: what is left to try if every attempt took its limit, and one that is tried again, within what
    the search may still use; never less than one attempt needs."""
    rounds = math.ceil(work.attempts / work.parallel) + 1
    most = [rules.longest_s, rounds * (time_limit_s + STEP_ENDING_S) + STARTUP_S + ROOM_S]
    if work.node_hours is not None:
        most.append(work.node_hours * 3600 / rules.num_nodes)
    if work.wall_s is not None:
        most.append(work.wall_s)
    return max(min(most), min_pilot_s(time_limit_s))


def min_pilot_s(time_limit_s: float) -> float:
    """The shortest pilot in which an attempt of this limit is begun."""
    return time_limit_s + STARTUP_S + ROOM_S


def choose_nodes(
    nodes: Sequence[str], num_nodes: int, busy: Collection[str], avoided: Collection[str], suspects: Collection[str]
) -> tuple[str, ...] | None:
    """The first free nodes in the pilot's own order, those that are doubted last; None where it has to be waited for.

    So layouts of one size run on the same nodes as long as these are free: what is compared differs in nothing else.
    """
    free = [node for node in nodes if node not in busy and node not in avoided]
    free.sort(key=lambda node: node in suspects)
    return tuple(sorted(free[:num_nodes], key=nodes.index)) if len(free) >= num_nodes else None


def max_share_s(rules: PilotRules, time_limit_s: float, num_nodes: int, unbooked_node_s: float) -> float:
    """Seconds for which each of an attempt's nodes is reserved, so that they cover what it may cost: alone in its pilot
    it pays for all nodes, before it and while it runs, and then they are idle. `unbooked_node_s` is what other pilots
    may hold that is in no book yet."""
    seconds = STARTUP_S + IDLE_S + time_limit_s + STEP_ENDING_S + TAIL_S
    return (rules.num_nodes * seconds + unbooked_node_s) / num_nodes
