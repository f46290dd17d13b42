"""Implements `--executor ray`: this process starts a Ray actor for the driver and reads its exit code."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING

from orchestrator.cli.driver_errors import exit_code_of, print_search, resume_fix
from orchestrator.cli.output import Exit, exit_with_error, log, warn
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from orchestrator.lifecycle.drive import RunnableSearch
    from orchestrator.lifecycle.signals import CancelOnSignal
    from orchestrator.service.driver_process import DriverExit

_LOOK_S = 0.2


def wants_ray(executor: str) -> bool:
    """True if `--executor` is ray. Raises InputError for an unknown executor."""
    if executor == "process":
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
    """Drive the search in a Ray actor, and exit with the driver's code.

    A signal stops it at its next safe point and leaves trials in flight running.
    """
    from orchestrator.lifecycle.signals import CancelOnSignal, code_after
    from orchestrator.records.lookup import find_search

    stop = CancelOnSignal()
    log(f"driven in Ray; its log is {started.folder.driver_log}")
    ended = _run_driver(started, stop)
    if ended.problem is not None or not ended.said:
        code = ExitCode.REFUSED if ended.code is None or ended.code < 0 else ExitCode(ended.code)
        fix = (ended.problem or {}).get("fix") or resume_fix(started.folder)
        exit_with_error(code, Problem((ended.problem or {}).get("code", "refused"), ended.detail, fix=fix), as_json)
    record = find_search(str(started.folder.path), started.ledger_url).record
    print_search(record, started.folder, started.spec, as_json)
    if not record.state.is_ended:
        warn(f"stopped; nothing is lost: {resume_fix(started.folder)}")
        raise Exit(code_after(stop))
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def _run_driver(started: RunnableSearch, stop: CancelOnSignal) -> DriverExit:
    from orchestrator.lifecycle.driver_job import parlay_command
    from orchestrator.service.driver_process import DriverExit, DriverProcess
    from orchestrator.service.executors import ExecutorKind, make_executor

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
