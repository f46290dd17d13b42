"""Searches without a driver whose trial or pilot is still in Slurm's hands."""

from __future__ import annotations

from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.search import validate_space
from orchestrator.lifecycle.lock import acquire_search
from tests.kit import created, loaded
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import EventKind
from trials.ledger.location import ledger_url
from trials.pilot.files import PILOT_SCHEMA, PilotFolder, PilotPlan, write


def search_with_a_job(folder: Path) -> SearchFolder:
    """A search without a driver; one of its trials has a job in Slurm."""
    spec = _spec(folder, "slurm")
    search, [layout, *_] = created(spec, ledger_url()), validate_space(spec).layouts
    attempt = {"trial": "t0001", "attempt": "a1"}
    intent = {"nonce": "0" * 32, "num_nodes": 1, "time_limit_s": 630.0, "reserved_s": 722.0}
    intent |= {"is_step": False, "exclude": []}
    with acquire_search(search, ledger_url()) as lock:
        history = lock.history
        history.record(EventKind.SEARCH_STATE, state="running", end_reason=None, detail=None)
        history.record(EventKind.TRIAL_PROPOSED, trial="t0001", layout=layout.to_json(), kind="search", prediction=None)
        history.record(EventKind.ATTEMPT_SUBMITTED, **attempt, **intent)
        history.record(EventKind.ATTEMPT_LAUNCHED, **attempt, job_id="4711")
    return search


def ended_search_with_a_pilot(folder: Path) -> SearchFolder:
    """A cancelled search whose driver was killed before it had ended its pilot, which waits in Slurm's queue."""
    search = created(_spec(folder, "slurm_pilot"), ledger_url())
    with acquire_search(search, ledger_url()) as lock:
        history = lock.history
        history.record(EventKind.SEARCH_STATE, state="cancelled", end_reason="cancelled_by_user", detail=None)
    pilot = PilotFolder(search.pilots / "p0001")
    pilot.steps.mkdir(parents=True)
    write(pilot.plan, PilotPlan(1, 1, 600.0, "python3", str(search.code), 120.0, submitted_at=1_800_000_000.0))
    write_json(pilot.job, {"schema": PILOT_SCHEMA, "job_id": "4711"})
    (pilot.path / "job.sh").write_text("")
    return search


def _spec(folder: Path, kind: str) -> SearchSpec:
    return loaded(folder, tracking={"enabled": False}, launcher={"kind": kind}, work_dir=str(folder / "runs"))
