"""`parlay resume`: continues a search after its driver has stopped."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.drive import drive_here
from orchestrator.cli.driver_errors import print_search
from orchestrator.cli.options import AsJob, AsJson, ExecutorName, JobTime, LedgerUrl, SearchId
from orchestrator.cli.output import Exit
from orchestrator.cli.ray_driver import drive_in_ray, require_local_driver, wants_ray
from orchestrator.cli.submit import driver_job_time_s, leave_to_job, submit_one
from orchestrator.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from orchestrator.lifecycle.drive import RunnableSearch
    from orchestrator.lifecycle.driver_job import DriverChain
    from trials.files.folders import SearchFolder


def resume(
    search: SearchId = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    executor: ExecutorName = "process",
    as_json: AsJson = False,
    supervisor: Annotated[int | None, typer.Option(hidden=True)] = None,
    quota: Annotated[Path | None, typer.Option(hidden=True)] = None,
    in_flight: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Continue a search whose driver has stopped; no trial runs twice."""
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_own_search

    job_time_s = driver_job_time_s(as_job, job_time)
    if in_ray := wants_ray(executor):
        require_local_driver(as_job, by_cron=False)
    found = find_own_search(search, ledger)
    if supervisor is not None:
        _serve_under(supervisor, found.folder)
    started = reopen_search(found)
    if in_ray and not found.record.state.is_ended:
        drive_in_ray(started, as_json)
    elif quota is not None:
        from orchestrator.service.quota import QuotaFile

        drive_here(started, as_json, grant_slots=partial(QuotaFile(quota, in_flight).grant, found.folder.search_id))
    elif job_time_s is None:
        drive_here(started, as_json)
    elif (chain := _own_chain(started, job_time_s)) is not None:
        drive_here(started, as_json, chain)
    elif found.record.state.is_ended:
        print_search(found.record, found.folder, found.spec, as_json)
    else:
        submit_one(started, partial(leave_to_job, job_time_s=job_time_s), as_json)


def _own_chain(started: RunnableSearch, job_time_s: float) -> DriverChain | None:
    """Return the chain of jobs that this process belongs to; None outside of a job of this search's driver."""
    from orchestrator.lifecycle.driver_job import DriverChain, driver_job, own_job_id
    from slurm.client import SlurmClient

    own_id = own_job_id(os.environ, started.folder.search_id)
    if own_id is None:
        return None
    link = driver_job(started.folder, started.spec, started.ledger_url, job_time_s)
    return DriverChain(SlurmClient(), replace(link, after=own_id))


def _serve_under(supervisor: int, folder: SearchFolder) -> None:
    """End with this process, and log to the search's driver.log."""
    from orchestrator.common.logs import use_times_in
    from orchestrator.lifecycle.signals import end_with

    log = os.open(folder.driver_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    os.dup2(log, 2)
    os.close(log)
    use_times_in(folder.driver_log)
    if not end_with(supervisor):
        raise Exit(ExitCode.STOPPED_EARLY)
