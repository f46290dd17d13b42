"""What Slurm says of the jobs that begin a search's drivers: those of `--as-job`, and those that scrontab starts."""

from __future__ import annotations

import os
from collections.abc import Callable

from orchestrator.lifecycle.driver_job import job_name
from slurm.client import SlurmClient
from slurm.environment import cluster_key
from slurm.job_state import JobSnapshot
from slurm.squeue_cache import SqueueCache, SqueueSnapshot
from trials.ledger.location import home_folder

ASKED_EVERY_S = 30.0
"""Drivers ask as seldom, and the answer is the same one."""

SURELY_EVERY_S = 5.0
"""An older answer that lacks the job is asked for anew: it may have been submitted since."""


def tick_job_name(search_id: str) -> str:
    return f"{search_id}.tick"


def shared_jobs() -> Callable[[float], SqueueSnapshot]:
    """All the user's jobs, as they were at most so many seconds ago: the answer that drivers on this machine share."""
    client = SlurmClient()
    return SqueueCache(client, home_folder() / "slurm", cluster_key(os.environ)).jobs


def driver_in_queue(search_id: str, jobs: Callable[[float], SqueueSnapshot]) -> str | None:
    """Where the search's driver's job stands, in words; None where there is none. Raises SlurmUnreachable."""
    return _words("its driver's job", _found(job_name(search_id), jobs))


def tick_in_queue(search_id: str, jobs: Callable[[float], SqueueSnapshot]) -> str | None:
    """The same of its next tick, where scrontab begins it."""
    return _words("its next tick, job", _found(tick_job_name(search_id), jobs))


def _found(name: str, jobs: Callable[[float], SqueueSnapshot]) -> JobSnapshot | None:
    """The one of this name that runs, or else waits."""
    living: list[JobSnapshot] = []
    for max_age_s in (ASKED_EVERY_S, SURELY_EVERY_S):
        living = [job for job in jobs(max_age_s).by_name.get(name, []) if not job.state.is_ended]
        if living:
            break
    return min(living, key=lambda job: job.state.waits, default=None)


def _words(what: str, job: JobSnapshot | None) -> str | None:
    if job is None:
        return None
    if job.state.waits:
        return f"{what} {job.job_id} waits in the queue: {job.reason or job.state_text}"
    return f"{what} {job.job_id} runs on {','.join(job.nodes)}, and has not taken the search yet"
