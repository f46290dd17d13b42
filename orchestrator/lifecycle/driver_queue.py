"""Slurm's state of the jobs that run a search's driver: those of `--as-job`, and those that scrontab starts."""

from __future__ import annotations

import os
from collections.abc import Callable

from orchestrator.lifecycle.driver_job import job_name
from slurm.client import SlurmClient
from slurm.environment import cluster_key
from slurm.job_state import JobSnapshot
from slurm.squeue_cache import SqueueCache, SqueueSnapshot
from trials.ledger.location import home_folder

MAX_AGE_S = 30.0
"""Oldest squeue output that is used; drivers on this machine query and share it at this rate."""

MAX_AGE_IF_MISSING_S = 5.0
"""The same where it lacks the job, which may have been submitted since."""


def cron_job_name(search_id: str) -> str:
    return f"{search_id}.cron"


def shared_squeue() -> Callable[[float], SqueueSnapshot]:
    """Query of the user's jobs by maximum age in seconds, cached for all drivers on this machine."""
    client = SlurmClient()
    return SqueueCache(client, home_folder() / "slurm", cluster_key(os.environ)).jobs


def driver_in_queue(search_id: str, jobs: Callable[[float], SqueueSnapshot]) -> str | None:
    """Describe the state of the search's driver's job; None without one. Raises SlurmUnreachable."""
    return _describe("its driver's job", _find(job_name(search_id), jobs))


def cron_job_in_queue(search_id: str, jobs: Callable[[float], SqueueSnapshot]) -> str | None:
    """Describe the state of its next turn's job, where scrontab starts it; else as above."""
    return _describe("its next turn, job", _find(cron_job_name(search_id), jobs))


def _find(name: str, jobs: Callable[[float], SqueueSnapshot]) -> JobSnapshot | None:
    """The job of this name: a running one, else one that waits."""
    active: list[JobSnapshot] = []
    for max_age_s in (MAX_AGE_S, MAX_AGE_IF_MISSING_S):
        active = [job for job in jobs(max_age_s).by_name.get(name, []) if not job.state.is_ended]
        if active:
            break
    return min(active, key=lambda job: job.state.waits, default=None)


def _describe(what: str, job: JobSnapshot | None) -> str | None:
    if job is None:
        return None
    if job.state.waits:
        return f"{what} {job.job_id} waits in the queue: {job.reason or job.state_text}"
    return f"{what} {job.job_id} runs on {','.join(job.nodes)} and does not hold the search yet"
