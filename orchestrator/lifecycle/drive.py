"""A driver of a search, from its lease to what a session writes at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache

from dashboards.mlflow.sync import MlflowSync
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.fabric import fabric_program
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.lifecycle.ending import attempt_factory_of
from orchestrator.lifecycle.launcher import end_pilots, needs_launcher, search_launcher
from orchestrator.lifecycle.lock import SearchLock, acquire_search
from orchestrator.lifecycle.observers import Observers
from orchestrator.planning.plan import predictor, task_of
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.records.integrity import require_current_journal, require_unchanged_files
from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.samplers.base import without
from orchestrator.search.samplers.factory import sampler_of
from orchestrator.search.stopping import limits_of
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.reader import LedgerReader


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


@contextmanager
def driving(
    started: RunnableSearch, callbacks: DriverCallbacks = NO_CALLBACKS, is_in_job: bool = False
) -> Iterator[Driver]:
    """Within this block the search is held and has a driver, to `run` or `advance`; after it, what the session has to
    leave is written. Of a search that has ended the driver does nothing, and only what is missing is written.

    `callbacks` are those of the driver's host: after the first OSError (a closed terminal, a full disk) its `on_event`
    is not called again and the search goes on. `is_in_job` if the driver runs in a Slurm job. Raises LeaseHeld
    while another driver holds the search, LeaseLost when another one took it over, InputError when its code or
    search.yaml has changed, ExternalError. The search can be resumed after any of these.
    """
    spec = started.spec
    with ExitStack() as stack:
        lock = started.lock or stack.enter_context(acquire_search(started.folder, started.ledger_url))
        folder, history = lock.folder, lock.history
        observers = stack.enter_context(Observers(lock, spec, started.tracking, callbacks))
        is_ending = started.is_ending or history.search.state.is_ended
        has_launcher = not history.search.state.is_ended and needs_launcher(lock, is_ending)
        if not is_ending:
            require_unchanged_files(folder, history.search)
            require_current_journal(folder, history.search)
        with (
            closing(search_launcher(lock, spec) if has_launcher else LocalLauncher(())) as launcher,
            closing(LedgerReader(lock.ledger_url)) as reader,
        ):
            history.clock = launcher.now
            prior_trials = () if is_ending else load_prior_trials(folder)
            # Made when the sampler is first asked: by then the search knows its links.
            task = cache(lambda: task_of(spec.with_measured_links(history.search.fabric_check), prior_trials))
            predict = cache(lambda: predictor(task()))
            driver = Driver(
                history,
                replace(attempt_factory_of(folder, spec), taken=lock.taken),
                lambda failing: sampler_of(spec, without(failing, started.candidates), task()),
                launcher,
                _objective(spec),
                limits_of(spec),
                replace(
                    callbacks,
                    on_event=observers.on_event,
                    cancel_requested=lambda: is_ending or bool(reader.pending_commands(folder.search_id)),
                    heartbeat=observers.heartbeat,
                    predict=lambda layout: predict()(layout),
                    after_launches=observers.after_launches,
                ),
                is_in_job,
                fabric_check=fabric_program(spec, started.candidates),
            )
            yield driver
        if driver.search.state.is_ended and not has_launcher:  # else its launcher has released them
            end_pilots(folder, spec)
        observers.finish(driver.search, driver.is_interrupted)


def _objective(spec: SearchSpec) -> SearchObjective:
    first = () if spec.baseline is None else (spec.baseline,)
    return SearchObjective(spec.objective, spec.global_batch_size, first, spec.memory_headroom, spec.objectives[1:])
