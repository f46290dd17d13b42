"""Test benches for the launcher contract, one per launcher, whose attempts behave as asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.launchers.base import ENDING_ALLOWANCE_S, Launcher, LaunchRequest
from orchestrator.launchers.local.processes import GracePeriods
from orchestrator.launchers.simulated import SimulatedLauncher
from orchestrator.launchers.slurm.launcher import SlurmLauncher
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import PilotRules, RemainingWork
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.tables.measured_table import Observation
from slurm.client import SlurmClient
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.jobs import JobPlan, StartedJob
from slurm.fake.placement import FakeNode
from slurm.poll_backoff import PollBackoff
from slurm.request import JobOptions
from slurm.sandbox.daemons import running_pids
from slurm.sandbox.sandbox import SlurmSandbox
from slurm.squeue_cache import SqueueSnapshot
from tests.orchestrator.launchers.attempts import (
    LAYOUT,
    MODEL,
    attempt_request,
    is_running,
    poll_one,
    rank_pids,
    wait_until_started,
    with_spec,
)
from tests.orchestrator.scripted import measured_outcome
from tests.rig import asking
from tests.trials.fork_server.servers import light_code
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.trial import TrialSpec

GRACE_PERIODS = GracePeriods(after_failure_s=0.3, after_term_s=0.3)
REPOSITORY = Path(__file__).parents[2]


class Bench(ABC):
    """A launcher with room for two attempts of two ranks, and attempts that behave as asked."""

    launcher: Launcher
    outlives_its_driver = False
    """True if an attempt goes on without its driver and ends normally."""

    def __init__(self, root: Path):
        self.root = root

    def request(self, behaviour: str, trial: str = "t0001", **details: object) -> LaunchRequest:
        return attempt_request(self.root, behaviour, trial=trial, **details)

    @abstractmethod
    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        """Return an attempt whose driver was killed while it ran, and the launcher of the next driver.

        An attempt that outlives its driver may wait for the file `go` in its folder.
        """

    def longest_s(self, time_limit_s: float) -> float:
        """Return the most seconds that an attempt of this limit may take; grace periods are shorter than the
        defaults."""
        return time_limit_s + ENDING_ALLOWANCE_S - (GracePeriods().after_term_s - GRACE_PERIODS.after_term_s)

    def has_processes(self, request: LaunchRequest) -> bool:
        return any(is_running(pid) for pid in rank_pids(request.folder))


class ProcessBench(Bench):
    """Ranks are real processes: the driver of `take_over` is killed with SIGKILL."""

    def __init__(self, root: Path, launcher: Launcher):
        super().__init__(root)
        self.launcher = launcher

    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        arguments = ["-m", "tests.orchestrator.launchers.vanishing_driver", self.launcher.name, str(self.root)]
        with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, cwd=REPOSITORY) as driver:
            assert driver.stdout is not None
            assert b"started" in driver.stdout.readline()
            driver.send_signal(signal.SIGKILL)
        return self.request("hang"), self.launcher


class SimulatedBench(Bench):
    """Behaviours are rows of a table: a layout that ran, one that failed, one that takes an hour."""

    outlives_its_driver = True

    def __init__(self, root: Path):
        super().__init__(root)
        self.layouts = {
            "measure": LAYOUT,
            "fail": replace(LAYOUT, micro_batch_size=4, grad_accum_steps=1),
            "hang": replace(LAYOUT, micro_batch_size=1, grad_accum_steps=4),
        }
        self.layouts["ignore_sigterm"] = self.layouts["hang"]
        self.launcher = SimulatedLauncher(self._table(), queue_wait_s=5.0, now=1e9)

    def _table(self) -> list[Observation]:
        row = Observation(
            problem="p",
            source="test",
            model_name="tiny",
            model=MODEL,
            cluster=Cluster(ACCELERATORS["cpu"], 2, 1),
            global_batch_size=LAYOUT.global_batch_size,
            layout=LAYOUT,
            outcome="ok",
            step_time_s=0.5,
        )
        failed = replace(row, layout=self.layouts["fail"], outcome="failed", step_time_s=None)
        return [row, failed, replace(row, layout=self.layouts["hang"], recorded_duration_s=3600.0)]

    def request(self, behaviour: str, trial: str = "t0001", **details: object) -> LaunchRequest:
        return with_spec(super().request(behaviour, trial, **details), layout=self.layouts[behaviour])

    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        request = self.request("hang")
        self.launcher.launch(request)
        wait_until_started(self.launcher, request)
        return request, SimulatedLauncher(self._table(), queue_wait_s=5.0, now=1e9)

    def has_processes(self, request: LaunchRequest) -> bool:
        return False


class FakeSlurmBench(Bench):
    """Behaviours are plans of jobs on a simulated cluster."""

    outlives_its_driver = True

    def __init__(self, root: Path):
        super().__init__(root)
        self.cluster = FakeCluster([FakeNode("n1")], self._start)
        self.slurm = FakeSlurm(self.cluster)
        self.launcher = self.new_launcher()

    def new_launcher(self) -> Launcher:
        return SlurmLauncher(self.slurm, JobOptions(), PollBackoff(30.0), asking(self.slurm), self.cluster.advance)

    def _start(self, job: StartedJob) -> JobPlan:
        folder = AttemptFolder(job.directory)
        spec = TrialSpec.from_json(read_json(folder.spec) or {})
        measured = partial(write_json, folder.outcome(), measured_outcome(spec, 1.0).to_json())
        return {
            "measure": JobPlan(5.0, on_end=measured),
            "wait_to_measure": JobPlan(3600.0, on_end=measured),
            "fail": JobPlan(5.0, exit_code=1),
            "hang": JobPlan(),
            "ignore_sigterm": JobPlan(heeds_term=False),
        }[spec.trainer["behaviour"]]

    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        request = self.request("wait_to_measure")
        self.launcher.launch(request)
        wait_until_started(self.launcher, request)
        return request, self.new_launcher()

    def longest_s(self, time_limit_s: float) -> float:
        return self.launcher.longest_s(time_limit_s)

    def has_processes(self, request: LaunchRequest) -> bool:
        jobs = self.cluster.jobs()
        return any(job.run is not None for job in jobs if job.request.name == request.spec.attempt_key)


class SlurmBench(Bench):
    """Ranks are real processes in batch jobs of a real Slurm."""

    outlives_its_driver = True

    def __init__(self, root: Path, sandbox: SlurmSandbox):
        super().__init__(root)
        self.slurm = SlurmClient(os.environ | sandbox.environment)
        self.launcher = self.new_launcher()

    def new_launcher(self) -> Launcher:
        return SlurmLauncher(self.slurm, JobOptions(), PollBackoff(0.1), self.jobs, _sleep_briefly)

    def jobs(self, max_age_s: float) -> SqueueSnapshot:
        return SqueueSnapshot(self.slurm.jobs(), self.slurm.now(), 0.0)

    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        request = self.request("wait_to_measure")
        self.launcher.launch(request)
        while not all((request.folder.path / f"waiting-{rank}").exists() for rank in range(2)):
            poll_one(self.launcher, request)
            self.launcher.wait(0.1)
        return request, self.new_launcher()

    def has_processes(self, request: LaunchRequest) -> bool:
        return any(str(request.folder.spec) in _command_line(pid) for pid in running_pids())


class SlurmPilotBench(SlurmBench):
    """Ranks are real processes, forked by servers, in steps of one batch job. A step needs a whole node of two."""

    def __init__(self, root: Path, sandbox: SlurmSandbox):
        light_code(root / "code")  # the stand-in trial takes its place in it
        super().__init__(root, sandbox)

    def new_launcher(self) -> Launcher:
        work, rules, backoff = RemainingWork(attempts=2, parallel=2), PilotRules(2, 2), PollBackoff(0.1)
        return SlurmPilotLauncher(self.slurm, JobOptions(), rules, backoff, self.jobs, lambda: work, _sleep_briefly)


def _sleep_briefly(seconds: float) -> None:
    time.sleep(min(seconds, 0.1))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
