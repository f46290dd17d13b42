"""Node-hours of attempts and pilots."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.config.schema.launcher import ENDING_ALLOWANCE_S, LauncherSection
from trials.attempt_result import LaunchStatus
from trials.ledger.events import PilotUsage
from trials.measure_rules import MeasureRules
from trials.trial import Attempt

LAUNCHER_GRACE_S = 30.0
"""A trial ends itself at its own time limit; the launcher ends it this much later in any case."""

CHECK_TIME_LIMIT_S = 600.0 + LAUNCHER_GRACE_S
"""The launcher's limit of a fabric check, start and measurement together."""


def reservation_node_hours(
    measure: MeasureRules, launcher: LauncherSection, num_nodes: int, nodes_per_pilot: int
) -> float:
    """Node-hours that have to be free before a trial on `num_nodes` starts: its own, or those of a pilot for it."""
    limit_s = measure.time_limit_s + LAUNCHER_GRACE_S
    return reservation_node_s(launcher, limit_s, num_nodes, nodes_per_pilot) / 3600


def reservation_node_s(section: LauncherSection, time_limit_s: float, num_nodes: int, nodes_per_pilot: int) -> float:
    """Return what the launcher's own `reservation_node_s` will return for the first attempt with this limit, before
    there is a launcher.

    A Slurm that does not answer counts with Slurm's default settings.
    """
    if not section.uses_slurm:
        return num_nodes * (time_limit_s + ENDING_ALLOWANCE_S)
    from orchestrator.launchers.slurm_pilot.sizing import min_pilot_s
    from slurm.client import SlurmClient
    from slurm.interface import SlurmSettings, SlurmUnreachable
    from slurm.request import max_job_s

    try:
        settings = SlurmClient().settings()
    except SlurmUnreachable:
        settings = SlurmSettings()
    ending_s = settings.ending_s(section.slurm.partition)
    if section.has_pilots:
        return nodes_per_pilot * max_job_s(min_pilot_s(time_limit_s), ending_s)
    return num_nodes * max_job_s(time_limit_s, ending_s)


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


def pilot_node_hours(pilot: PilotUsage, status: LaunchStatus, now: float) -> float:
    """Node-hours of an ended pilot, by the rules of an attempt's job."""
    job = Attempt("", "", "", pilot.num_nodes, pilot.reserved_s, submitted_at=pilot.submitted_at)
    return node_hours_with_requeues(job, status, now)


def node_hours_with_requeues(attempt: Attempt, status: LaunchStatus, now: float) -> float:
    """`node_hours_of` with the runs before a requeue that was not recorded."""
    if status.restart > attempt.restart:
        attempt = replace(attempt, earlier_node_hours=node_hours_until_requeue(attempt, status, now))
    return node_hours_of(attempt, status, now)


def billed_hours_of(num_nodes: int, status: LaunchStatus, node_hours: float) -> float | None:
    """Billing-unit hours of an ended job that used `node_hours`; None where Slurm does not say what it bills."""
    return None if status.billing is None else node_hours / num_nodes * status.billing


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
