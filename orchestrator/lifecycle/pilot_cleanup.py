"""Cleanup of a search's pilots after its end: a driver killed at the very end leaves them waiting or idle."""

from __future__ import annotations

import logging
from contextlib import closing

from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.pilot.files import PilotFolder

_log = logging.getLogger(__name__)


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


def has_unaccounted_pilots(folder: SearchFolder, search: SearchRecord) -> bool:
    """True if a pilot may have used nodes that the search's record does not account for."""
    pilots = (PilotFolder(path) for path in folder.pilots.glob("p*"))
    return any(pilot.plan.exists() and pilot.name not in search.pilots for pilot in pilots)


def _open_pilots(folder: SearchFolder) -> list[PilotFolder]:
    """Pilots that may hold nodes or wait for them, by the files in their folders."""
    pilots = [PilotFolder(path) for path in sorted(folder.pilots.glob("p*"))]
    return [p for p in pilots if p.plan.exists() and not (p.job_end.exists() or p.closed.exists())]
