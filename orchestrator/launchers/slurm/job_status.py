"""Launch status of a job, from Slurm's report. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm.job_state import JobSnapshot, JobState
from trials.attempt_result import LaunchStatus, Liveness
from trials.fork_server.stub import KILLED_FOR_MEMORY
from trials.ranks.program import FILES_FAILED
from trials.trial import FailureReason

_REASONS: Mapping[JobState, FailureReason] = {
    JobState.TIMEOUT: FailureReason.TIME_LIMIT,
    JobState.DEADLINE: FailureReason.TIME_LIMIT,
    JobState.NODE_FAIL: FailureReason.NODE_FAILURE,
    JobState.BOOT_FAIL: FailureReason.BOOT_FAILURE,
    JobState.OUT_OF_MEMORY: FailureReason.HOST_OOM,
    JobState.PREEMPTED: FailureReason.PREEMPTED,
    JobState.REVOKED: FailureReason.CANCELLED_BY_USER,
}

_SUSPENDED = {JobState.SUSPENDED: "suspended", JobState.STOPPED: "stopped"}

_SILENT = (JobState.NODE_FAIL, JobState.BOOT_FAIL)
"""Slurm marks a node as failed after SlurmdTimeout (300 s by default) without an answer."""

_MEMORY_WORDS = (
    *("oom-kill", "oom_kill", "Out Of Memory", "exceeded memory limit"),
    f": Exited with exit code {KILLED_FOR_MEMORY}\n",
)
"""Messages of slurmstepd in the job's log when the kernel killed for memory, whatever state it then reports; and of
srun about a rank that a fork server had forked."""

_TASK_END = re.compile(r"^srun: error: \S+: tasks? [\d,-]+: (?P<end>.+)$", re.MULTILINE)
"""Message of srun about ended ranks, in the order they ended: the first is the cause, srun kills the others."""

_FILES_FAILED = f": Exited with exit code {FILES_FAILED}\n"
"""Message of srun about a rank that could not read or write its own files."""

_SCRIPT_NOT_STARTED = 53
"""The `signal` of a batch script whose folder or log could not be opened on its node (ExitCode 0:53)."""


def alive_status(job: JobSnapshot, restart: int, is_requeued: bool = False) -> LaunchStatus:
    """Return the status of a pending or running job; `detail` is Slurm's reason for its wait.

    A job that `is_requeued` may be COMPLETING until its last run is cleaned up. Any other that is COMPLETING has an
    end, by which its usage is accounted.
    """
    runs = not (job.state.waits or job.state is JobState.CONFIGURING or is_requeued)
    return LaunchStatus(
        Liveness.ALIVE,
        started=runs,
        detail=_SUSPENDED.get(job.state) if runs else job.reason,
        nodes=job.nodes if runs else (),
        started_at=job.started_at if runs else None,
        ended_at=job.ended_at if runs else None,
        job_id=job.job_id,
        restart=restart,
        is_metered=runs and job.started_at is not None and job.ended_at is not None,
    )


def unknown_status(job: JobSnapshot) -> LaunchStatus:
    """Return the status of a job in an unknown state, with Slurm's word for it."""
    return LaunchStatus(
        Liveness.UNKNOWN, detail=f"Slurm reports job {job.job_id} as {job.state_text}", job_id=job.job_id
    )


def ended_status(job: JobSnapshot, log: str, cancelled: bool) -> LaunchStatus:
    """Return the status of an ended job. `log` is the end of its batch output, `cancelled` whether the search cancelled
    it.

    The reason is None where only the trial itself can know it.
    """
    reason = _reason(job, log, cancelled)
    return LaunchStatus(
        Liveness.ENDED,
        started=job.started_at is not None,
        failed=job.state is not JobState.COMPLETED or bool(job.exit_code or job.signal),
        reason=reason,
        detail=describe_job(job),
        nodes=job.nodes,
        started_at=job.started_at,
        ended_at=job.ended_at,
        job_id=job.job_id,
        restart=job.restarts or 0,
        is_metered=job.started_at is not None and job.ended_at is not None,
        nodes_were_silent=job.state in _SILENT,
    )


def describe_job(job: JobSnapshot) -> str:
    """Describe the job's end by Slurm's report, on one line."""
    message = f"Slurm job {job.job_id}: {job.state_text}"
    if job.reason:
        message += f" ({job.reason})"
    if job.signal:
        return f"{message}, signal {job.signal}"
    return f"{message}, exit code {job.exit_code}" if job.exit_code else message


def _reason(job: JobSnapshot, log: str, cancelled: bool) -> FailureReason | None:
    if job.state is JobState.CANCELLED:
        return FailureReason.CANCELLED_BY_SEARCH if cancelled else FailureReason.CANCELLED_BY_USER
    if job.state is not JobState.FAILED:
        return _REASONS.get(job.state)
    if job.signal == _SCRIPT_NOT_STARTED:
        return FailureReason.LAUNCH_FAILURE
    if any(word in log for word in _MEMORY_WORDS):
        return FailureReason.HOST_OOM
    if _FILES_FAILED in log:
        return FailureReason.LAUNCH_FAILURE
    first_end = _TASK_END.search(log)
    if job.signal or (first_end is not None and first_end["end"].startswith(("Killed", "Terminated"))):
        return FailureReason.NODE_FAILURE  # killed from outside: not the layout's fault
    return None
