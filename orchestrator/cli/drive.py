"""`parlay run` and `parlay resume`, and the driver: what `resume` does, and `run` and `submit` with a search that they
created.

A process, a Ray actor, a Slurm job and cron start it, and read its exit code.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.endings import resumable, resume_fix
from orchestrator.cli.options import (
    Against,
    AgainstLayouts,
    AsJob,
    DryRun,
    ExecutorName,
    JobTime,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    Scripts,
    SearchFilePath,
    SearchId,
    WorkDir,
    require_dry_run,
    to_overrides,
)
from orchestrator.cli.output import Exit, exit_with, log, print_result, prints_json, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.logs import is_quiet, use_times_in
from orchestrator.service.driver_process import DriverExit, DriverProcess, ExecutorKind
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.lifecycle.drive import RunnableSearch
    from orchestrator.lifecycle.driver_job import DriverChain
    from orchestrator.lifecycle.signals import StopSignals
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord

_LOOK_S = 0.2


def run(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    against: Against = None,
    layouts: AgainstLayouts = None,
    executor: ExecutorName = ExecutorKind.PROCESS,
    dry_run: DryRun = False,
    scripts: Scripts = None,
) -> None:
    from orchestrator.cli.plan_answer import describe_upper_limit
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import create_search, validate_search
    from orchestrator.lifecycle.dry_run import dry_run_of

    if against is not None and Path(against).is_file():  # an interpreter of the working directory
        against = str(Path(against).absolute())
    named = {"launcher": launcher, "sampler": sampler, "work_dir": work_dir, "ledger": ledger}
    changes = to_overrides(sets, **named, against=against, layouts=layouts)
    require_dry_run(dry_run, scripts)
    with ExitStack() as held:
        search = validate_search(load_search_file(search_file, changes))
        if dry_run:
            print_result(*dry_run_of(search.spec, search.space, scripts))
            return
        log(describe_upper_limit(search.spec, search.space))
        started = held.enter_context(create_search(search))
        log(f"search {started.folder.search_id} in {started.folder.path}")
        if executor is ExecutorKind.RAY:
            held.close()  # for the driver in Ray
            drive_in_ray(started)
        else:
            drive_here(started)


def resume(
    search: SearchId = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    executor: ExecutorName = ExecutorKind.PROCESS,
    supervisor: Annotated[int | None, typer.Option(hidden=True)] = None,
    quota: Annotated[Path | None, typer.Option(hidden=True)] = None,
    in_flight: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    from orchestrator.cli.submit import driver_job_time_s, leave_to_job, submit_one
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_own_search

    job_time_s = driver_job_time_s(as_job, job_time)
    if as_job:
        require_local_driver(executor)
    found = find_own_search(search, ledger)
    if supervisor is not None:
        _serve_under(supervisor, found.folder)
    started = reopen_search(found)
    if executor is ExecutorKind.RAY and not found.record.state.is_ended:
        drive_in_ray(started)
    elif quota is not None:
        from orchestrator.service.quota import QuotaFile

        drive_here(started, grant_slots=partial(QuotaFile(quota, in_flight).grant, found.folder.search_id))
    elif job_time_s is None:
        drive_here(started)
    elif (chain := _own_chain(started, job_time_s)) is not None:
        drive_here(started, chain)
    elif found.record.state.is_ended:
        print_search(found.record, found.folder, found.spec)
    else:
        submit_one(started, partial(leave_to_job, job_time_s=job_time_s))


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
    from orchestrator.lifecycle.signals import end_with

    log = os.open(folder.driver_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    os.dup2(log, 2)
    os.close(log)
    use_times_in(folder.driver_log)
    if not end_with(supervisor):
        raise Exit(ExitCode.STOPPED_EARLY)


def drive_here(
    started: RunnableSearch,
    chain: DriverChain | None = None,
    grant_slots: Callable[[int, int], int] | None = None,
) -> None:
    """Drive the search in this process with a live view, and exit with the contract's code.

    A driver in a Slurm job has a `chain`, which handles its signals and submits the next job; one of a service asks it
    for its trials by `grant_slots`.
    """
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import driving
    from orchestrator.lifecycle.signals import StopSignals
    from orchestrator.search.context import NO_CALLBACKS

    spec, folder = started.spec, started.folder
    use_times_in(folder.driver_log)
    signals, callbacks = StopSignals() if chain is None else chain.signals, NO_CALLBACKS
    view = LiveView(sys.stderr)
    if not is_quiet():
        callbacks = replace(callbacks, on_event=view.update)
    if grant_slots is not None:
        callbacks = replace(callbacks, grant_slots=grant_slots)
    with (
        resumable(folder),
        nullcontext() if chain is None else signals.handling(signal.SIGUSR1),
        nullcontext() if is_quiet() else view,
    ):
        if chain is not None:
            chain.wait_for_lease(folder)
            callbacks = replace(callbacks, heartbeat=chain.ensure_next_link)
        with driving(started, callbacks, is_in_job=chain is not None) as driver, ExitStack() as around:
            if chain is None:
                around.enter_context(signals.handling())
            elif not driver.search.state.is_ended:
                around.enter_context(chain.keeping_next_link())
            with signals.stopping(driver):
                record = driver.run()
        if chain is not None:
            chain.finish(record.state.is_ended)
    print_search(record, folder, spec)
    if not record.state.is_ended:
        _exit_unended(record, folder, signals, chain)
    exit_with(exit_code_of(record))


def _exit_unended(
    record: SearchRecord, folder: SearchFolder, signals: StopSignals, chain: DriverChain | None
) -> NoReturn:
    if jobs := [f"{a.trial}.{a.attempt} ({a.job_id})" for a in record.in_flight if a.job_id is not None]:
        warn(f"left in flight, with the launcher's ids: {', '.join(jobs)}")
    if chain is not None and chain.has_next_link:
        log("stopped; the next job of the chain continues the search")
        raise Exit(ExitCode.SUCCESS)
    warn(f"stopped; nothing is lost: {resume_fix(folder)}")
    raise Exit(signals.exit_code if chain is None else ExitCode.STOPPED_EARLY)


def require_local_driver(executor: ExecutorKind) -> None:
    """Raise InputError for an executor other than this process."""
    if executor is not ExecutorKind.PROCESS:
        rule, fix = "a driver in a Slurm job or under cron starts no Ray", "leave it out"
        raise InputError.of("usage", "is only for a driver on this machine", rule=rule, fix=fix, key="--executor")


def drive_in_ray(started: RunnableSearch) -> None:
    """Drive the search in a Ray actor, and exit with the driver's code.

    A signal stops it at its next safe point and leaves trials in flight running.
    """
    from orchestrator.lifecycle.signals import StopSignals
    from orchestrator.records.lookup import find_search

    stop = StopSignals()
    log(f"driven in Ray; its log is {started.folder.driver_log}")
    ended = _run_in_ray(started, stop)
    if ended.problem is not None or not ended.said:
        code = ExitCode.REFUSED if ended.code is None or ended.code < 0 else ExitCode(ended.code)
        problem = ended.problem or {}
        fix = problem.get("fix") or resume_fix(started.folder)
        raise Exit(code, Problem(problem.get("code", "refused"), ended.detail, fix=fix))
    record = find_search(str(started.folder.path), started.ledger_url).record
    print_search(record, started.folder, started.spec)
    if not record.state.is_ended:
        warn(f"stopped; nothing is lost: {resume_fix(started.folder)}")
        raise Exit(stop.exit_code)
    exit_with(exit_code_of(record))


def _run_in_ray(started: RunnableSearch, stop: StopSignals) -> DriverExit:
    from orchestrator.lifecycle.driver_job import parlay_command
    from orchestrator.service.executors import make_executor

    folder = str(started.folder.path.absolute())
    command = parlay_command("resume", folder, "--ledger", started.ledger_url, "--json")
    with stop.handling(), closing(make_executor(ExecutorKind.RAY)) as executor:
        driver = executor.start(DriverProcess(command))
        has_asked = False
        while executor.is_alive:  # any call to a dead Ray would end this process
            if (ended := driver.result()) is not None:
                return ended
            if stop.is_requested() and not has_asked:
                driver.stop()
                has_asked = True
            time.sleep(_LOOK_S)
    return DriverExit(None, {"error": {"message": "Ray has died, and the driver with it; nothing is lost"}})


def print_search(search: SearchRecord, folder: SearchFolder, spec: SearchSpec) -> None:
    """Print the search as `status` does."""
    if prints_json.get():
        from orchestrator.records.summary import status_of

        print_result(status_of(search, spec, folder))
    else:
        from orchestrator.cli.search_summary import print_search_summary

        print_search_summary(search, spec, folder)


def exit_code_of(search: SearchRecord) -> ExitCode:
    """Exit code for a search that has ended."""
    from trials.ledger.events import EndReason

    if search.best_trial is not None:
        return ExitCode.SUCCESS
    return ExitCode.REFUSED if search.end_reason is EndReason.SUBMISSION_REJECTED else ExitCode.NO_MEASUREMENT
