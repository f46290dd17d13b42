"""Launcher of a search, and the pilots that it leaves: a driver killed at the very end leaves them waiting or idle."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from orchestrator.config.fork_servers import launcher_with_servers
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.lifecycle.lock import SearchLock
from orchestrator.search.event_store import EventStore
from orchestrator.search.stopping import limits_of, remaining_work
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.pilot.files import PilotFolder

_log = logging.getLogger(__name__)


def search_launcher(lock: SearchLock, spec: SearchSpec) -> Launcher:
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


def needs_launcher(lock: SearchLock, is_ending: bool) -> bool:
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
