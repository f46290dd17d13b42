"""Creates a search and drives it in this process: shared by run, submit and resume."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrator.cli.advance import require_detached_jobs
from orchestrator.cli.driver_errors import exit_code_of, exit_on_driver_errors, print_search, resume_fix
from orchestrator.cli.exit_codes import ExitCode, code_after
from orchestrator.cli.options import naming_options
from orchestrator.cli.output import Exit, log, warn
from orchestrator.common.logs import is_quiet, use_times_in

if TYPE_CHECKING:
    from orchestrator.cli.options import Change
    from orchestrator.lifecycle.create import RunnableSearch, ValidatedSearch
    from orchestrator.lifecycle.driver_job import DriverChain
    from orchestrator.lifecycle.signals import DriverSignals
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord


class DriverKind(Enum):
    """Kind of process that drives a search."""

    PROCESS = auto()
    JOB = auto()
    CRON = auto()


def validate_file(search_file: Path, changes: Sequence[Change], driver: DriverKind) -> ValidatedSearch:
    """Validate a search file and the search in it. Raises InputError and ExternalError."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import validate_search
    from orchestrator.lifecycle.driver_job import require_slurm

    with naming_options(changes):
        spec = load_search_file(search_file, [change.text for change in changes])
        if driver is DriverKind.JOB:
            require_slurm(spec)
        if driver is DriverKind.CRON:
            require_detached_jobs(spec.launcher, "--cron")
        return validate_search(spec)


def create_search(search: ValidatedSearch, changes: Sequence[Change]) -> RunnableSearch:
    """Log the upper limit of the search's cost, and create it. Raises InputError."""
    from orchestrator.cli.search_summary import describe_upper_limit
    from orchestrator.lifecycle.create import create_runnable_search

    with naming_options(changes):
        log(describe_upper_limit(search.spec, search.space))
        return create_runnable_search(search)


def drive_here(started: RunnableSearch, as_json: bool, chain: DriverChain | None = None) -> None:
    """Drive the search in this process with a live view, and exit with the contract's code.

    A driver in a Slurm job has a `chain`, which handles its signals and submits the next job.
    """
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import SearchCallbacks, drive
    from orchestrator.lifecycle.signals import DriverSignals

    spec, folder = started.spec, started.folder
    use_times_in(folder.driver_log)
    signals = DriverSignals()
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, sys.stderr)
    callbacks = SearchCallbacks(driver_context=signals.handling)
    if not is_quiet():
        callbacks = replace(callbacks, on_event=view.update)
    with (
        exit_on_driver_errors(folder, as_json),
        nullcontext() if chain is None else chain.handling_signals(),
        nullcontext() if is_quiet() else view,
    ):
        if chain is not None:
            chain.wait_for_lease(folder)
            callbacks = chain.attach_to(callbacks)
        record = drive(folder, spec, started.candidates, started.tracking, started.ledger_url, callbacks)
        if chain is not None:
            chain.finish(record.state.is_ended)
    print_search(record, folder, spec, as_json)
    if not record.state.is_ended:
        _exit_unended(record, folder, signals, chain)
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def _exit_unended(
    record: SearchRecord, folder: SearchFolder, signals: DriverSignals, chain: DriverChain | None
) -> NoReturn:
    if jobs := [f"{a.trial}.{a.attempt} ({a.job_id})" for a in record.in_flight if a.job_id is not None]:
        warn(f"left in flight, with the launcher's ids: {', '.join(jobs)}")
    if chain is not None and chain.has_next_link:
        log("stopped; the next job of the chain continues the search")
        raise Exit(ExitCode.SUCCESS)
    warn(f"stopped; nothing is lost: {resume_fix(folder)}")
    raise Exit(code_after(signals) if chain is None else ExitCode.STOPPED_EARLY)
