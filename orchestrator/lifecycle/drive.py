"""One driver session of a search: take the lease, run the loop, and finish cleanly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

from dashboards.mlflow.sync import MlflowSync
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.build import building_driver, needs_launcher
from orchestrator.lifecycle.lock import SearchLock, acquire_search
from orchestrator.lifecycle.observers import Observers
from orchestrator.lifecycle.pilot_cleanup import end_pilots
from orchestrator.preflight.integrity import require_current_journal, require_unchanged_files
from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks
from orchestrator.search.driver import Driver
from orchestrator.search.own_job import OwnJob
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord


@dataclass(frozen=True)
class RunnableSearch:
    """A recorded search that can be driven. `candidates` are the layouts that may be tried; a search that `is_ending`
    is only ended. `lock` is that of a search that was just created: it is held until the end of its first session."""

    folder: SearchFolder
    spec: SearchSpec
    candidates: Sequence[Layout]
    tracking: MlflowSync | None
    ledger_url: str
    is_ending: bool = False
    lock: SearchLock | None = None


def drive(
    started: RunnableSearch,
    callbacks: DriverCallbacks = NO_CALLBACKS,
    driver_context: Callable[[Driver], AbstractContextManager[None]] = lambda driver: nullcontext(),
    own_job: OwnJob | None = None,
    run_loop: Callable[[Driver], SearchRecord] = Driver.run,
) -> SearchRecord:
    """Run the search to its end, or until it is interrupted; of a search that has ended only write what is missing.

    `callbacks` are those of the driver's host: after the first OSError (a closed terminal, a full disk) its `on_event`
    is not called again and the search goes on. `driver_context` is entered around the loop, which is Driver.run, or
    Driver.advance, which never waits. `own_job` is the Slurm job that the driver runs in. Raises LeaseHeld while
    another driver holds the search, LeaseLost when another one took it over, InputError when its code or search.yaml
    has changed, ExternalError. The search can be resumed after any of these.
    """
    with ExitStack() as stack:
        lock = started.lock or stack.enter_context(acquire_search(started.folder, started.ledger_url))
        observers = stack.enter_context(Observers(lock, started.spec, started.tracking, callbacks))
        search, is_interrupted = lock.history.search, False
        releases_pilots = not search.state.is_ended and needs_launcher(lock, started.is_ending)
        if not search.state.is_ended:
            if not started.is_ending:
                require_unchanged_files(lock.folder, search)
                require_current_journal(lock.folder, search)
            built = building_driver(lock, started.spec, started.candidates, observers, started.is_ending, own_job)
            with built as driver, driver_context(driver):
                search, is_interrupted = run_loop(driver), driver.is_interrupted
        if search.state.is_ended and not releases_pilots:  # else its launcher has released them
            end_pilots(lock.folder, started.spec)
        observers.finish(search, is_interrupted)
        return search
