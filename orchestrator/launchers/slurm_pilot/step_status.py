"""Launch status of a pilot step, from the reports of its agent and of Slurm, worded as for a job of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm.job_files import failure_excerpt, job_request, log_tail
from orchestrator.launchers.slurm.job_status import describe_job, ended_status
from orchestrator.launchers.slurm_pilot.fork_servers import stub_command, warm_environment
from orchestrator.launchers.slurm_pilot.pilot import Pilot, startup_timeout_reason
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions, JobRequest
from slurm.srun_command import gpu_options
from trials.attempt_result import LaunchStatus, Liveness
from trials.failure_policy import Cause, NodeBlame, policy_of
from trials.files.folders import AttemptFolder, read_json
from trials.measurement.stragglers import suspect_ranks
from trials.pilot.files import COULD_NOT_START, StepEnd, StepEndReason, StepStart
from trials.trial import FailureReason, Flag, Outcome

_CANCELLED = re.compile(r"^slurmstepd\S*: error: \*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*$", re.MULTILINE)
"""Message of slurmstepd in the log of rank 0 when the step was cancelled; srun's own kills give the same."""

_ABORTED = "srun: Job step aborted"

_NODE_FAILED = re.compile(r"DUE TO NODE FAILURE|srun: error: Node failure on ")

_NOT_CREATED = re.compile(r"Unable to (create step|confirm allocation)")

_REASONS_AFTER_PILOT_END: Mapping[FailureReason | None, FailureReason] = {
    FailureReason.PREEMPTED: FailureReason.PREEMPTED,
    None: FailureReason.LAUNCH_FAILURE,
}
"""Reasons of a step that ended with its pilot, by the pilot's; no other reason counts against the step."""


def step_job(request: LaunchRequest, options: JobOptions, nodes: tuple[str, ...], number_script: Path) -> JobRequest:
    """Return the attempt as a step on these nodes: the script of a job of its own, with further options of srun.

    It requests per node what a job would, since no other step is on its nodes. Of whole nodes it takes all CPUs, unless
    the search file gives the CPUs of a rank.
    """
    job = job_request(request, options)
    if variables := warm_environment(request, options):
        job = replace(job, argv=(*stub_command(request), *job.argv), environment={**job.environment, **variables})
    takes_all = options.exclusive and options.cpus_per_task is None
    srun_options = (
        *(() if takes_all else ("--exact",)),
        *(f"--nodelist={','.join(nodes)}", f"--ntasks-per-node={job.tasks_per_node}"),
        *(f"--job-name={job.name}", f"--prolog={number_script}"),
        *gpu_options(options),
        *(() if options.cpus_per_task is None else (f"--cpus-per-task={options.cpus_per_task}",)),
    )
    launch = replace(options.launch, srun=(*srun_options, *job.options.launch.srun))
    return replace(job, options=replace(options, launch=launch))


def live_step_status(job_id: str | None, nodes: tuple[str, ...], start: StepStart | None) -> LaunchStatus:
    """Return the status of a step that was submitted to its pilot; it has its nodes once there is a `start`."""
    if start is None:
        return LaunchStatus(Liveness.ALIVE, job_id=job_id)
    step_id = f"{job_id}.{start.step}"
    return LaunchStatus(Liveness.ALIVE, started=True, nodes=nodes, started_at=start.started_at, job_id=step_id)


def ended_step_status(request: LaunchRequest, job_id: str | None, nodes: tuple[str, ...], end: StepEnd) -> LaunchStatus:
    """Return the status of a step that ended in its pilot."""
    log = log_tail(Path(request.folder.path, "job.log"))
    state = _state(end, log, log_tail(request.folder.rank_log(0)))
    step_id = str(job_id) if end.step is None else f"{job_id}.{end.step}"
    job = JobSnapshot(
        job_id=step_id,
        name=request.key,
        user="",
        state=state,
        state_text=state.value,
        nodes=() if end.step is None else nodes,
        started_at=None if end.step is None else end.started_at,
        ended_at=end.ended_at,
        exit_code=end.exit_code,
        signal=end.signal,
    )
    status = ended_status(job, log, cancelled=end.reason is StepEndReason.CANCELLED)
    never_started = end.step is None and (end.exit_code == COULD_NOT_START or _NOT_CREATED.search(log) is not None)
    if status.reason is None and never_started:
        status = replace(status, reason=FailureReason.LAUNCH_FAILURE, nodes=nodes)
    if status.failed and (status.reason is None or policy_of(status.reason).stops_search):
        return replace(status, detail=failure_excerpt(request.folder, describe_job(job), log))
    return status


def _state(end: StepEnd, log: str, rank_log: str) -> JobState:
    if end.reason is StepEndReason.TIME_LIMIT:
        return JobState.TIMEOUT
    if end.reason is StepEndReason.CANCELLED:
        return JobState.CANCELLED
    if _NODE_FAILED.search(log):  # srun may exit with 0 all the same
        return JobState.NODE_FAIL
    if end.exit_code == 0 and end.signal == 0:
        return JobState.COMPLETED
    return JobState.CANCELLED if _is_cancelled(log, rank_log) else JobState.FAILED


def _is_cancelled(log: str, rank_log: str) -> bool:
    """True if the step was cancelled before any of its ranks had ended: after the first end, srun cancels the rest."""
    before = log.partition(_ABORTED)[0]
    return _CANCELLED.search(rank_log) is not None and "srun: error:" not in before and "exited" not in before


def lost_step_status(
    request: LaunchRequest,
    nodes: tuple[str, ...],
    start: StepStart | None,
    pilot: LaunchStatus,
    cancelled: bool,
) -> LaunchStatus:
    """Return the status of a step that ended with its pilot without a report."""
    log = log_tail(Path(request.folder.path, "job.log"))
    reason = FailureReason.INTERRUPTED
    if cancelled:
        reason = FailureReason.CANCELLED_BY_SEARCH
    elif pilot.reason is FailureReason.NODE_FAILURE and _NODE_FAILED.search(log):
        reason = FailureReason.NODE_FAILURE
    elif pilot.reason in _REASONS_AFTER_PILOT_END and pilot.restart == 0:
        reason = _REASONS_AFTER_PILOT_END[pilot.reason]
    return LaunchStatus(
        Liveness.ENDED,
        started=start is not None,
        failed=True,
        reason=reason,
        detail=f"it ended with its pilot: {pilot.detail}",
        nodes=() if start is None else nodes,
        started_at=None if start is None else start.started_at,
        ended_at=pilot.ended_at,
        job_id=pilot.job_id if start is None else f"{pilot.job_id}.{start.step}",
        is_metered=start is not None
        and pilot.ended_at is not None
        and pilot.restart == 0,  # else it was queued in between
        nodes_were_silent=pilot.nodes_were_silent,
    )


def never_started_status(job_id: str | None) -> LaunchStatus:
    reason = FailureReason.CANCELLED_BY_SEARCH
    return LaunchStatus(Liveness.ENDED, reason=reason, detail="cancelled before it started", job_id=job_id)


def unserved_status(pilot: Pilot) -> LaunchStatus:
    """Return the status of an attempt whose pilot ended before its agent started: the next pilot may fail as well,
    unless this one was preempted."""
    reason, detail = pilot.status.reason, pilot.status.detail
    if reason is FailureReason.PREEMPTED:
        reason, detail = FailureReason.INTERRUPTED, f"pilot {pilot.folder.name} ended before the attempt started"
    elif policy_of(reason).cause not in (Cause.MACHINE, Cause.USER):
        reason = FailureReason.LAUNCH_FAILURE
    return LaunchStatus(
        Liveness.ENDED,
        failed=True,
        reason=reason,
        detail=startup_timeout_reason(pilot) if pilot.startup_timed_out else detail,
        nodes=pilot.status.nodes,
        job_id=pilot.job_id,
    )


def suspect_nodes(folder: AttemptFolder, nodes: tuple[str, ...], tasks_per_node: int) -> tuple[str, ...]:
    """Return the nodes that an ended attempt makes suspect, by its outcome.

    The node of a rank whose GPU memory was in use, nodes of slow devices and stragglers, else all of its nodes if one
    may be at fault; () without an outcome that can be believed. Slurm lists a step's nodes in rank order.
    """
    try:
        data = read_json(folder.outcome())
        outcome = None if data is None else Outcome.from_json(data)
    except (OSError, ValueError):
        return ()
    if outcome is None:
        return ()
    blame = policy_of(outcome.reason).blame
    if blame is NodeBlame.NONE and Flag.SUSPECT_NODE not in outcome.flags:
        return ()
    found = suspect_ranks(outcome.fingerprint, outcome.slowest_rank)
    ranks = [outcome.rank] if blame is NodeBlame.REPORTED_BY_ALL else found
    places = {rank // tasks_per_node for rank in ranks if rank is not None}
    return tuple(node for place, node in enumerate(nodes) if not places or place in places)
