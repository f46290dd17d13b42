"""Implements `--executor ray`: this process starts a Ray actor as the driver and waits for it."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from orchestrator.cli.driver_errors import exit_code_of, print_search, resume_fix
from orchestrator.cli.exit_codes import ExitCode, code_after
from orchestrator.cli.output import Exit, exit_with_error, log, warn
from orchestrator.lifecycle.signals import CancelOnSignal
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.lifecycle.create import RunnableSearch
    from orchestrator.service.driver_session import DriverResult

_LOOK_S = 0.2


def wants_ray(executor: str) -> bool:
    """True if `--executor` is ray. Raises InputError for an unknown executor."""
    if executor == "thread":
        return False  # without importing Ray
    from orchestrator.service.executors import ExecutorKind, executor_named

    return executor_named(executor) is ExecutorKind.RAY


def require_local_driver(as_job: bool, by_cron: bool) -> None:
    """Raise InputError if --executor is combined with a driver in a job or under cron."""
    if as_job or by_cron:
        rule = "a driver in a Slurm job or under cron starts no Ray"
        raise InputError.of(
            "usage", "is only for a driver on this machine", rule=rule, fix="leave it out", key="--executor"
        )


def drive_in_ray(started: RunnableSearch, as_json: bool) -> None:
    """Drive the search in a Ray actor, and exit with the contract's code.

    A signal stops it at its next safe point and leaves trials in flight running.
    """
    from orchestrator.records.lookup import find_search

    stop = CancelOnSignal()
    log(f"driven in Ray; its log is {started.folder.driver_log}")
    result = _run_session(started, stop)
    record = find_search(str(started.folder.path), started.ledger_url).record
    if result.detail:
        _fail(result, started, as_json)
    print_search(record, started.folder, started.spec, as_json)
    if not record.state.is_ended:
        warn(f"stopped; nothing is lost: {resume_fix(started.folder)}")
        raise Exit(code_after(stop))
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def _run_session(started: RunnableSearch, stop: CancelOnSignal) -> DriverResult:
    from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession
    from orchestrator.service.executors import ExecutorKind, make_executor

    with stop.handling(), closing(make_executor(ExecutorKind.RAY)) as executor:
        running = executor.start(DriverSession(started.folder.path.absolute(), started.ledger_url))
        has_asked = False
        while executor.is_alive:  # any call to a dead Ray would end this process
            if (result := executor.result(running)) is not None:
                return result
            if stop.is_requested() and not has_asked:
                executor.stop(running)
                has_asked = True
            time.sleep(_LOOK_S)
    return DriverResult(DriverExit.LOST, "Ray has died, and the driver with it; nothing is lost")


def _fail(result: DriverResult, started: RunnableSearch, as_json: bool) -> NoReturn:
    """Exit with the error that ended the actor's session, as exit_on_driver_errors does for this process."""
    from orchestrator.search.lease import HELD_FIX
    from orchestrator.service.driver_session import DriverExit

    if result.end is DriverExit.HELD:
        exit_with_error(ExitCode.HELD_BY_ANOTHER, Problem("held", result.detail, fix=HELD_FIX), as_json)
    code = ExitCode.BAD_INPUT if result.end is DriverExit.REFUSED else ExitCode.REFUSED
    exit_with_error(code, Problem("refused", result.detail, fix=resume_fix(started.folder)), as_json)
