"""Implements `--as-job`: the driver runs as a Slurm job of its own."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.lifecycle.driver_job import DriverChain
    from trials.files.folders import SearchFolder


def driver_job_time_s(as_job: bool, job_time: str | None) -> float | None:
    """Return the time limit of the driver's job; None without --as-job. Raises InputError."""
    if not as_job and job_time is None:
        return None
    if not as_job:
        rule = "it is the time limit of the driver's job"
        raise InputError.of("usage", "requires --as-job", rule=rule, fix="add --as-job", key="--job-time")
    from orchestrator.lifecycle.driver_job import job_time_s

    return job_time_s(job_time)


def current_chain(folder: SearchFolder, spec: SearchSpec, ledger_url: str, job_time_s: float) -> DriverChain | None:
    """Return the chain of jobs that this process belongs to; None outside of a job of this search's driver."""
    from orchestrator.lifecycle.driver_job import DriverChain, driver_job, own_job_id
    from slurm.client import SlurmClient

    own_id = own_job_id(os.environ, folder.search_id)
    if own_id is None:
        return None
    link = driver_job(folder, spec, ledger_url, job_time_s)
    return DriverChain(SlurmClient(), replace(link, after=own_id))


def submit_driver(folder: SearchFolder, spec: SearchSpec, ledger_url: str, job_time_s: float) -> str:
    """Submit the driver's job and return its id. Raises LeaseHeld and DriverAlreadyQueued if the search has a driver
    already, and ExternalError."""
    from orchestrator.lifecycle.driver_job import driver_job, require_slurm, submit_first_link
    from orchestrator.search.lease import require_no_holder
    from slurm.client import SlurmClient

    require_slurm(spec)
    require_no_holder(folder, time.time())
    return submit_first_link(SlurmClient(), driver_job(folder, spec, ledger_url, job_time_s))
