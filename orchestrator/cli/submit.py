"""`parlay submit`: a search whose driver outlives this terminal."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator.cli.advance import cron_lines, write_cron_script
from orchestrator.cli.drive import create_from_file
from orchestrator.cli.driver_errors import exit_on_driver_errors, resume_fix
from orchestrator.cli.driver_job import driver_job_time_s, submit_driver
from orchestrator.cli.dry_run import DryRunOptions
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import (
    AsJob,
    AsJson,
    ByCron,
    DryRun,
    ExecutorName,
    JobTime,
    LauncherKind,
    LedgerUrl,
    NoService,
    Overrides,
    SamplerName,
    Scripts,
    SearchFilePath,
    WorkDir,
    to_overrides,
)
from orchestrator.cli.output import exit_with_error, print_result
from orchestrator.cli.ray_driver import require_local_driver, wants_ray
from orchestrator.cli.serve import hand_over_to_service
from search_spaces.errors import InputError, Problem
from trials.files.text import tail

if TYPE_CHECKING:
    from orchestrator.lifecycle.create import RunnableSearch
    from trials.files.folders import SearchFolder


SUBMIT_SCHEMA = "parlay.submit/1"

DRIVER_START_LIMIT_S = 90.0


def submit(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    by_cron: ByCron = False,
    no_service: NoService = False,
    executor: ExecutorName = "thread",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search in the background: the driver outlives this terminal."""
    changes = to_overrides(sets, launcher, sampler, work_dir, ledger)
    job_time_s = driver_job_time_s(as_job, job_time)
    if wants_ray(executor):
        require_local_driver(as_job, by_cron)
    if by_cron and as_job:
        rule = "a search has one kind of driver"
        raise InputError.of(
            "usage", "cannot be combined with --as-job", rule=rule, fix="leave out one of them", key="--cron"
        )
    if (
        started := create_from_file(search_file, changes, DryRunOptions(dry_run, scripts), as_json, as_job, by_cron)
    ) is None:
        return
    if job_time_s is not None:
        submit_driver_job(started, job_time_s, as_json)
    elif by_cron:
        _leave_to_cron(started, as_json)
    else:
        _leave_to_process(started, executor, no_service, as_json)


def submit_driver_job(started: RunnableSearch, job_time_s: float, as_json: bool) -> None:
    """Submit the job that drives the search, unless it has a driver."""
    folder = started.folder
    with exit_on_driver_errors(folder, as_json):
        job_id = submit_driver(folder, started.spec, started.ledger_url, job_time_s, as_json)
    print_result(
        submitted_json(folder, job_id=job_id),
        as_json,
        f"search {folder.search_id} is driven by Slurm job {job_id}; its log is {folder.driver_log}\n"
        f"status: parlay status {folder.path}    cancel: parlay cancel {folder.path}",
    )


def _leave_to_cron(started: RunnableSearch, as_json: bool) -> None:
    """Print the lines for crontab and scrontab, which the user installs."""
    folder = started.folder
    write_cron_script(folder, started.ledger_url)
    crontab, scrontab = cron_lines(folder, started.spec)
    print_result(
        submitted_json(folder, crontab=crontab, scrontab=scrontab),
        as_json,
        "\n".join(
            [
                f"search {folder.search_id} is waiting for cron. For `crontab -e`:",
                crontab,
                "or, if the site has it, for `scrontab -e`:",
                *scrontab,
                f"its log is {folder.driver_log}; remove the lines once `parlay status {folder.cli_name}` says that"
                " it has ended",
            ]
        ),
    )


def _leave_to_process(started: RunnableSearch, executor: str, no_service: bool, as_json: bool) -> None:
    """Hand the search over to the user's service if one runs, else start a driver process."""
    folder = started.folder
    pid = None if no_service else hand_over_to_service(folder, started.spec, started.ledger_url)
    words = "is driven by the service, process" if pid else "runs as process"
    pid = pid or _start_driver(folder, started.ledger_url, executor, as_json)
    print_result(
        submitted_json(folder, pid=pid),
        as_json,
        f"search {folder.search_id} {words} {pid}; its log is {folder.driver_log}\n"
        f"status: parlay status {folder.cli_name}    cancel: parlay cancel {folder.cli_name}",
    )


def submitted_json(folder: SearchFolder, **driven_by: Any) -> dict[str, Any]:
    """The contract's object of `parlay submit`, with the kind of driver."""
    return {"schema": SUBMIT_SCHEMA, "search_id": folder.search_id, "folder": str(folder.path), **driven_by}


def _start_driver(folder: SearchFolder, url: str, executor: str, as_json: bool) -> int:
    """Start `parlay resume` in a new session, wait until it holds the search, and return its pid."""
    from orchestrator.lifecycle.driver_job import parlay_command

    command = parlay_command("resume", str(folder.path), "--ledger", url, "--executor", executor)
    created = _fencing(folder)
    log_file = os.open(folder.driver_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file, start_new_session=True
        )
    finally:
        os.close(log_file)
    deadline = time.monotonic() + DRIVER_START_LIMIT_S
    while _fencing(folder) == created:
        if child.poll() is not None:
            _fail_to_start(folder, f"the driver ended with status {child.returncode}", as_json)
        if time.monotonic() > deadline:
            child.terminate()
            _fail_to_start(folder, f"the driver did not start within {DRIVER_START_LIMIT_S:.0f} s", as_json)
        time.sleep(0.1)
    return child.pid


def _fencing(folder: SearchFolder) -> int:
    """Number of the search's newest lease, which grows with every driver; 0 before the first."""
    from orchestrator.search.lease import current_lease

    lease = current_lease(folder)
    return 0 if lease is None else lease.fencing


def _fail_to_start(folder: SearchFolder, what: str, as_json: bool) -> NoReturn:
    words = f"{what}\n{tail(folder.driver_log, 5)}"
    problem = Problem("driver", words, fix=f"see {folder.driver_log}, then {resume_fix(folder)}")
    exit_with_error(ExitCode.REFUSED, problem, as_json)
