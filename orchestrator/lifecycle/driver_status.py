"""Who drives a search, and who will: its lease, cron, Slurm and the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from orchestrator.lifecycle import driver_queue
from orchestrator.records.summary import DriverStatus
from orchestrator.search.lease import LeaseHeld, current_lease
from search_spaces.errors import ExternalError
from slurm.interface import SlurmUnreachable
from trials.files.folders import SearchFolder
from trials.trial import utc_text

AskService = Callable[[str], DriverStatus | None]
"""Status of a search, by its id, without a driver, as the service knows it; None where it does not know the search."""


def driver_status(folder: SearchFolder, of_service: AskService) -> DriverStatus:
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


def _next_turn(folder: SearchFolder) -> str:
    """Next start of the search's driver: a scrontab job in Slurm's queue, or cron, which cannot be queried."""
    with suppress(SlurmUnreachable):
        if (words := driver_queue.cron_job_in_queue(folder.search_id, driver_queue.shared_squeue())) is not None:
            return words
    return "it waits for its next turn, which cron starts"


def _next_job(folder: SearchFolder, no_driver: str) -> DriverStatus:
    """Status of the driver's next job; while Slurm does not answer there may be one."""
    resume = f"parlay resume {folder.cli_name}"
    try:
        words = driver_queue.driver_in_queue(folder.search_id, driver_queue.shared_squeue())
    except SlurmUnreachable as error:
        waits = f"it is waiting for its driver's next job, whose state Slurm does not report ({error})"
        return DriverStatus(f"{no_driver}: {waits}; {resume} starts one now")
    if words is None:
        lacks = f"{no_driver}, and no job of its driver is in Slurm's queue: {resume} --as-job submits one"
        return DriverStatus(lacks, is_expected=False)
    return DriverStatus(f"{no_driver}: {words}")
