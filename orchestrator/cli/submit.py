"""`parlay submit`: searches whose drivers outlive this terminal.

They are forked from the command where that is safe, else started anew: a fork has imported and validated what a new
interpreter would have to import and validate again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from orchestrator.cli.advance import require_detached_jobs, write_cron_script
from orchestrator.cli.drive import drive_here, drive_in_ray, require_local_driver
from orchestrator.cli.endings import ending, is_whole_process, resumable, resume_fix
from orchestrator.cli.options import (
    SEARCH_FILE_HELP,
    AsJob,
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
    WorkDir,
    require_dry_run,
    to_overrides,
)
from orchestrator.cli.output import Exit, log, print_result, print_text, prints_json, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.service.driver_process import ExecutorKind
from search_spaces.errors import ExternalError, InputError, Problem
from search_spaces.schema.yaml_document import Override
from trials.files.text import tail

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.lifecycle.create import SubmitAnswer, ValidatedSearch
    from orchestrator.lifecycle.drive import RunnableSearch
    from trials.files.folders import SearchFolder


DRIVER_START_LIMIT_S = 90.0
_LOOK_S = 0.02


def submit(
    search_files: Annotated[
        list[Path], typer.Argument(metavar="SEARCH.YAML...", help=f"{SEARCH_FILE_HELP} All are validated first.")
    ],
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    as_job: AsJob = False,
    job_time: JobTime = None,
    by_cron: ByCron = False,
    no_service: NoService = False,
    executor: ExecutorName = ExecutorKind.PROCESS,
    dry_run: DryRun = False,
    scripts: Scripts = None,
) -> None:
    changes = to_overrides(sets, launcher=launcher, sampler=sampler, work_dir=work_dir, ledger=ledger)
    job_time_s = driver_job_time_s(as_job, job_time)
    if as_job or by_cron:
        require_local_driver(executor)
    if by_cron and as_job:
        rule, fix = "a search has one kind of driver", "leave out one of them"
        raise InputError.of("usage", "cannot be combined with --as-job", rule=rule, fix=fix, key="--cron")
    require_dry_run(dry_run, scripts)
    if scripts is not None and len(search_files) > 1:
        rule, fix = "the scripts of two searches have the same names", "one search file at a time"
        raise InputError.of("usage", "is for one search", key="--scripts", value=str(scripts), rule=rule, fix=fix)
    searches = _validated(search_files, partial(_load, changes=changes, as_job=as_job, by_cron=by_cron))
    if dry_run:
        _print_dry_runs(searches, scripts)
        return
    if job_time_s is not None:
        leave: Leave = partial(leave_to_job, job_time_s=job_time_s)
    elif by_cron:
        leave = _leave_to_cron
    else:
        leave = partial(_leave_to_process, in_ray=executor is ExecutorKind.RAY, no_service=no_service)
    if len(searches) == 1:
        submit_one(_created(searches[0]), leave)
    else:
        _submit_many(dict(zip(search_files, searches, strict=True)), leave)


def driver_job_time_s(as_job: bool, job_time: str | None) -> float | None:
    """Return the time limit of the driver's job; None without --as-job. Raises InputError."""
    if as_job:
        from orchestrator.lifecycle.driver_job import job_time_s

        return job_time_s(job_time)
    if job_time is not None:
        rule = "it is the time limit of the driver's job"
        raise InputError.of("usage", "requires --as-job", rule=rule, fix="add --as-job", key="--job-time")
    return None


Leave = Callable[["RunnableSearch"], tuple["SubmitAnswer", str]]
"""Leaves a search to a driver, and says how. Raises LeaseHeld, DriverAlreadyQueued, ExternalError, OSError."""


def submit_one(started: RunnableSearch, leave: Leave) -> None:
    """Leave the search to a driver, and print the result."""
    with resumable(started.folder):
        done = leave(started)
    print_result(*done)


def leave_to_job(started: RunnableSearch, job_time_s: float) -> tuple[SubmitAnswer, str]:
    """Submit the job that drives the search. Raises LeaseHeld and DriverAlreadyQueued where the search has a driver,
    and ExternalError."""
    from orchestrator.lifecycle.driver_job import driver_job, require_slurm, submit_first_link
    from orchestrator.search.lease import require_no_holder
    from slurm.client import SlurmClient

    folder = started.folder
    require_slurm(started.spec)
    require_no_holder(folder, time.time())
    job_id = submit_first_link(SlurmClient(), driver_job(folder, started.spec, started.ledger_url, job_time_s))
    return _answer(folder, job_id=job_id), _driven(folder, f"is driven by Slurm job {job_id}", str(folder.path))


def _answer(folder: SearchFolder, **driven_by: Any) -> SubmitAnswer:
    from orchestrator.lifecycle.create import SubmitAnswer

    return SubmitAnswer(search_id=folder.search_id, folder=str(folder.path), **driven_by)


def _driven(folder: SearchFolder, by: str, name: str) -> str:
    hint = f"status: parlay status {name}    cancel: parlay cancel {name}"
    return f"search {folder.search_id} {by}; its log is {folder.driver_log}\n{hint}"


def _load(file: Path, changes: Sequence[Override], as_job: bool, by_cron: bool) -> ValidatedSearch:
    """Load and validate a search file. Raises InputError and ExternalError."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import validate_search
    from orchestrator.lifecycle.driver_job import require_slurm

    spec = load_search_file(file, changes)
    if as_job:
        require_slurm(spec)
    if by_cron:
        require_detached_jobs(spec.launcher, "--cron")
    return validate_search(spec)


def _created(search: ValidatedSearch) -> RunnableSearch:
    """Log the upper limit of the search's cost, and create it for a driver that takes it. Raises InputError."""
    from orchestrator.cli.plan_answer import describe_upper_limit
    from orchestrator.lifecycle.create import create_search

    log(describe_upper_limit(search.spec, search.space))
    with create_search(search) as started:
        return replace(started, lock=None)


def _validated(files: Sequence[Path], load: Callable[[Path], ValidatedSearch]) -> list[ValidatedSearch]:
    """Validate all files. InputError with the problems of all; of several files each problem names its file."""
    if len(files) == 1:
        return [load(files[0])]
    searches: list[ValidatedSearch] = []
    problems: list[Problem] = []
    for file in files:
        try:
            searches.append(load(file))
        except InputError as error:
            problems += error.at(file=str(file)).problems
        except ExternalError as error:
            raise ExternalError(f"{file}: {error}", error.fix) from error
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return searches


def _print_dry_runs(searches: Sequence[ValidatedSearch], scripts: Path | None) -> None:
    from orchestrator.lifecycle.dry_run import DryRunManyAnswer, dry_run_of

    answers, texts = zip(*(dry_run_of(search.spec, search.space, scripts) for search in searches), strict=True)
    print_result(answers[0] if len(answers) == 1 else DryRunManyAnswer(searches=list(answers)), "\n".join(texts))


def _submit_many(searches: Mapping[Path, ValidatedSearch], leave: Leave) -> None:
    """Submit each search, also after one that cannot be; print what is said of each, or one object of all."""
    from orchestrator.lifecycle.create import FailedSubmission, SubmitManyAnswer
    from orchestrator.lifecycle.driver_job import DriverAlreadyQueued
    from orchestrator.search.lease import LeaseHeld

    done: list[SubmitAnswer] = []
    refused: list[FailedSubmission] = []
    for file, search in searches.items():
        try:
            answer, text = leave(_created(search))
        except (LeaseHeld, DriverAlreadyQueued, InputError, ExternalError, OSError) as error:
            refused.append(FailedSubmission(file=str(file), message=str(error)))
            warn(f"{file}: {error}")
        else:
            done.append(answer)
            if not prints_json.get():
                print_text(text)
    print_result(SubmitManyAnswer(searches=done, refused=refused))
    if refused:
        raise Exit(ExitCode.REFUSED)


def _leave_to_cron(started: RunnableSearch) -> tuple[SubmitAnswer, str]:
    """Give the lines for crontab and scrontab, which the user installs."""
    from orchestrator.lifecycle.driver_status import cron_job_name
    from slurm.driver_script import crontab_line, driver_options, scrontab_lines

    folder = started.folder
    write_cron_script(folder, started.ledger_url)
    script, options = folder.cron_script.absolute(), driver_options(started.spec.launcher.slurm.job_options())
    crontab, scrontab = crontab_line(script), scrontab_lines(script, cron_job_name(folder.search_id), options)
    lines = [
        f"search {folder.search_id} is waiting for cron. For `crontab -e`:",
        crontab,
        "or, if the site has it, for `scrontab -e`:",
        *scrontab,
        f"its log is {folder.driver_log}; remove the lines once `parlay status {folder.cli_name}` says that it has"
        " ended",
    ]
    return _answer(folder, crontab=crontab, scrontab=scrontab), "\n".join(lines)


def _leave_to_process(started: RunnableSearch, in_ray: bool, no_service: bool) -> tuple[SubmitAnswer, str]:
    """Hand the search over to the user's service if one runs, else start a driver process."""
    folder = started.folder
    pid = None if no_service else hand_over_to_service(folder, started.spec, started.ledger_url)
    words = "is driven by the service, process" if pid else "runs as process"
    pid = pid or _start_driver(started, in_ray)
    return _answer(folder, pid=pid), _driven(folder, f"{words} {pid}", folder.cli_name)


def hand_over_to_service(folder: SearchFolder, spec: SearchSpec, url: str) -> int | None:
    """Have a running service drive the search; return its pid, or None if there is none.

    None, too, if the service uses another Slurm, or the search names a Ray of its own.
    """
    from orchestrator.service.client import running_service
    from slurm.environment import cluster_variables
    from trials.ledger.location import home_folder

    found = None if spec.launcher.address else running_service(home_folder())
    if found is None:
        return None
    client, health = found
    here, there = cluster_variables(os.environ), health["slurm"]
    other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    try:
        if spec.launcher.uses_slurm and other:
            raise ExternalError(f"the service (process {health['pid']}) has another {', '.join(other)}")
        client.resume(folder.search_id, folder.path, url)
    except ExternalError as refused:
        warn(f"{refused}; starting a separate driver process")
        return None
    return int(health["pid"])


def _start_driver(started: RunnableSearch, in_ray: bool) -> int:
    """Start the driver in a new session, wait until it holds the search, and return its pid. ExternalError where it
    ends before."""
    from orchestrator.lifecycle.driver_job import parlay_command

    folder = started.folder
    created = _fencing(folder)
    if can_fork():
        driver = _fork_detached(partial(drive_in_ray if in_ray else drive_here, started), folder.driver_log)
    else:
        executor = ("--executor", "ray") if in_ray else ()
        command = parlay_command("resume", str(folder.path), "--ledger", started.ledger_url, *executor)
        driver = _start_detached(command, folder.driver_log)
    deadline = time.monotonic() + DRIVER_START_LIMIT_S
    while _fencing(folder) == created:
        if (status := driver.poll()) is not None:
            raise _not_started(folder, f"the driver ended with status {status}")
        if time.monotonic() > deadline:
            driver.terminate()
            raise _not_started(folder, f"the driver did not start within {DRIVER_START_LIMIT_S:.0f} s")
        time.sleep(_LOOK_S)
    return driver.pid


def _fencing(folder: SearchFolder) -> int:
    """Number of the search's newest lease, which grows with every driver; 0 before the first."""
    from orchestrator.search.lease import current_lease

    lease = current_lease(folder)
    return 0 if lease is None else lease.fencing


def _not_started(folder: SearchFolder, what: str) -> ExternalError:
    words = f"{what}\n{tail(folder.driver_log, 5)}"
    return ExternalError(words, f"see {folder.driver_log}, then {resume_fix(folder)}")


_HAVE_THREADS = frozenset({"mlflow", "ray", "grpc", "torch", "psycopg", "pyarrow"})
"""Packages whose threads and connections a fork would lack. OpenBLAS, which numpy loads, handles forks itself."""


def can_fork() -> bool:
    """True if a fork of this process has all that the process has: one thread, and no package with others.

    False, too, if this process imports from its working directory (`python -m` without -P): a driver does not.
    """
    is_alone = threading.active_count() == 1 and not _HAVE_THREADS & sys.modules.keys()
    return is_whole_process.get() and is_alone and (sys.flags.safe_path or sys.path[0] not in ("", os.getcwd()))


def _start_detached(command: Sequence[str], log: Path) -> DetachedProcess:
    """Start the command in a session of its own, with its output in `log`. Raises OSError."""
    output = _opened(log)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    finally:
        os.close(output)


def _fork_detached(command: Callable[[], None], log: Path) -> DetachedProcess:
    """Run the command in a copy of this process, as `_start_detached` does; only where `can_fork`. Raises OSError.

    The copy ends with the command: this function raises Exit in it. No connection to a database may be open.
    """
    output, nothing = _opened(log), os.open(os.devnull, os.O_RDONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()  # else both processes would write what is left
    if (pid := os.fork()) == 0:
        _run_copy(command, output, nothing)
    os.close(output)
    os.close(nothing)
    return _Fork(pid)


class _Fork:
    """As subprocess.Popen."""

    def __init__(self, pid: int):
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


DetachedProcess = subprocess.Popen[bytes] | _Fork


def _run_copy(command: Callable[[], None], output: int, nothing: int) -> NoReturn:
    """Leave terminal, session and files of the original process, and run the command to its end."""
    with ending(as_json=False) as end:
        os.setsid()
        for stream, file in enumerate((nothing, output, output)):
            os.dup2(file, stream)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        command()
    raise Exit(ExitCode(end.code))


def _opened(log: Path) -> int:
    return os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
