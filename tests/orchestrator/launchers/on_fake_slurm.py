"""Launchers on a simulated cluster of four nodes: one with a job for each attempt, and one with pilots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import PilotRules, RemainingWork
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake.jobs import FakeJob, JobPlan, StartedJob
from slurm.fake.placement import FakeNode
from slurm.poll_backoff import PollBackoff
from slurm.request import Container, JobOptions
from slurm.squeue_cache import SqueueSnapshot
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from trials.attempt_result import LaunchStatus
from trials.pilot.files import PilotFolder, StepEnd, StepEndReason, StepFileKind, StepStart, write

POLL_S = 30.0
LIMIT_S = 600.0


def four_nodes(plan: Callable[[StartedJob], JobPlan] = lambda job: JobPlan(), **settings: object) -> FakeCluster:
    """Return a cluster whose jobs run as planned, or until they are ended."""
    return FakeCluster([FakeNode(f"n{i}") for i in range(1, 5)], plan, replace(FAKE_SETTINGS, **settings))


def asking(slurm: FakeSlurm) -> Callable[[float], SqueueSnapshot]:
    """Query squeue without a cache, as for a single driver."""

    def jobs(max_age_s: float) -> SqueueSnapshot:
        asked_at = slurm.now()
        return SqueueSnapshot(slurm.jobs(), asked_at, slurm.answer_s)

    return jobs


class SlurmBench:
    """Four nodes, a launcher, and the times of its calls of Slurm (simulated seconds since the start)."""

    def __init__(self, root: Path, **settings: object):
        self.root = root
        self.cluster = four_nodes(**settings)
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time
        self.asked: dict[str, list[float]] = {"submit": [], "jobs": [], "cancel": [], "accounted_jobs": []}
        for name in self.asked:
            setattr(self.slurm, name, self._noting(name, getattr(self.slurm, name)))
        self.launcher = self.new_launcher()

    def _noting(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            self.asked[name].append(self.cluster.time - self.began)
            return method(*arguments)

        return noted

    def new_launcher(self) -> SlurmLauncher:
        backoff, advance = PollBackoff(POLL_S), self.cluster.advance
        return SlurmLauncher(self.slurm, JobOptions(), backoff, asking(self.slurm), advance)

    def request(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = replace(attempt_request(self.root, "hang", trial=trial), submitted_at=self.cluster.time)
        return replace(request, **changes)

    def launched(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = self.request(trial, **changes)
        assert self.launcher.launch(request)
        self.cluster.advance(POLL_S)
        return request

    def poll_for(self, seconds: float, *requests: LaunchRequest) -> None:
        """Poll every half second, as a driver does."""
        for _ in range(int(2 * seconds)):
            self.launcher.poll([request.spec.attempt_key for request in requests])
            self.cluster.advance(0.5)


class PilotBench:
    """Four nodes, and a launcher with pilots of two; `plan` is what a pilot's job does. The test acts as the agent."""

    def __init__(self, root: Path, attempts: int = 1):
        self.root = root
        self.work = RemainingWork(attempts, parallel=1)
        self.plan = JobPlan()
        self.cluster = four_nodes(lambda job: self.plan)
        self.slurm = FakeSlurm(self.cluster)
        self.launcher = self.new_launcher()

    def new_launcher(self, container: Container | None = None) -> SlurmPilotLauncher:
        rules, options = PilotRules(2, 2), JobOptions(container=container)
        return SlurmPilotLauncher(
            self.slurm,
            options,
            rules,
            PollBackoff(5.0),
            asking(self.slurm),
            lambda: self.work,
            self.cluster.advance,
            self.root / "searches" / "demo-abc234" / "launcher.json",
        )

    def request(self, trial: str = "t0001", **changes):
        return replace(attempt_request(self.root, trial=trial, time_limit_s=LIMIT_S), **changes)

    def launch(self, trial: str = "t0001", **changes):
        request = self.request(trial, **changes)
        self.launcher.launch(request)
        return request

    def pilot(self, number: int = 1) -> PilotFolder:
        return PilotFolder(self.root / "searches" / "demo-abc234" / "pilots" / f"p{number:04d}")

    def job(self, number: int = 1) -> FakeJob:
        return next(job for job in self.cluster.jobs() if job.request.name == f"demo-abc234.p{number:04d}")

    def serve(self, number: int = 1) -> PilotFolder:
        """Write the agent's heartbeat and claim the requested steps."""
        folder = self.pilot(number)
        folder.heartbeat.write_text(str(self.cluster.time))
        self.look()
        for name, step_files in folder.step_files().items():
            if StepFileKind.REQUESTED in step_files:
                assert folder.take(name, StepFileKind.CLAIMED)
        self.look()
        return folder

    def look(self, seconds: float = 6.0) -> None:
        self.cluster.advance(seconds)
        self.launcher.poll([])

    def status(self, request) -> LaunchStatus:
        return poll_one(self.launcher, request)


def nodes_asked(folder: PilotFolder, name: str) -> tuple[str, ...]:
    step_files = folder.step_files()[name]
    return folder.request(
        name, StepFileKind.CLAIMED if StepFileKind.CLAIMED in step_files else StepFileKind.REQUESTED
    ).nodes


def finish(folder: PilotFolder, name: str, node_s: float = 100.0, exit_code: int = 0, at: float = 1e9) -> None:
    write(folder.step_file(name, StepFileKind.STARTED), StepStart(at, "0"))
    write(
        folder.step_file(name, StepFileKind.ENDED),
        StepEnd(StepEndReason.EXITED, at, at + 10, exit_code, 0, node_s, "0"),
    )


def held_node_s(job: FakeJob) -> float:
    assert job.ended_at is not None
    assert job.started_at is not None
    return 2 * (job.ended_at - job.started_at)
