"""Node-hours of attempts."""

from __future__ import annotations

from orchestrator.config.schema.launcher import ENDING_ALLOWANCE_S, LauncherSection
from trials.attempt_result import LaunchStatus
from trials.measure_rules import MeasureRules
from trials.trial import Attempt

LAUNCHER_GRACE_S = 30.0
"""A trial ends itself at its own time limit; the launcher ends it this much later in any case."""


def longest_attempt_s(
    measure: MeasureRules, launcher: LauncherSection | None = None, num_nodes: int = 1, pilot_nodes: int = 1
) -> float:
    """Seconds from an attempt's start to its certain end: its own limit, the launcher's grace and the forced ending.

    For an attempt on `num_nodes` of a pilot with `pilot_nodes`, all of which it pays for: seconds for each of its own
    nodes.
    """
    limit_s = measure.time_limit_s + LAUNCHER_GRACE_S
    if launcher is None:
        return limit_s + ENDING_ALLOWANCE_S
    return longest_s(launcher, limit_s, num_nodes, pilot_nodes)


def longest_s(section: LauncherSection, time_limit_s: float, num_nodes: int = 1, pilot_nodes: int = 1) -> float:
    """Return what the launcher's own `longest_s` will return for an attempt with this limit, before there is a
    launcher.

    A Slurm that does not answer counts with Slurm's default settings.
    """
    if section.kind == "slurm_pilot":
        from orchestrator.launchers.slurm_pilot.sizing import PilotRules, max_share_s

        return max_share_s(PilotRules(pilot_nodes, 1), time_limit_s, num_nodes, 0.0)
    if section.kind != "slurm":
        return time_limit_s + ENDING_ALLOWANCE_S
    from orchestrator.launchers.slurm.launcher import max_job_s
    from slurm.client import SlurmClient
    from slurm.interface import SlurmSettings, SlurmUnreachable

    try:
        settings = SlurmClient().settings()
    except SlurmUnreachable:
        settings = SlurmSettings()
    return max_job_s(time_limit_s, settings, section.slurm.partition)


def node_hours_of(attempt: Attempt, status: LaunchStatus, now: float) -> float:
    """Node-hours of an ended attempt, including runs before a requeue and a cancelled duplicate job.

    Start and end reported by the cluster are used as they are, whatever was reserved: a controller that was down ends
    no job in time. Other launchers end every attempt in time, so a longer span means a clock that jumped or an absent
    driver, and is cut to the reservation. A negative span (a clock set back) counts as 0.
    """
    started = attempt.started_at if status.started_at is None else status.started_at
    if started is None and status.started:
        started = attempt.submitted_at  # start unknown: the upper bound
    other_node_hours = attempt.earlier_node_hours + status.extra_node_s / 3600
    if started is None:
        return other_node_hours
    ended = now if status.ended_at is None else status.ended_at
    seconds = max(0.0, ended - started)
    if not status.is_metered:
        seconds = min(seconds, attempt.longest_s)
    return other_node_hours + attempt.num_nodes * seconds / 3600


def billed_hours_of(attempt: Attempt, status: LaunchStatus, node_hours: float) -> float | None:
    """Billing-unit hours of an ended attempt that used `node_hours`; None where Slurm does not say what it bills."""
    return None if status.billing is None else node_hours / attempt.num_nodes * status.billing


def node_hours_until_requeue(attempt: Attempt, status: LaunchStatus, now: float) -> float:
    """Upper bound on the node-hours before the job's `restart`-th requeue.

    The end of the earlier run is unknown. The time from its start, if that was seen, to the next one is counted, at
    most one reservation a run.
    """
    until = now if status.started_at is None else status.started_at
    was_seen = attempt.started_at is not None and attempt.started_at < until
    since = attempt.started_at if was_seen else attempt.submitted_at
    if since is None:
        return attempt.earlier_node_hours
    runs = status.restart - attempt.restart
    seconds = min(max(0.0, until - since), runs * attempt.longest_s)
    return attempt.earlier_node_hours + attempt.num_nodes * seconds / 3600
