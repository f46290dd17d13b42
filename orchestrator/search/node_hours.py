"""Node-hours of attempts."""

from __future__ import annotations

from orchestrator.launchers.base import ENDING_ALLOWANCE_S
from orchestrator.launchers.schema import LauncherSection
from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from trials.attempt_result import LaunchStatus
from trials.trial import Attempt, MeasureRules


def longest_attempt_s(
    measure: MeasureRules, launcher: LauncherSection | None = None, num_nodes: int = 1, pilot_nodes: int = 1
) -> float:
    """Seconds from an attempt's start to its certain end: its own limit, the launcher's grace, the forced ending. Of
    one on `num_nodes` in a pilot of `pilot_nodes`, whose nodes it pays for alone, for each of its own."""
    limit_s = measure.time_limit_s + LAUNCHER_GRACE_S
    if launcher is None:
        return limit_s + ENDING_ALLOWANCE_S
    from orchestrator.launchers.factory import longest_s  # brings all launchers, and is only asked once a search

    return longest_s(launcher, limit_s, num_nodes, pilot_nodes)


def node_hours_of(attempt: Attempt, status: LaunchStatus, now: float) -> float:
    """Node-hours an ended attempt used, runs before a requeue and a twin that was cancelled included.

    Where the cluster says when its job began and ended, that is booked, whatever was reserved: a controller that was
    away ends no job in time. Of other launchers, which end every attempt in time, a longer span is a clock that jumped
    or a driver that was away, and never more is booked than was reserved. A negative one is a clock that went back.
    """
    started = attempt.started_at if status.started_at is None else status.started_at
    if started is None and status.started:
        started = attempt.submitted_at  # nobody saw when: what it can have been at most
    besides = attempt.earlier_node_hours + status.twin_node_s / 3600
    if started is None:
        return besides
    ended = now if status.ended_at is None else status.ended_at
    seconds = max(0.0, ended - started)
    if not status.is_metered:
        seconds = min(seconds, attempt.longest_s)
    return besides + attempt.num_nodes * seconds / 3600


def node_hours_until_requeue(attempt: Attempt, status: LaunchStatus, now: float) -> float:
    """Node-hours the attempt used before its job went back into the queue for the `status.restart`-th time, at most.

    When the earlier run ended is not known, only when it began, if that was seen, and that it is over: the time
    between is booked, no more than one reservation for each run.
    """
    until = now if status.started_at is None else status.started_at
    was_seen = attempt.started_at is not None and attempt.started_at < until
    since = attempt.started_at if was_seen else attempt.submitted_at
    if since is None:
        return attempt.earlier_node_hours
    runs = status.restart - attempt.restart
    seconds = min(max(0.0, until - since), runs * attempt.longest_s)
    return attempt.earlier_node_hours + attempt.num_nodes * seconds / 3600
