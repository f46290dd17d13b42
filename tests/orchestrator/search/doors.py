"""The doors of a driver on a simulated Slurm, at each call of which it can be killed; a search with much going on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from orchestrator.launchers import slurm_files
from orchestrator.search import attempts
from orchestrator.search.limits import Limits
from slurm.fake import FakeSlurm
from tests.orchestrator.search.scripted import Killed, Script
from tests.orchestrator.search.slurm_rig import SlurmRig, slurm_rig, speed_of
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason

DOORS: dict[str, tuple[object, str]] = {
    "an event into the journal": (Journal, "append"),
    "an event into the ledger": (LedgerWriter, "apply"),
    "spec.json": (attempts, "write_json"),
    "job.sh": (slurm_files, "write_text"),
    "sbatch": (FakeSlurm, "submit"),
    "squeue": (FakeSlurm, "jobs"),
    "scontrol": (FakeSlurm, "describe"),
    "scancel": (FakeSlurm, "cancel"),
}
"""Every way in which the driver changes or asks anything outside of itself: between two of them, nothing is lost."""


@dataclass
class Door:
    """Counts the calls through a door and kills at one of them, before or after it took effect."""

    kill_at: int
    after: bool
    calls: int = 0

    def guard(self, call: Callable) -> Callable:
        def guarded(*args, **kwargs):
            self.calls += 1
            if self.calls == self.kill_at and not self.after:
                raise Killed
            answer = call(*args, **kwargs)
            if self.calls == self.kill_at and self.after:
                raise Killed
            return answer

        return guarded


@contextmanager
def watched(
    name: str, door: Door, monkeypatch: pytest.MonkeyPatch, doors: Mapping[str, tuple] = DOORS
) -> Iterator[None]:
    owner, attribute = doors[name][:2]
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, door.guard(getattr(owner, attribute)))
        yield


def eventful(path) -> SlurmRig:
    """A short search in which a node fails, a layout does not fit, a job is requeued and the best is repeated."""
    rig = slurm_rig(path, min_job_age_s=86400.0)
    rig.limits = Limits(4, 2, budget_node_hours=5.0, finalists=1, finalist_repeats=1)

    rig.script = one_does_not_fit
    rig.cluster.at(rig.cluster.time + 70, lambda: rig.cluster.fail_node("n1"))
    rig.cluster.at(rig.cluster.time + 75, lambda: rig.cluster.resume_node("n1"))
    rig.cluster.at(rig.cluster.time + 200, lambda: _requeue_the_last(rig))
    return rig


def one_does_not_fit(spec, restart) -> Script:
    """What becomes of the trials of an eventful search."""
    if spec.trial == "t0002":
        return Script(reason=FailureReason.GPU_OOM)
    return Script(duration_s=50.0 if spec.trial == "t0003" else 60.0, tokens_per_sec=speed_of(spec))


def _requeue_the_last(rig: SlurmRig) -> None:
    running = [job for job in rig.cluster.jobs() if job.run and not job.state.is_ended]
    if running:
        rig.cluster.requeue(running[-1].job_id)


def story(search: SearchRecord) -> list[tuple]:
    """What must not depend on how often the driver was killed."""
    return [(t.trial, t.layout.key, t.kind, t.state, t.reason) for t in search.trials]
