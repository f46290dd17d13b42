"""Kill points of a driver on a simulated Slurm, which are all its calls to the outside, and an eventful search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from orchestrator.launchers.slurm import job_files
from orchestrator.search import attempt_factory
from orchestrator.search.stopping import Limits
from slurm.fake.client import FakeSlurm
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import Killed
from tests.orchestrator.search.slurm_rig import SlurmRig, slurm_rig, speed_of
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason

KILL_POINTS: dict[str, tuple[object, str]] = {
    "an event into the journal": (Journal, "append"),
    "an event into the ledger": (LedgerWriter, "apply"),
    "spec.json": (attempt_factory, "write_json"),
    "job.sh": (job_files, "write_text"),
    "sbatch": (FakeSlurm, "submit"),
    "squeue": (FakeSlurm, "jobs"),
    "scontrol": (FakeSlurm, "describe"),
    "scancel": (FakeSlurm, "cancel"),
}
"""Kill points: the calls by which the driver changes or queries anything outside of itself."""

READ_ONLY = {"squeue", "scontrol", "sbatch --test-only"}
"""Kill points without effect: a kill after such a call leaves the same state as a kill before it."""


def every_call(calls: int) -> Sequence[int]:
    return range(1, calls + 1)


def two_calls(calls: int) -> Sequence[int]:
    return sorted({max(1, calls // 3), max(1, 2 * calls // 3)})


def one_call(calls: int) -> Sequence[int]:
    return [max(1, 2 * calls // 3)]


@dataclass
class KillPoint:
    """Counts calls and kills the driver before or after one of them; 0 kills at none."""

    kill_at: int = 0
    after: bool = False
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


def walks(names: Iterable[str], every: Callable, some: Callable) -> pytest.MarkDecorator:
    """Parametrize over kills: name of the kill point, whether after the call, and the numbers of the calls killed.

    With the mark `walks`, all kill points at `every` call; a kill before the ledger's write leaves the same as one
    after the journal's, and is left out. Without the mark, each kill point at `some` calls: before those that only
    query, after those that change something.
    """
    all_cases = [(name, after) for name in names for after in (False, True) if not (after and name in READ_ONLY)]
    marks = [pytest.mark.walks, pytest.mark.timeout(240)]
    cases = [
        pytest.param(*moment, every, id=f"{_case_name(*moment)}, {every.__name__}", marks=marks)
        for moment in all_cases
        if moment != ("an event into the ledger", False)
    ]
    few = [(name, after) for name, after in all_cases if after or name in READ_ONLY]
    cases += [pytest.param(*moment, some, id=f"{_case_name(*moment)}, {some.__name__}") for moment in few]
    return pytest.mark.parametrize(("name", "after", "killed_at"), cases)


def _case_name(name: str, after: bool) -> str:
    return f"{'after' if after else 'before'} {name}"


@contextmanager
def counting(name: str, kill_point: KillPoint, kill_points: Mapping[str, tuple] = KILL_POINTS) -> Iterator[None]:
    owner, attribute = kill_points[name][:2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, attribute, kill_point.guard(getattr(owner, attribute)))
        yield


def undisturbed(
    drive: Callable[[], SearchRecord], kill_points: Mapping[str, tuple] = KILL_POINTS
) -> tuple[SearchRecord, dict[str, int]]:
    """The same search without a kill, and the number of calls at each kill point."""
    counters = {name: KillPoint() for name in kill_points}
    with ExitStack() as all_kill_points:
        for name, counter in counters.items():
            all_kill_points.enter_context(counting(name, counter, kill_points))
        search = drive()
    return search, {name: counter.calls for name, counter in counters.items()}


def kill_and_resume(
    rig: SlurmRig,
    name: str,
    kill_point: KillPoint,
    kill_points: Mapping[str, tuple] = KILL_POINTS,
    away_s: float = 7.0,
    drive: Callable[[SlurmRig], SearchRecord] = lambda rig: rig.open_driver().run(),
) -> SearchRecord:
    """The search as finished by the next driver, `away_s` after the first was killed."""
    with counting(name, kill_point, kill_points), pytest.raises(Killed):
        drive(rig)
    rig.cluster.advance(away_s)
    return drive(rig)


def eventful(path) -> SlurmRig:
    """A short search with a node failure, an out-of-memory layout, a requeued job and repeats of the best layout."""
    path.mkdir()
    rig = slurm_rig(path, min_job_age_s=86400.0)
    rig.limits = Limits(4, 2, budget_node_hours=5.0, finalists=1, finalist_repeats=1)

    rig.script = one_does_not_fit
    rig.cluster.at(rig.cluster.time + 70, lambda: rig.cluster.fail_node("n1"))
    rig.cluster.at(rig.cluster.time + 75, lambda: rig.cluster.resume_node("n1"))
    rig.cluster.at(rig.cluster.time + 200, lambda: _requeue_the_last(rig))
    return rig


def one_does_not_fit(spec, restart) -> Script:
    """Expected results of the eventful search's trials."""
    if spec.trial == "t0002":
        return Script(reason=FailureReason.GPU_OOM)
    return Script(duration_s=50.0 if spec.trial == "t0003" else 60.0, tokens_per_sec=speed_of(spec))


def _requeue_the_last(rig: SlurmRig) -> None:
    running = [job for job in rig.cluster.jobs() if job.run and not job.state.is_ended]
    if running:
        rig.cluster.requeue(running[-1].job_id)


def story(search: SearchRecord) -> list[tuple]:
    """The facts that must not depend on kills of the driver."""
    return [(t.trial, t.layout.key, t.kind, t.state, t.reason) for t in search.trials]
