"""Test benches for the Slurm contract: a simulated cluster, and a real one on this machine."""

from __future__ import annotations

import os
import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from slurm.client import SlurmClient
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake.jobs import JobPlan
from slurm.fake.placement import FakeNode
from slurm.interface import Slurm, SlurmUnreachable, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions, JobRequest
from slurm.sandbox.sandbox import SLURMCTLD, SlurmSandbox
from slurm.script import render_script

T = TypeVar("T")

NODES = ("n1", "n2", "n3", "n4")
KILL_WAIT_S = 2.0
ENDED = tuple(state for state in JobState if state.is_ended)
PLANS = {
    "succeed": JobPlan(duration_s=0.2),
    "fail": JobPlan(duration_s=0.2, exit_code=3),
    "hang": JobPlan(),
    "ignore_sigterm": JobPlan(heeds_term=False),
}
SCRIPTS = {
    "succeed": "sleep 0.2",
    "fail": "sleep 0.2; exit 3",
    "hang": "touch ready; exec sleep 300",
    "ignore_sigterm": "trap '' TERM; touch ready; while :; do sleep 0.1; done",
}


class Bench(ABC):
    """Four nodes of four CPUs and four GPUs with nothing on them, and jobs that behave as asked."""

    slurm: Slurm

    def __init__(self, root: Path):
        self.root = root
        self.names: list[str] = []

    def request(self, behaviour: str = "succeed", num_nodes: int = 1, **changes: object) -> JobRequest:
        name = f"contract-{secrets.token_hex(4)}"
        folder = self.root / name
        folder.mkdir()
        request = JobRequest(name, folder, num_nodes, 1, 600.0, ("bash", "-c", SCRIPTS[behaviour]), **changes)  # type: ignore[arg-type]
        request.script.write_text(render_script(request))
        self.names.append(name)
        return request

    def submit(self, behaviour: str, num_nodes: int = 1, **changes: object) -> str:
        """Submit a job and return its name."""
        request = self.request(behaviour, num_nodes, **changes)
        submission = self.slurm.submit(request)
        assert (submission.status, submission.message) == (SubmitStatus.ACCEPTED, "")
        assert self.job(request.name).job_id == submission.job_id
        return request.name

    def job(self, name: str) -> JobSnapshot:
        """Return the one job of this name; fail unless there is exactly one."""
        [job] = (job for job in self.slurm.jobs() if job.name == name)
        return job

    def until(self, name: str, *states: JobState) -> JobSnapshot:
        return self.eventually(lambda: self.job(name), lambda job: job.state in states)

    def eventually(self, look: Callable[[], T], wanted: Callable[[T], bool]) -> T:
        """Poll `look` until its result is `wanted`; fail with the last result after two minutes."""
        deadline, last = time.monotonic() + 120, ""
        while time.monotonic() < deadline:
            try:
                if wanted(found := look()):
                    return found
                last = repr(found)
            except SlurmUnreachable as error:
                last = str(error)
            self.let_time_pass()
        raise AssertionError(f"still {last}")

    def fill(self) -> str:
        """Submit a job that takes all nodes."""
        name = self.submit("hang", len(NODES), options=JobOptions(exclusive=True))
        self.until(name, JobState.RUNNING)
        return name

    def clear(self) -> None:
        left = lambda: self.slurm.cancel([job for job in self.slurm.jobs() if job.name in self.names])  # noqa: E731
        self.eventually(left, lambda jobs: jobs == set())

    @abstractmethod
    def let_time_pass(self) -> None:
        """Let a moment pass."""

    @abstractmethod
    def until_ready(self, name: str) -> None:
        """Wait until the processes of a running job are ready."""

    @abstractmethod
    def controller_down(self) -> AbstractContextManager[None]:
        """Stop the controller for a while."""

    @abstractmethod
    def controller_hung(self) -> AbstractContextManager[None]:
        """Let the controller receive requests without answering them until the end."""


class FakeBench(Bench):
    def __init__(self, root: Path, accounting: bool):
        super().__init__(root)
        self.plans: dict[str, JobPlan] = {}
        settings = replace(FAKE_SETTINGS, kill_wait_s=KILL_WAIT_S, has_accounting=accounting)
        self.cluster = FakeCluster([FakeNode(n) for n in NODES], lambda job: self.plans[job.name], settings)
        self.slurm = FakeSlurm(self.cluster)

    def request(self, behaviour: str = "succeed", num_nodes: int = 1, **changes: object) -> JobRequest:
        request = super().request(behaviour, num_nodes, **changes)
        self.plans[request.name] = PLANS[behaviour]
        return request

    def let_time_pass(self) -> None:
        self.cluster.advance(0.1)

    def until_ready(self, name: str) -> None:
        """Nothing to wait for: running jobs are ready."""

    @contextmanager
    def controller_down(self) -> Iterator[None]:
        self.cluster.controller_down(for_s=100.0)
        yield
        self.cluster.advance(100.0)

    @contextmanager
    def controller_hung(self) -> Iterator[None]:
        self.cluster.controller_hung(for_s=100.0)
        yield
        self.cluster.advance(100.0)


class RealBench(Bench):
    def __init__(self, root: Path, sandbox: SlurmSandbox):
        super().__init__(root)
        self.sandbox = sandbox
        self.slurm = SlurmClient(os.environ | sandbox.environment)

    def let_time_pass(self) -> None:
        time.sleep(0.05)

    def until_ready(self, name: str) -> None:
        self.eventually(lambda: (self.root / name / "ready").exists(), bool)

    @contextmanager
    def controller_down(self) -> Iterator[None]:
        self.sandbox.kill(SLURMCTLD, signal.SIGTERM)
        try:
            yield
        finally:
            self.sandbox.start_daemon(SLURMCTLD)

    @contextmanager
    def controller_hung(self) -> Iterator[None]:
        self.sandbox.send_signal(SLURMCTLD, signal.SIGSTOP)
        try:
            yield
        finally:
            self.sandbox.send_signal(SLURMCTLD, signal.SIGCONT)
