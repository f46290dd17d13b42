"""Driver of a search, with its launcher, sampler and program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import cache

from orchestrator.config.fork_servers import launcher_with_servers
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.fabric import fabric_program
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.lifecycle.driver_job_usage import usage_of_ended_jobs
from orchestrator.lifecycle.ending import attempt_factory_of
from orchestrator.lifecycle.lock import SearchLock
from orchestrator.lifecycle.observers import Observers
from orchestrator.lifecycle.pilot_cleanup import has_unaccounted_pilots
from orchestrator.planning.plan import predictor, task_of
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.experiment import limits_of, sampler_of
from orchestrator.search.own_job import OwnJob
from orchestrator.search.stopping import remaining_work
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind, SearchRecord
from trials.ledger.reader import LedgerReader

_log = logging.getLogger(__name__)


@contextmanager
def building_driver(
    lock: SearchLock,
    spec: SearchSpec,
    candidates: Sequence[Layout],
    observers: Observers,
    is_ending: bool,
    own_job: OwnJob | None,
) -> Iterator[Driver]:
    """The driver of a held search; its launcher is closed after the block. The sampler is made when it is first asked:
    by then the search knows its links."""
    folder, history = lock.folder, lock.history
    with (
        closing(_launcher_for(lock, spec) if needs_launcher(lock, is_ending) else LocalLauncher(())) as launcher,
        closing(LedgerReader(lock.ledger_url)) as reader,
    ):
        history.clock = launcher.now
        _record_ended_driver_jobs(folder, history, own_job)
        prior_trials = () if is_ending else load_prior_trials(folder)
        task = cache(lambda: task_of(spec.with_measured_links(history.search.fabric_check), prior_trials))
        predict = cache(lambda: predictor(task()))
        callbacks = DriverCallbacks(
            on_event=observers.on_event,
            cancel_requested=lambda: is_ending or bool(reader.pending_commands(folder.search_id)),
            heartbeat=observers.heartbeat,
            predict=lambda layout: predict()(layout),
            grant_slots=observers.host.grant_slots,
            after_launches=observers.after_launches,
        )
        yield Driver(
            history,
            replace(attempt_factory_of(folder, spec), taken=lock.taken),
            lambda: sampler_of(spec, candidates, task()),
            launcher,
            _objective(spec),
            limits_of(spec),
            callbacks,
            own_job,
            fabric_check=fabric_program(spec, candidates),
        )


def needs_launcher(lock: SearchLock, is_ending: bool) -> bool:
    """False for a search that is only to be ended and has no attempt, check or pilot that may still run."""
    search = lock.history.search
    is_checking = search.fabric_check is not None and search.fabric_check.is_in_flight
    return not is_ending or is_checking or bool(search.in_flight) or has_unaccounted_pilots(lock.folder, search)


def _launcher_for(lock: SearchLock, spec: SearchSpec) -> Launcher:
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


def _objective(spec: SearchSpec) -> SearchObjective:
    first = () if spec.baseline is None else (spec.baseline,)
    return SearchObjective(spec.objective, spec.global_batch_size, first, spec.memory_headroom, spec.objectives[1:])


def _record_ended_driver_jobs(folder: SearchFolder, history: EventStore, own_job: OwnJob | None) -> None:
    """Record what the jobs of earlier drivers have held, by Slurm's start and end, where there were any."""
    if not folder.driver_script.exists():
        return
    from slurm.client import SlurmClient

    for job_id, usage in usage_of_ended_jobs(SlurmClient(), history.search, own_job).items():
        history.record(EventKind.DRIVER_JOB_USED, job_id=job_id, **asdict(usage))


def _remaining_work_of(spec: SearchSpec, history: EventStore) -> Callable[[], RemainingWork]:
    """Work that the search may still do in pilots, by its record."""
    limits = limits_of(spec)
    finalists = limits.finalists + spec.num_node_counts - 1 + (spec.baseline is not None)
    return lambda: remaining_work(history.search, limits, finalists, history.clock())


def _latest_timestamp(search: SearchRecord) -> float:
    """Latest timestamp in the search's record, UTC seconds since the epoch: a simulated clock continues from there."""
    known = [(a.submitted_at, a.started_at, a.ended_at) for t in search.trials for a in t.attempts]
    return max([search.created_at, *(moment for moments in known for moment in moments if moment is not None)])
