"""One driver's turn on a search: put the rooms together, take the lease, run the loop, leave everything in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dashboards.mlflow.background import MlflowWorker
from dashboards.mlflow.sync import MlflowSync
from dashboards.report.background import ReportWorker
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.slurm_pilot.sizing import WorkLeft
from orchestrator.lifecycle.lock import SearchLock, acquire_search
from orchestrator.lifecycle.pilot_cleanup import end_pilots, has_unbooked
from orchestrator.lifecycle.shutdown import MLFLOW_FLUSH_TIMEOUT_S, MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S, flush_on_exit
from orchestrator.planning.plan import predictor, task_of
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.preflight.integrity import require_newest_journal, require_unchanged_files
from orchestrator.preflight.trainer import python_of
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.write import write_recipe
from orchestrator.records.observations import write_measured_table
from orchestrator.samplers.cost_model_posterior import TuningTask
from orchestrator.samplers.factory import make_sampler
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.stopping import Limits, remaining_layouts
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, SearchRecord
from trials.ledger.place import home_folder
from trials.ledger.reader import LedgerReader


@dataclass(frozen=True)
class SearchCallbacks:
    """Who is told while a search runs: remarks for the user and changes of state; `driving` is entered around the loop,
    and `keep` called in each of its turns; `grant_slots` limits the new trials.

    A watcher that cannot write any more (a terminal that is gone, a full disk) is not told again, of remarks or of
    changes: it ends no search.
    """

    note: Callable[[str], None] = lambda text: None
    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    driving: Callable[[Driver], AbstractContextManager[None]] = lambda driver: nullcontext()
    keep: Callable[[], None] = lambda: None
    grant_slots: Callable[[int, int], int] = lambda held, more: more


def open_tracking(spec: SearchSpec, note: Callable[[str], None]) -> MlflowSync | None:
    """The way to MLflow, asked for its experiment before the first trial; None where the file wants no tracking.

    InputError for what the user has to change there; a store that is only out of reach is noted.
    """
    sync = tracking_of(spec)
    if sync is not None and (remark := sync.check()) is not None:
        note(remark)
    return sync


def tracking_of(spec: SearchSpec) -> MlflowSync | None:
    """The way to MLflow, which is asked nothing yet; None where the file wants no tracking."""
    if not spec.tracking.enabled:
        return None
    return MlflowSync(spec.tracking.mlflow_uri, spec.tracking.experiment, home_folder())


def drive(
    folder: SearchFolder,
    spec: SearchSpec,
    candidates: Sequence[Layout],
    tracking: MlflowSync | None,
    ledger_url: str,
    watcher: SearchCallbacks,
    cancelling: bool = False,
    go: Callable[[Driver], SearchRecord] = Driver.run,
) -> SearchRecord:
    """Run the search to its end, or until it is interrupted; one that has ended is only left in order.

    `cancelling` ends it instead; `go` is how far the driver goes (Driver.run, Driver.tick). Raises LeaseHeld while
    another driver holds the search, LeaseLost when one took it over, InputError for code that is not the search's own,
    ExternalError. Whatever is raised, it can be resumed.
    """
    watcher = _unbreakable(watcher)
    with ExitStack() as stack:
        lock = stack.enter_context(acquire_search(folder, ledger_url, watcher.note))
        history = stack.enter_context(lock.open_history())
        worker = MlflowWorker(tracking, folder, watcher.note) if tracking else None
        told = _Told(watcher, ReportWorker(folder, watcher.note), worker)
        stack.callback(told.report.stop)
        search, patience_s = history.search, MLFLOW_FLUSH_TIMEOUT_S
        needs_launcher = not search.state.is_ended and _needs_launcher(folder, search, cancelling)
        if not search.state.is_ended:
            if not cancelling:
                require_unchanged_files(folder, search)
                require_newest_journal(folder, search)
            driver, search = _driven(lock, spec, candidates, history, told, cancelling, go)
            if driver.is_interrupted and not search.state.is_ended:
                patience_s = MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S
        if search.state.is_ended:
            if not needs_launcher:  # else its launcher has given everything back
                end_pilots(folder, spec, watcher.note)
            _leave_in_order(lock, spec, search, watcher.note)
        flush_on_exit(lock, spec, search, told.report, told.mlflow, patience_s, watcher.note)
        return search


@dataclass(frozen=True)
class _Told:
    """Who is told of a search while it runs, and of its end; MLflow only where the file wants it."""

    watcher: SearchCallbacks
    report: ReportWorker
    mlflow: MlflowWorker | None


def _driven(
    lock: SearchLock,
    spec: SearchSpec,
    candidates: Sequence[Layout],
    history: EventStore,
    told: _Told,
    cancelling: bool,
    go: Callable[[Driver], SearchRecord],
) -> tuple[Driver, SearchRecord]:
    """The loop, with everything that it needs around it."""
    folder, note = lock.folder, told.watcher.note
    with ExitStack() as stack:
        launcher = stack.enter_context(_launcher_for(folder, spec, history, cancelling, note, lock.keep))
        history.clock = launcher.now
        task = task_of(spec, () if cancelling else load_prior_trials(folder))
        sampler = make_sampler(spec.search.sampler, candidates, task, spec.search.seed, note)
        callbacks = stack.enter_context(_callbacks(lock, spec, task, told, cancelling))
        program = replace(program_of(folder, spec), taken=lock.taken)
        driver = Driver(history, program, sampler, launcher, _goal(spec), _limits(spec), callbacks)
        with told.watcher.driving(driver):
            return driver, go(driver)


def _leave_in_order(lock: SearchLock, spec: SearchSpec, search: SearchRecord, note: Callable[[str], None]) -> None:
    """What a search that has ended leaves behind: an earlier driver may have been killed before it came to that."""
    _settle_commands(lock, search)
    if not lock.folder.recipe.exists():
        write_best_recipe(lock.folder, spec, search)
    write_measured_table(lock.folder, spec, search, note)  # also over what was exported while it ran


def program_of(folder: SearchFolder, spec: SearchSpec) -> AttemptFactory:
    """What all attempts of the search share."""
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
    """The recipe of the best layout so far; None where nothing was measured."""
    ranking = spec.ranking_of(search.trials)
    best = ranking.best
    if best is None or best.last_attempt is None:
        return None
    # As it was ranked, over all its runs; one that was not measured stands in the record alone.
    known = (*ranking.ordered, *search.trials)
    baseline = next((t for t in known if spec.baseline and t.layout.key == spec.baseline.key), None)
    trial_spec = program_of(folder, spec).spec(best, best.last_attempt)
    return write_recipe(folder.recipe, RecipeSource(search, best, trial_spec, ranking, baseline), folder.code)


def _unbreakable(watcher: SearchCallbacks) -> SearchCallbacks:
    """The same watcher, whose first failure to write is its last word."""
    broken = False

    def guarded(tell: Callable[..., None]) -> Callable[..., None]:
        def told(*what: Any) -> None:
            nonlocal broken
            try:
                if not broken:
                    tell(*what)
            except OSError:
                broken = True

        return told

    return replace(watcher, note=guarded(watcher.note), on_event=guarded(watcher.on_event))


@contextmanager
def _launcher_for(
    folder: SearchFolder,
    spec: SearchSpec,
    history: EventStore,
    cancelling: bool,
    note: Callable[[str], None],
    keep: Callable[[], None],
) -> Iterator[Launcher]:
    """The search's launcher; for a search that only has to be ended, and has nothing in flight, one without slots."""
    if not _needs_launcher(folder, history.search, cancelling):
        launcher: Launcher = LocalLauncher(())
    else:
        parallel = spec.search.parallel_trials
        launcher, remark = make_launcher(
            spec.launcher,
            parallel_trials=parallel,
            cluster=spec.cluster,
            not_before=_newest_moment(history.search),
            note=note,
            keep=keep,
            handover=folder.launcher,
            work_left=lambda: _work_left(spec, history),
        )
        if remark:
            note(remark)
    with closing(launcher):
        yield launcher


def _needs_launcher(folder: SearchFolder, search: SearchRecord, cancelling: bool) -> bool:
    """Not for a search that only has to be ended, and has nothing that may run."""
    return not cancelling or bool(search.in_flight) or has_unbooked(folder, search)


def _work_left(spec: SearchSpec, history: EventStore) -> WorkLeft:
    """What the search may still do, as its record stands."""
    search, wanted = history.search, spec.search
    finalists = wanted.finalists + spec.num_node_counts - 1 + (spec.baseline is not None)
    repeats = finalists * wanted.finalist_repeats
    attempts = remaining_layouts(search.num_layouts, _limits(spec)) + len(search.in_flight) + repeats
    budget, wall_s = wanted.budget_node_hours, wanted.max_wall_time_s
    return WorkLeft(
        max(1, attempts),
        wanted.parallel_trials,
        None if budget is None else max(0.0, budget - search.node_hours_used),
        None if wall_s is None else max(0.0, wall_s - (history.clock() - search.created_at)),
        search.pilots,
    )


def _newest_moment(search: SearchRecord) -> float:
    """UTC seconds since the epoch of the last thing the search's record tells of: a simulated clock goes on there."""
    known = [(a.submitted_at, a.started_at, a.ended_at) for t in search.trials for a in t.attempts]
    return max([search.created_at, *(moment for moments in known for moment in moments if moment is not None)])


@contextmanager
def _callbacks(
    lock: SearchLock,
    spec: SearchSpec,
    task: TuningTask,
    told: _Told,
    cancelling: bool,
) -> Iterator[DriverCallbacks]:
    """What the loop calls: the recipe when the search has ended, MLflow, report and watcher after every event."""
    with closing(LedgerReader(lock.ledger_url)) as reader:

        def on_event(search: SearchRecord, event: Event) -> None:
            if search.state.is_ended:
                _settle_commands(lock, search)
                write_best_recipe(lock.folder, spec, search)
            elif told.mlflow:  # the end is sent with the report on it, in the last call
                told.mlflow.submit(search)
            told.report.submit(search)
            told.watcher.on_event(search, event)

        def cancel_requested() -> bool:
            return cancelling or bool(reader.pending_commands(lock.folder.search_id))

        def keep() -> None:
            lock.keep()
            told.watcher.keep()

        yield DriverCallbacks(
            on_event, cancel_requested, keep, told.watcher.note, predictor(task), told.watcher.grant_slots
        )


def _goal(spec: SearchSpec) -> SearchObjective:
    first = () if spec.baseline is None else (spec.baseline,)
    return SearchObjective(spec.objective, spec.global_batch_size, first, spec.memory_headroom, spec.objectives[1:])


def _limits(spec: SearchSpec) -> Limits:
    wanted = spec.search
    return Limits(
        wanted.max_trials,
        wanted.parallel_trials,
        wanted.budget_node_hours,
        wanted.max_wall_time_s,
        wanted.idle_limit_s,
        finalists=wanted.finalists,
        finalist_repeats=wanted.finalist_repeats,
    )


def _settle_commands(lock: SearchLock, search: SearchRecord) -> None:
    """Whatever was asked of a search that has ended is done, or too late."""
    with closing(LedgerReader(lock.ledger_url)) as reader:
        pending = reader.pending_commands(search.search_id)
    if pending:
        lock.ledger.settle_commands(search.search_id, pending[-1].id, time.time())
