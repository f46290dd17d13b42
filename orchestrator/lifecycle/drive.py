"""One driver session of a search: take the lease, build launcher and sampler, run the loop, and finish cleanly."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from dashboards.mlflow.background import MlflowWorker
from dashboards.mlflow.sync import MlflowSync, import_mlflow
from dashboards.report.background import ReportWorker
from orchestrator.common import background_imports
from orchestrator.config.fork_servers import launcher_with_servers
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.fabric import fabric_program
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.lifecycle.driver_job_usage import usage_of_ended_jobs
from orchestrator.lifecycle.lock import SearchLock, acquire_search
from orchestrator.lifecycle.notifier import Notifier
from orchestrator.lifecycle.pilot_cleanup import end_pilots, has_unaccounted_pilots
from orchestrator.lifecycle.shutdown import MLFLOW_FLUSH_TIMEOUT_S, MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S, flush_on_exit
from orchestrator.planning.plan import predictor, task_of
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.preflight.integrity import require_current_journal, require_unchanged_files
from orchestrator.preflight.trainer import python_of
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.write import write_recipe
from orchestrator.records.observations import write_measured_table
from orchestrator.samplers.cost_model_posterior import TuningTask
from orchestrator.samplers.deferred import DeferredSampler
from orchestrator.samplers.factory import SAMPLERS
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.experiment import limits_of, sampler_of
from orchestrator.search.own_job import OwnJob
from orchestrator.search.stopping import remaining_work
from search_spaces.layouts.layout import Layout
from trials.analysis.verdict import baseline_of
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.location import home_folder
from trials.ledger.reader import LedgerReader

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SearchCallbacks:
    """Callbacks of a running search.

    `on_event` gets every recorded event; after its first OSError (a closed terminal, a full disk) it is not called
    again and the search goes on. `driver_context` is entered around the loop, `on_iteration` is called in each
    iteration, and `grant_slots` limits the new trials (as in DriverCallbacks). `own_job` is the Slurm job that the
    driver runs in.
    """

    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    driver_context: Callable[[Driver], AbstractContextManager[None]] = lambda driver: nullcontext()
    on_iteration: Callable[[], None] = lambda: None
    grant_slots: Callable[[int, int], int] = lambda held, more: more
    own_job: OwnJob | None = None


def open_tracking(spec: SearchSpec) -> MlflowSync | None:
    """Connect to MLflow and look up its experiment; None where the search file disables tracking.

    InputError for a setting the user has to change; an unreachable store is only noted.
    """
    sync = make_tracking(spec)
    if sync is not None and (remark := sync.check()) is not None:
        _log.warning(remark)
    return sync


def make_tracking(spec: SearchSpec) -> MlflowSync | None:
    """Create the MLflow client without contacting MLflow; None where the search file disables tracking."""
    if not spec.tracking.enabled:
        return None
    return MlflowSync(spec.tracking.mlflow_uri, spec.tracking.experiment, home_folder())


def drive(
    folder: SearchFolder,
    spec: SearchSpec,
    candidates: Sequence[Layout],
    tracking: MlflowSync | None,
    ledger_url: str,
    callbacks: SearchCallbacks,
    cancelling: bool = False,
    run_loop: Callable[[Driver], SearchRecord] = Driver.run,
) -> SearchRecord:
    """Run the search to its end, or until it is interrupted; of a search that has ended only write what is missing.

    `cancelling` ends the search instead. `run_loop` is Driver.run, or Driver.advance, which never waits. Raises
    LeaseHeld while another driver holds the search, LeaseLost when another one took it over, InputError when its code
    or search.yaml has changed, ExternalError. The search can be resumed after any of these.
    """
    callbacks = _tolerating_write_errors(callbacks)
    with ExitStack() as stack:
        lock = stack.enter_context(acquire_search(folder, ledger_url))
        history = stack.enter_context(lock.open_history())
        imports = _SlowImports(spec, tracking)
        stack.callback(imports.allow)
        worker = MlflowWorker(tracking, folder, imports.wait) if tracking else None
        observers = _Observers(callbacks, ReportWorker(folder), worker, imports, Notifier(folder, spec))
        stack.callback(observers.report.stop)
        search, flush_timeout_s = history.search, MLFLOW_FLUSH_TIMEOUT_S
        needs_launcher = not search.state.is_ended and _needs_launcher(folder, search, cancelling)
        if not search.state.is_ended:
            if not cancelling:
                require_unchanged_files(folder, search)
                require_current_journal(folder, search)
            driver, search = _run_driver(lock, spec, candidates, history, observers, cancelling, run_loop)
            if driver.is_interrupted and not search.state.is_ended:
                flush_timeout_s = MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S
        if search.state.is_ended:
            if not needs_launcher:  # else its launcher has released them
                end_pilots(folder, spec)
            _finalize(lock, spec, search)
        imports.allow()
        observers.notifier.finish()
        flush_on_exit(lock, spec, search, observers.report, observers.mlflow, flush_timeout_s)
        return search


@dataclass(frozen=True)
class _Observers:
    """Observers of a search: the caller's callbacks, the report, MLflow unless tracking is disabled, the imports
    that begin after the first launch, and notifications."""

    callbacks: SearchCallbacks
    report: ReportWorker
    mlflow: MlflowWorker | None
    imports: _SlowImports
    notifier: Notifier


class _SlowImports:
    """Imports of sampler and MLflow, which would delay the first launch: they begin after the first iteration."""

    def __init__(self, spec: SearchSpec, tracking: MlflowSync | None):
        self._imports = [SAMPLERS[spec.search.sampler].import_packages]
        if tracking is not None:
            self._imports.append(lambda: import_mlflow(tracking.uri))
        self._allowed = threading.Event()

    def begin(self) -> None:
        """Begin the imports, once."""
        if not self._allowed.is_set():
            background_imports.start(self._imports)
            self.allow()

    def allow(self) -> None:
        """Let MLflow import itself: the first iteration is over, or there will be none."""
        self._allowed.set()

    def wait(self) -> None:
        """Wait until MLflow may be imported."""
        self._allowed.wait()
        background_imports.wait()


def _run_driver(
    lock: SearchLock,
    spec: SearchSpec,
    candidates: Sequence[Layout],
    history: EventStore,
    observers: _Observers,
    cancelling: bool,
    run_loop: Callable[[Driver], SearchRecord],
) -> tuple[Driver, SearchRecord]:
    """Build launcher, sampler and driver, and run the loop."""
    folder = lock.folder
    with ExitStack() as stack:
        launcher = stack.enter_context(_launcher_for(folder, spec, history, cancelling, lock.heartbeat))
        history.clock = launcher.now
        own_job = observers.callbacks.own_job
        _record_ended_driver_jobs(folder, history, own_job)
        prior_trials = () if cancelling else load_prior_trials(folder)
        task = cache(lambda: task_of(spec.with_measured_links(history.search.fabric_check), prior_trials))
        sampler = DeferredSampler(spec.search.sampler, lambda: sampler_of(spec, candidates, task()))
        driver_callbacks = stack.enter_context(_driver_callbacks(lock, spec, history, task, observers, cancelling))
        program = replace(attempt_factory_of(folder, spec), taken=lock.taken)
        goal, check = _objective(spec), fabric_program(spec, candidates)
        driver = Driver(
            history, program, sampler, launcher, goal, limits_of(spec), driver_callbacks, own_job, fabric_check=check
        )
        with observers.callbacks.driver_context(driver):
            return driver, run_loop(driver)


def _record_ended_driver_jobs(folder: SearchFolder, history: EventStore, own_job: OwnJob | None) -> None:
    """Record what the jobs of earlier drivers have held, by Slurm's start and end, where there were any."""
    if not folder.driver_script.exists():
        return
    from slurm.client import SlurmClient

    for job_id, usage in usage_of_ended_jobs(SlurmClient(), history.search, own_job).items():
        history.record(EventKind.DRIVER_JOB_USED, job_id=job_id, **asdict(usage))


def _finalize(lock: SearchLock, spec: SearchSpec, search: SearchRecord) -> None:
    """Settle commands and write recipe and measured.csv of an ended search, which a killed driver may have left out."""
    _settle_commands(lock, search)
    if not lock.folder.recipe.exists():
        write_best_recipe(lock.folder, spec, search)
    write_measured_table(lock.folder, spec, search)  # replaces an export from while it ran


def attempt_factory_of(folder: SearchFolder, spec: SearchSpec) -> AttemptFactory:
    """Create the factory of the search's attempts."""
    return AttemptFactory(
        folder,
        spec.model,
        spec.cluster,
        spec.measure,
        python_of(spec),
        trainer=spec.trainer.for_trials(),
        seed=spec.search.seed,
        baseline=spec.baseline,
    )


def write_best_recipe(folder: SearchFolder, spec: SearchSpec, search: SearchRecord) -> Path | None:
    """Write the recipe of the best layout so far and return its path; None where nothing was measured."""
    ranking = spec.ranking_of(search.trials)
    best = ranking.best
    if best is None or best.first.last_attempt is None:
        return None
    baseline = baseline_of(search, ranking, spec.baseline_key)
    trial_spec = attempt_factory_of(folder, spec).spec(best.first, best.first.last_attempt)
    return write_recipe(folder.recipe, RecipeSource(search, best, trial_spec, ranking, baseline), folder.code)


def _tolerating_write_errors(callbacks: SearchCallbacks) -> SearchCallbacks:
    """The same callbacks; after the first OSError `on_event` is not called again."""
    is_broken = False

    def on_event(search: SearchRecord, event: Event) -> None:
        nonlocal is_broken
        try:
            if not is_broken:
                callbacks.on_event(search, event)
        except OSError:
            is_broken = True

    return replace(callbacks, on_event=on_event)


@contextmanager
def _launcher_for(
    folder: SearchFolder,
    spec: SearchSpec,
    history: EventStore,
    cancelling: bool,
    keep: Callable[[], None],
) -> Iterator[Launcher]:
    """The search's launcher; a local one without slots where the search has only to be marked as ended."""
    if not _needs_launcher(folder, history.search, cancelling):
        launcher: Launcher = LocalLauncher(())
    else:
        parallel = spec.search.parallel_trials
        launcher, remark = make_launcher(
            launcher_with_servers(spec),
            parallel_trials=parallel,
            cluster=spec.cluster,
            not_before=_latest_timestamp(history.search),
            before_command=keep,
            handover=folder.launcher,
            remaining_work=_remaining_work_of(spec, history),
        )
        if remark:
            _log.warning(remark)
    with closing(launcher):
        yield launcher


def _needs_launcher(folder: SearchFolder, search: SearchRecord, cancelling: bool) -> bool:
    """False for a search that is to be cancelled and has no attempt, check or pilot that may still run."""
    is_checking = search.fabric_check is not None and search.fabric_check.is_in_flight
    return not cancelling or is_checking or bool(search.in_flight) or has_unaccounted_pilots(folder, search)


def _remaining_work_of(spec: SearchSpec, history: EventStore) -> Callable[[], RemainingWork]:
    """Work that the search may still do in pilots, by its record."""
    limits = limits_of(spec)
    finalists = limits.finalists + spec.num_node_counts - 1 + (spec.baseline is not None)
    return lambda: remaining_work(history.search, limits, finalists, history.clock())


def _latest_timestamp(search: SearchRecord) -> float:
    """Latest timestamp in the search's record, UTC seconds since the epoch: a simulated clock continues from there."""
    known = [(a.submitted_at, a.started_at, a.ended_at) for t in search.trials for a in t.attempts]
    return max([search.created_at, *(moment for moments in known for moment in moments if moment is not None)])


@contextmanager
def _driver_callbacks(
    lock: SearchLock,
    spec: SearchSpec,
    history: EventStore,
    task: Callable[[], TuningTask],
    observers: _Observers,
    cancelling: bool,
) -> Iterator[DriverCallbacks]:
    """Callbacks of the loop: each event goes to MLflow, the report and the caller; at the end the recipe is written."""
    predict = cache(lambda: predictor(task()))
    with closing(LedgerReader(lock.ledger_url)) as reader:

        def on_event(search: SearchRecord, event: Event) -> None:
            if search.state.is_ended:
                _settle_commands(lock, search)
                write_best_recipe(lock.folder, spec, search)
            elif observers.mlflow:  # the end is sent by `flush_on_exit`, with the finished report
                observers.mlflow.submit(search)
            observers.report.submit(search)
            observers.notifier.on_event(search, event)
            observers.callbacks.on_event(search, event)

        def cancel_requested() -> bool:
            return cancelling or bool(reader.pending_commands(lock.folder.search_id))

        def on_iteration() -> None:
            lock.heartbeat()
            observers.notifier.on_iteration(history.search, history.clock())
            observers.callbacks.on_iteration()

        yield DriverCallbacks(
            on_event=on_event,
            cancel_requested=cancel_requested,
            renew_lease=on_iteration,
            predict=lambda layout: predict()(layout),
            grant_slots=observers.callbacks.grant_slots,
            after_launches=observers.imports.begin,
        )


def _objective(spec: SearchSpec) -> SearchObjective:
    first = () if spec.baseline is None else (spec.baseline,)
    return SearchObjective(spec.objective, spec.global_batch_size, first, spec.memory_headroom, spec.objectives[1:])


def _settle_commands(lock: SearchLock, search: SearchRecord) -> None:
    """Mark the commands to an ended search as settled: they are done, or came too late."""
    with closing(LedgerReader(lock.ledger_url)) as reader:
        pending = reader.pending_commands(search.search_id)
    if pending:
        lock.ledger.settle_commands(search.search_id, pending[-1].id, time.time())
