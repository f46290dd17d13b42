"""Who drives a search, and who will: its lease, cron, Slurm and the service."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.launchers.slurm.squeue_cache import SqueueCache, SqueueSnapshot
from orchestrator.lifecycle.driver_job import job_name
from orchestrator.records.summary import DriverStatus
from orchestrator.search.lease import LeaseHeld, current_lease
from search_spaces.errors import ExternalError
from slurm.client import SlurmClient
from slurm.environment import cluster_key
from slurm.interface import SlurmUnreachable
from slurm.job_state import JobSnapshot
from trials.files.folders import SearchFolder
from trials.ledger.location import home_folder
from trials.trial import utc_text

MAX_AGE_S = 30.0
"""Oldest squeue output that is used; drivers on this machine query and share it at this rate."""

MAX_AGE_OF_NEW_S = 5.0
"""The same where it may lack a job because that was submitted since, or shortly before."""

AskService = Callable[[str], DriverStatus | None]
"""Status of a search, by its id, without a driver, as the service knows it; None where it does not know the search."""


def find_driver_status(folder: SearchFolder, of_service: AskService) -> DriverStatus:
    """Status of the search's driver; errors become a status. Slurm is queried only if nobody holds the lease, and only
    for driver jobs; the service is asked only without either."""
    try:
        return _driver_status(folder, of_service)
    except ExternalError as refused:
        fix = f"; {refused.fix}" if refused.fix else ""
        return DriverStatus(f"the driver's status is unknown: {refused}{fix}")
    except (OSError, ValueError) as error:
        return DriverStatus(f"the driver's status is unknown: {error}")


def _driver_status(folder: SearchFolder, of_service: AskService) -> DriverStatus:
    now = time.time()
    lease = current_lease(folder)
    if lease is not None and lease.is_held(now):
        process = f"process {lease.pid} on {lease.host}"
        return DriverStatus(None if lease.is_fresh(now) else str(LeaseHeld(lease, now)), process=process)
    no_driver = "the search has no driver" + ("" if lease is None else f" since {utc_text(lease.heartbeat_at)}")
    if folder.cron_script.exists():
        return DriverStatus(f"{no_driver}: {_next_turn(folder)}")
    if folder.driver_script.exists():
        return _next_job(folder, no_driver)
    undriven = DriverStatus(f"{no_driver}: parlay resume {folder.cli_name} starts one", is_expected=False)
    return of_service(folder.search_id) or undriven


def cron_job_name(search_id: str) -> str:
    return f"{search_id}.cron"


def shared_squeue() -> Callable[[float], SqueueSnapshot]:
    """Query of the user's jobs by maximum age in seconds, cached for all drivers on this machine."""
    return SqueueCache(SlurmClient(), home_folder() / "slurm", cluster_key(os.environ)).jobs


def _next_turn(folder: SearchFolder) -> str:
    """Next start of the search's driver: a scrontab job in Slurm's queue, or cron, which cannot be queried."""
    with suppress(SlurmUnreachable):
        if (job := _active_job(cron_job_name(folder.search_id), folder.cron_script)) is not None:
            return _describe("its next turn, job", job)
    return "it waits for its next turn, which cron starts"


def _next_job(folder: SearchFolder, no_driver: str) -> DriverStatus:
    """Status of the driver's next job; while Slurm does not answer there may be one."""
    resume, what = f"parlay resume {folder.cli_name}", "its driver's job"
    try:
        job = _active_job(job_name(folder.search_id), folder.driver_script)
    except SlurmUnreachable as error:
        waits = f"it is waiting for its driver's next job, whose state Slurm does not report ({error})"
        return DriverStatus(f"{no_driver}: {waits}; {resume} starts one now")
    if job is None:
        lacks = f"{no_driver}, and no job of its driver is in Slurm's queue: {resume} --as-job submits one"
        return DriverStatus(lacks, is_expected=False)
    return DriverStatus(f"{no_driver}: {_describe(what, job)}")


def _active_job(name: str, script: Path) -> JobSnapshot | None:
    """The job of this name: a running one, else one that waits. Its script was written when it was submitted."""
    jobs = shared_squeue()
    answer = jobs(MAX_AGE_S)
    active = _active(answer, name)
    if not active and answer.asked_at < script.stat().st_mtime + MAX_AGE_S:
        active = _active(jobs(MAX_AGE_OF_NEW_S), name)
    return min(active, key=lambda job: job.state.waits, default=None)


def _active(answer: SqueueSnapshot, name: str) -> list[JobSnapshot]:
    return [job for job in answer.by_name.get(name, []) if not job.state.is_ended]


def _describe(what: str, job: JobSnapshot) -> str:
    if job.state.waits:
        return f"{what} {job.job_id} waits in the queue: {job.reason or job.state_text}"
    return f"{what} {job.job_id} runs on {','.join(job.nodes)} and does not hold the search yet"
