"""Verbs that drive a search: run, submit, resume, cancel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from orchestrator.cli.driver_errors import answer_search, exit_code_of, explained, resume_fix
from orchestrator.cli.driver_job import own_chain, submit_driver, wanted_job_time_s
from orchestrator.cli.dry_run import DryRunWish, answer_dry_run
from orchestrator.cli.exit_codes import ExitCode, code_after
from orchestrator.cli.options import (
    AsJob,
    AsJson,
    ByTicks,
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
    SearchId,
    WorkDir,
    named_as_typed,
    overrides_of,
)
from orchestrator.cli.output import Exit, answer, fail, say
from orchestrator.cli.ray_driver import drive_in_ray, require_here, wants_ray
from orchestrator.cli.serve import hand_over
from orchestrator.cli.tick import require_jobs_that_stay, tick_lines, write_tick_script
from search_spaces.errors import InputError, Problem
from trials.files.text import counted, tail

if TYPE_CHECKING:
    from orchestrator.cli.options import Change
    from orchestrator.lifecycle.create import RunnableSearch
    from orchestrator.lifecycle.driver_job import DriverChain
    from orchestrator.lifecycle.signals import DriverSignals
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord

SUBMIT_SCHEMA = "parlay.submit/1"
DRIVER_START_LIMIT_S = 90.0


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    for verb in (run, submit, resume, cancel):
        app.command()(verb)


def run(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    executor: ExecutorName = "thread",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search, here and now: trials run until the best layout is known or a limit is reached."""
    changes = overrides_of(sets, launcher, sampler, work_dir, ledger)
    drive = drive_in_ray if wants_ray(executor) else _drive
    if (started := _start(search_file, changes, DryRunWish(dry_run, scripts), as_json)) is not None:
        say(f"search {started.folder.search_id} in {started.folder.path}")
        drive(started, as_json)


def submit(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    by_ticks: ByTicks = False,
    no_service: NoService = False,
    executor: ExecutorName = "thread",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search in the background: the driver outlives this terminal."""
    changes = overrides_of(sets, launcher, sampler, work_dir, ledger)
    job_time_s = wanted_job_time_s(as_job, job_time)
    if wants_ray(executor):
        require_here(as_job, by_ticks)
    if by_ticks and as_job:
        rule = "a search has one kind of driver"
        raise InputError.of("usage", "goes without --as-job", rule=rule, fix="leave out one of them", key="--tick")
    if (started := _start(search_file, changes, DryRunWish(dry_run, scripts), as_json, as_job, by_ticks)) is None:
        return
    if job_time_s is not None:
        _submit_driver(started, job_time_s, as_json)
    elif by_ticks:
        _leave_to_ticks(started, as_json)
    else:
        _leave_to_process(started, executor, no_service, as_json)


def resume(
    search: SearchId = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    executor: ExecutorName = "thread",
    as_json: AsJson = False,
) -> None:
    """Go on with a search whose driver has gone: the same trials, none twice."""
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_search

    job_time_s = wanted_job_time_s(as_job, job_time)
    if in_ray := wants_ray(executor):
        require_here(as_job, by_ticks=False)
    found = find_search(search, ledger)
    started = reopen_search(found, say)
    if in_ray and not found.record.state.is_ended:
        drive_in_ray(started, as_json)
    elif job_time_s is None:
        _drive(started, as_json)
    elif (chain := own_chain(started.folder, started.spec, started.ledger_url, job_time_s)) is not None:
        _drive(started, as_json, chain)
    elif found.record.state.is_ended:
        answer_search(found.record, found.folder, found.spec, as_json)
    else:
        _submit_driver(started, job_time_s, as_json)


def cancel(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """End a search and everything it has in flight."""
    from orchestrator.lifecycle import cancel as cancelling
    from orchestrator.records.lookup import find_search

    found = find_search(search, ledger)
    with explained(found.folder, as_json):
        done = cancelling.cancel(found, say)
    record, words = done.record, _cancelled_words(len(done.cancelled))
    answer(done.to_json(), as_json, f"search {record.search_id} is {record.state}; {words}")
    if not done.is_complete:
        say("not ended yet: " + (", ".join(done.unreached) or "its driver has not answered; try again"))
        raise Exit(ExitCode.CANCEL_INCOMPLETE)


def _start(
    search_file: Path,
    changes: Sequence[Change],
    dry_run: DryRunWish,
    as_json: bool,
    as_job: bool = False,
    by_ticks: bool = False,
) -> RunnableSearch | None:
    """Check everything, then write the search down; None after a dry run, which has answered."""
    from orchestrator.cli.search_summary import most_trials_words
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import create_runnable_search, validate_search
    from orchestrator.lifecycle.driver_job import require_slurm

    with named_as_typed(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        if as_job:
            require_slurm(spec)
        if by_ticks:
            require_jobs_that_stay(spec.launcher, "--tick")
        search = validate_search(spec, say)
        if dry_run.is_wanted:
            answer_dry_run(search.spec, search.space, dry_run.scripts, as_json)
            return None
        say(most_trials_words(search.spec, search.space))
        return create_runnable_search(search, say)


def _drive(started: RunnableSearch, as_json: bool, chain: DriverChain | None = None) -> None:
    """Drive the search in this process, show it, and leave with the contract's exit code.

    A driver in a job of its own has a `chain`, which hears its signals and has another job go on.
    """
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import SearchCallbacks, drive
    from orchestrator.lifecycle.signals import DriverSignals

    spec, folder = started.spec, started.folder
    signals = DriverSignals()
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, sys.stderr)
    watcher = SearchCallbacks(say, view.update, signals.handling)
    with explained(folder, as_json), nullcontext() if chain is None else chain.listening(), view:
        if chain is not None:
            chain.wait_for_lease(folder)
            watcher = chain.kept_by(watcher)
        record = drive(folder, spec, started.candidates, started.tracking, started.ledger_url, watcher)
        if chain is not None:
            chain.settle(record.state.is_ended)
    answer_search(record, folder, spec, as_json)
    if not record.state.is_ended:
        _leave_unended(record, folder, signals, chain)
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def _leave_unended(
    record: SearchRecord, folder: SearchFolder, signals: DriverSignals, chain: DriverChain | None
) -> NoReturn:
    if jobs := [f"{a.trial}.{a.attempt} ({a.job_id})" for a in record.in_flight if a.job_id is not None]:
        say(f"left in flight, with what the launcher calls each: {', '.join(jobs)}")
    if chain is not None and chain.has_next:
        say("stopped; the job that waits behind this one goes on")
        raise Exit(ExitCode.SUCCESS)
    say(f"stopped; nothing is lost: {resume_fix(folder)}")
    raise Exit(code_after(signals) if chain is None else ExitCode.STOPPED_EARLY)


def _submit_driver(started: RunnableSearch, job_time_s: float, as_json: bool) -> None:
    """Submit the job that drives the search, unless somebody drives it."""
    folder = started.folder
    with explained(folder, as_json):
        job_id = submit_driver(folder, started.spec, started.ledger_url, job_time_s, as_json)
    answer(
        _submitted(folder, job_id=job_id),
        as_json,
        f"search {folder.search_id} is driven by Slurm job {job_id}; its log is {folder.driver_log}\n"
        f"look: parlay status {folder.path}    end it: parlay cancel {folder.path}",
    )


def _leave_to_ticks(started: RunnableSearch, as_json: bool) -> None:
    """Say what drives the search from now on, which is for the user to set up."""
    folder = started.folder
    write_tick_script(folder, started.ledger_url)
    crontab, scrontab = tick_lines(folder, started.spec)
    answer(
        _submitted(folder, crontab=crontab, scrontab=scrontab),
        as_json,
        "\n".join(
            [
                f"search {folder.search_id} waits for its ticks. For `crontab -e`:",
                crontab,
                "or, where the site has it, for `scrontab -e`:",
                *scrontab,
                f"its log is {folder.driver_log}; take the lines out once `parlay status {folder.called}` says that"
                " it has ended",
            ]
        ),
    )


def _leave_to_process(started: RunnableSearch, executor: str, no_service: bool, as_json: bool) -> None:
    """Have the user's service drive the search, where one runs, or else a process of its own."""
    folder = started.folder
    pid = None if no_service else hand_over(folder, started.spec, started.ledger_url)
    words = "is driven by the service, process" if pid else "runs as process"
    pid = pid or _start_driver(folder, started.ledger_url, executor, as_json)
    answer(
        _submitted(folder, pid=pid),
        as_json,
        f"search {folder.search_id} {words} {pid}; its log is {folder.driver_log}\n"
        f"look: parlay status {folder.called}    end it: parlay cancel {folder.called}",
    )


def _submitted(folder: SearchFolder, **driven_by: Any) -> dict[str, Any]:
    """The contract's object of `parlay submit`, with what drives the search from now on."""
    return {"schema": SUBMIT_SCHEMA, "search_id": folder.search_id, "folder": str(folder.path), **driven_by}


def _start_driver(folder: SearchFolder, url: str, executor: str, as_json: bool) -> int:
    """Start `parlay resume` as a process of its own session and wait until it holds the search; its pid."""
    from orchestrator.lifecycle.driver_job import own_command

    command = own_command("resume", str(folder.path), "--ledger", url, "--executor", executor)
    created = _fencing(folder)
    log = os.open(folder.driver_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)
    deadline = time.monotonic() + DRIVER_START_LIMIT_S
    while _fencing(folder) == created:
        if child.poll() is not None:
            _fail_to_start(folder, f"the driver ended with status {child.returncode}", as_json)
        if time.monotonic() > deadline:
            child.terminate()
            _fail_to_start(folder, f"the driver did not begin within {DRIVER_START_LIMIT_S:.0f} s", as_json)
        time.sleep(0.1)
    return child.pid


def _fencing(folder: SearchFolder) -> int:
    """The number of the search's newest lease, which grows with every driver; 0 before the first."""
    from orchestrator.search import lease as leases

    lease = leases.current(folder)
    return 0 if lease is None else lease.fencing


def _fail_to_start(folder: SearchFolder, what: str, as_json: bool) -> NoReturn:
    words = f"{what}\n{tail(folder.driver_log, 5)}"
    problem = Problem("driver", words, fix=f"see {folder.driver_log}, then {resume_fix(folder)}")
    fail(ExitCode.REFUSED, problem, as_json)


def _cancelled_words(count: int) -> str:
    if count == 0:
        return "no trial was cancelled"
    return f"{counted(count, 'trial')} {'was' if count == 1 else 'were'} cancelled"
