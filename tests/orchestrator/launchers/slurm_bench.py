"""A SlurmLauncher on a simulated cluster of four nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm import SlurmLauncher
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake_placement import FakeNode
from slurm.pace import PollPace
from slurm.request import JobOptions
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import attempt_request

POLL_S = 30.0


class Bench:
    """Four nodes, a launcher, and the moments (simulated seconds since the beginning) at which each was asked."""

    def __init__(self, root: Path, **settings: object):
        self.root = root
        nodes = [FakeNode(f"n{i}") for i in range(1, 5)]
        self.cluster = FakeCluster(nodes, settings=replace(FAKE_SETTINGS, **settings))
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time
        self.asked: dict[str, list[float]] = {"submit": [], "jobs": [], "cancel": [], "accounted": []}
        for name in self.asked:
            setattr(self.slurm, name, self._noting(name, getattr(self.slurm, name)))
        self.notes: list[str] = []
        self.launcher = self.new_launcher()

    def _noting(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            self.asked[name].append(self.cluster.time - self.began)
            return method(*arguments)

        return noted

    def new_launcher(self) -> SlurmLauncher:
        pace, advance = PollPace(POLL_S), self.cluster.advance
        return SlurmLauncher(self.slurm, JobOptions(), pace, self._jobs, advance, self.notes.append)

    def _jobs(self, max_age_s: float) -> Answer:
        asked_at = self.slurm.now()
        return Answer(self.slurm.jobs(), asked_at, self.slurm.now() - asked_at)

    def request(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = replace(attempt_request(self.root, "hang", trial=trial), submitted_at=self.cluster.time)
        return replace(request, **changes)

    def launched(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = self.request(trial, **changes)
        assert self.launcher.launch(request)
        self.cluster.advance(POLL_S)
        return request

    def poll_for(self, seconds: float, *requests: LaunchRequest) -> None:
        """As a driver does: every half second."""
        for _ in range(int(2 * seconds)):
            self.launcher.poll([request.spec.attempt_key for request in requests])
            self.cluster.advance(0.5)
