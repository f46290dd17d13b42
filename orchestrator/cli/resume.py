"""`parlay resume`: continues a search after its driver has stopped."""

from __future__ import annotations

from functools import partial

from orchestrator.cli.drive import drive_here
from orchestrator.cli.driver_errors import print_search
from orchestrator.cli.driver_job import current_chain, driver_job_time_s
from orchestrator.cli.options import AsJob, AsJson, ExecutorName, JobTime, LedgerUrl, SearchId
from orchestrator.cli.ray_driver import drive_in_ray, require_local_driver, wants_ray
from orchestrator.cli.submit import leave_to_job, submit_one


def resume(
    search: SearchId = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    executor: ExecutorName = "thread",
    as_json: AsJson = False,
) -> None:
    """Continue a search whose driver has stopped; no trial runs twice."""
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_own_search

    job_time_s = driver_job_time_s(as_job, job_time)
    if in_ray := wants_ray(executor):
        require_local_driver(as_job, by_cron=False)
    found = find_own_search(search, ledger)
    started = reopen_search(found)
    if in_ray and not found.record.state.is_ended:
        drive_in_ray(started, as_json)
    elif job_time_s is None:
        drive_here(started, as_json)
    elif (chain := current_chain(started.folder, started.spec, started.ledger_url, job_time_s)) is not None:
        drive_here(started, as_json, chain)
    elif found.record.state.is_ended:
        print_search(found.record, found.folder, found.spec, as_json)
    else:
        submit_one(started, partial(leave_to_job, job_time_s=job_time_s), as_json)
