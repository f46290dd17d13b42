"""A SlurmPilotLauncher on a simulated cluster of four nodes. The agent is the test's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.launchers.slurm_pilot import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot_plan import PilotRules, WorkLeft
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FakeCluster
from slurm.fake_jobs import FakeJob, JobPlan
from slurm.fake_placement import FakeNode
from slurm.pace import PollPace
from slurm.request import Container, JobOptions
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from trials.classify import Ending
from trials.pilot.files import PilotFolder, StepEnd, StepFate, StepSign, StepStart, write

LIMIT_S = 600.0


class Rig:
    """Four nodes, pilots of two; `plan` is what a pilot's job does."""

    def __init__(self, root: Path, attempts: int = 1):
        self.root = root
        self.work = WorkLeft(attempts, parallel=1)
        self.plan = JobPlan()
        self.notes: list[str] = []
        self.cluster = FakeCluster([FakeNode(f"n{i}") for i in range(1, 5)], lambda job: self.plan)
        self.slurm = FakeSlurm(self.cluster)
        self.launcher = self.new_launcher()

    def new_launcher(self, container: Container | None = None) -> SlurmPilotLauncher:
        jobs = lambda max_age_s: Answer(self.slurm.jobs(), self.slurm.now(), 0.0)  # noqa: E731
        rules, options = PilotRules(2, 2), JobOptions(container=container)
        return SlurmPilotLauncher(
            self.slurm,
            options,
            rules,
            PollPace(5.0),
            jobs,
            lambda: self.work,
            self.cluster.advance,
            self.notes.append,
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
        """The pilot's agent comes to life and claims what it is asked for."""
        folder = self.pilot(number)
        folder.heartbeat.write_text(str(self.cluster.time))
        self.look()
        for name, signs in folder.signs().items():
            if StepSign.REQUESTED in signs:
                assert folder.take(name, StepSign.CLAIMED)
        self.look()
        return folder

    def look(self, seconds: float = 6.0) -> None:
        self.cluster.advance(seconds)
        self.launcher.poll([])

    def ending(self, request) -> Ending:
        return poll_one(self.launcher, request)


def nodes_asked(folder: PilotFolder, name: str) -> tuple[str, ...]:
    signs = folder.signs()[name]
    return folder.request(name, StepSign.CLAIMED if StepSign.CLAIMED in signs else StepSign.REQUESTED).nodes


def finish(folder: PilotFolder, name: str, node_s: float = 100.0, exit_code: int = 0) -> None:
    at = 1e9
    write(folder.sign(name, StepSign.STARTED), StepStart(at, "0"))
    write(folder.sign(name, StepSign.ENDED), StepEnd(StepFate.ENDED, at, at + 10, exit_code, 0, node_s, "0"))


def held_node_s(job: FakeJob) -> float:
    assert job.ended_at is not None
    assert job.started_at is not None
    return 2 * (job.ended_at - job.started_at)
