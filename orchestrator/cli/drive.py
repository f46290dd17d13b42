"""`parlay run`, and the driver: what `parlay resume` does, and `run` and `submit` with a search that they created.

A process, a Ray actor, a Slurm job and cron start it, and read its exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from orchestrator.cli.driver_errors import exit_code_of, exit_on_driver_errors, print_search, resume_fix
from orchestrator.cli.dry_run import DryRunOptions, print_dry_run
from orchestrator.cli.options import (
    Against,
    AgainstLayouts,
    AsJson,
    DryRun,
    ExecutorName,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    Scripts,
    SearchFilePath,
    WorkDir,
    against_overrides,
    naming_options,
    to_overrides,
)
from orchestrator.cli.output import Exit, log, warn
from orchestrator.cli.ray_driver import drive_in_ray, wants_ray
from orchestrator.common.exit_codes import ExitCode
from orchestrator.common.logs import is_quiet, use_times_in

if TYPE_CHECKING:
    from orchestrator.lifecycle.drive import RunnableSearch
    from orchestrator.lifecycle.driver_job import DriverChain
    from orchestrator.lifecycle.signals import DriverSignals
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord


def run(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    against: Against = None,
    layouts: AgainstLayouts = None,
    executor: ExecutorName = "process",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search in the foreground: trials run until the best layout is known or a limit is reached."""
    from orchestrator.cli.upper_limit import describe_upper_limit
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import create_search, validate_search

    changes = to_overrides(sets, launcher, sampler, work_dir, ledger) + against_overrides(against, layouts)
    in_ray, wanted = wants_ray(executor), DryRunOptions(dry_run, scripts)
    with ExitStack() as held:
        with naming_options(changes):
            search = validate_search(load_search_file(search_file, [change.text for change in changes]))
            if wanted.enabled:
                print_dry_run(search.spec, search.space, wanted.scripts, as_json)
                return
            log(describe_upper_limit(search.spec, search.space))
            started = held.enter_context(create_search(search))
        log(f"search {started.folder.search_id} in {started.folder.path}")
        if in_ray:
            held.close()  # for the driver in Ray
            drive_in_ray(started, as_json)
        else:
            drive_here(started, as_json)


def drive_here(
    started: RunnableSearch,
    as_json: bool,
    chain: DriverChain | None = None,
    grant_slots: Callable[[int, int], int] | None = None,
) -> None:
    """Drive the search in this process with a live view, and exit with the contract's code.

    A driver in a Slurm job has a `chain`, which handles its signals and submits the next job; one of a service asks it
    for its trials by `grant_slots`.
    """
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import driving
    from orchestrator.lifecycle.signals import DriverSignals
    from orchestrator.search.context import NO_CALLBACKS

    spec, folder = started.spec, started.folder
    use_times_in(folder.driver_log)
    signals, callbacks = DriverSignals(), NO_CALLBACKS
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, sys.stderr)
    if not is_quiet():
        callbacks = replace(callbacks, on_event=view.update)
    if grant_slots is not None:
        callbacks = replace(callbacks, grant_slots=grant_slots)
    with (
        exit_on_driver_errors(folder, as_json),
        nullcontext() if chain is None else chain.handling_signals(),
        nullcontext() if is_quiet() else view,
    ):
        if chain is None:
            with driving(started, callbacks) as driver, signals.handling(driver):
                record = driver.run()
        else:
            chain.wait_for_lease(folder)
            callbacks = replace(callbacks, heartbeat=chain.ensure_next_link)
            with driving(started, callbacks, is_in_job=True) as driver, chain.driver_context(driver):
                record = driver.run()
            chain.finish(record.state.is_ended)
    print_search(record, folder, spec, as_json)
    if not record.state.is_ended:
        _exit_unended(record, folder, signals, chain)
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def _exit_unended(
    record: SearchRecord, folder: SearchFolder, signals: DriverSignals, chain: DriverChain | None
) -> NoReturn:
    from orchestrator.lifecycle.signals import code_after

    if jobs := [f"{a.trial}.{a.attempt} ({a.job_id})" for a in record.in_flight if a.job_id is not None]:
        warn(f"left in flight, with the launcher's ids: {', '.join(jobs)}")
    if chain is not None and chain.has_next_link:
        log("stopped; the next job of the chain continues the search")
        raise Exit(ExitCode.SUCCESS)
    warn(f"stopped; nothing is lost: {resume_fix(folder)}")
    raise Exit(code_after(signals) if chain is None else ExitCode.STOPPED_EARLY)
