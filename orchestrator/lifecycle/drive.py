"""A driver of a search, from its lease to what a session writes at its end, and its launcher."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache

from dashboards.mlflow.sync import MlflowSync
from orchestrator.config.fork_servers import launcher_with_servers
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.fabric import fabric_program
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.lifecycle.lock import SearchLock, acquire_search
from orchestrator.lifecycle.observers import Observers, attempt_factory_of
from orchestrator.planning.plan import predictor, task_of
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.records.integrity import require_current_journal, require_unchanged_files
from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.samplers.base import without
from orchestrator.search.samplers.factory import sampler_of
from orchestrator.search.stopping import limits_of, remaining_work
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.reader import LedgerReader
from trials.pilot.files import PilotFolder

_log = logging.getLogger(__name__)


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
        has_launcher = not history.search.state.is_ended and _needs_launcher(lock, is_ending)
        if not is_ending:
            require_unchanged_files(folder, history.search)
            require_current_journal(folder, history.search)
        with (
            closing(_search_launcher(lock, spec) if has_launcher else LocalLauncher(())) as launcher,
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


def _search_launcher(lock: SearchLock, spec: SearchSpec) -> Launcher:
    """The launcher of a held search; a simulated clock continues from the record."""
    launcher, remark = make_launcher(
        launcher_with_servers(spec),
        parallel_trials=spec.search.parallel_trials,
        cluster=spec.cluster,
        not_before=_latest_timestamp(lock.history.search),
        before_command=lock.heartbeat,
        handover=lock.folder.launcher,
        remaining_work=_remaining_work_of(spec, lock.history),
    )
    if remark:
        _log.warning(remark)
    return launcher


def _remaining_work_of(spec: SearchSpec, history: EventStore) -> Callable[[], RemainingWork]:
    """Work that the search may still do in pilots, by its record."""
    limits = limits_of(spec)
    finalists = limits.finalists + spec.num_node_counts - 1 + (spec.baseline is not None)
    return lambda: remaining_work(history.search, limits, finalists, history.clock())


def _latest_timestamp(search: SearchRecord) -> float:
    """Latest timestamp in the search's record, UTC seconds since the epoch: a simulated clock continues from there."""
    known = [(a.submitted_at, a.started_at, a.ended_at) for a in search.attempts]
    return max([search.created_at, *(moment for moments in known for moment in moments if moment is not None)])


def _needs_launcher(lock: SearchLock, is_ending: bool) -> bool:
    """False for a search that is only to be ended and has no attempt or pilot that may still run."""
    search = lock.history.search
    return not is_ending or bool(search.in_flight) or bool(search.open_pilots)


def end_pilots(folder: SearchFolder, spec: SearchSpec) -> list[str]:
    """End the pilots of a search that has ended; returns names of jobs that may still run.

    Slurm is not queried if the folder shows that all have ended.
    """
    left = _open_pilots(folder)
    if not left or not spec.launcher.has_pilots:
        return []
    launcher, _ = make_launcher(
        spec.launcher,
        parallel_trials=spec.search.parallel_trials,
        cluster=spec.cluster,
        handover=folder.launcher,
        remaining_work=lambda: RemainingWork(1, 1),  # submits no more pilots
    )
    with closing(launcher):
        try:
            return launcher.cancel_leftovers()
        except OSError as error:
            _log.warning(f"{folder.pilots} does not answer: {error}")
            return [f"{folder.search_id}.{pilot.name}" for pilot in left]


def _open_pilots(folder: SearchFolder) -> list[PilotFolder]:
    """Pilots that may hold nodes or wait for them, by the files in their folders. One whose agent has ended may be back
    in the queue."""
    pilots = [PilotFolder(path) for path in sorted(folder.pilots.glob("p*"))]
    return [p for p in pilots if p.plan.exists() and not p.job_end.exists()]
