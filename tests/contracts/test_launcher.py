"""What every launcher keeps, whatever it launches with: plain processes, Ray, Slurm, a measured table."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orchestrator.code_snapshot import snapshot_code
from orchestrator.launchers.base import ENDING_ALLOWANCE_S, Launcher, LaunchRequest
from orchestrator.launchers.local import LocalLauncher
from orchestrator.launchers.processes import Graces
from orchestrator.launchers.ray import RayLauncher
from orchestrator.launchers.recorded import RecordedLauncher
from orchestrator.launchers.slurm import SlurmLauncher
from orchestrator.launchers.slurm_pilot import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot_plan import PilotRules, WorkLeft
from orchestrator.ray_runtime import RayRuntime
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.errors import InputError
from search_spaces.measured import Observation
from slurm.client import SlurmClient
from slurm.daemons import living_processes
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FakeCluster
from slurm.fake_jobs import JobPlan, StartedJob
from slurm.fake_placement import FakeNode
from slurm.pace import PollPace
from slurm.request import JobOptions
from slurm.sandbox import SlurmSandbox
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import (
    LAYOUT,
    MODEL,
    attempt_request,
    is_running,
    poll_one,
    rank_pids,
    verdict_on,
    wait_until_ended,
    wait_until_started,
    with_spec,
)
from tests.orchestrator.search.scripted import measured_outcome
from trials.classify import Life
from trials.folder import AttemptFolder, read_json, write_json
from trials.path_owners import TakenFolder
from trials.trial import FailureReason, TrialSpec, TrialState

GRACES = Graces(after_failure_s=0.3, after_term_s=0.3)
REPOSITORY = Path(__file__).parents[2]


class Bench(ABC):
    """A launcher with room for two attempts of two ranks, and attempts that behave as asked."""

    launcher: Launcher
    outlives_its_driver = False
    """Whether an attempt goes on when its driver has vanished, and ends as if nothing had been."""

    def __init__(self, root: Path):
        self.root = root

    def request(self, behaviour: str, trial: str = "t0001", **details: object) -> LaunchRequest:
        return attempt_request(self.root, behaviour, trial=trial, **details)

    @abstractmethod
    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        """An attempt whose driver has vanished while it ran, and the launcher of the next driver.

        One that outlives its driver may wait for the file `go` in its folder.
        """

    def longest_s(self, time_limit_s: float) -> float:
        """The most seconds that an attempt of this limit may take; launchers here have shorter graces than usual."""
        return time_limit_s + ENDING_ALLOWANCE_S - (Graces().after_term_s - GRACES.after_term_s)

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


class RecordedBench(Bench):
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
        self.launcher = RecordedLauncher(self._table(), queue_wait_s=5.0, now=1e9)

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
        return request, RecordedLauncher(self._table(), queue_wait_s=5.0, now=1e9)

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
        jobs = lambda max_age_s: Answer(self.slurm.jobs(), self.slurm.now(), 0.0)  # noqa: E731
        return SlurmLauncher(self.slurm, JobOptions(), PollPace(30.0), jobs, self.cluster.advance)

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
        jobs = lambda max_age_s: Answer(self.slurm.jobs(), self.slurm.now(), 0.0)  # noqa: E731
        sleep = lambda seconds: time.sleep(min(seconds, 0.1))  # noqa: E731
        return SlurmLauncher(self.slurm, JobOptions(), PollPace(0.1), jobs, sleep)

    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        request = self.request("wait_to_measure")
        self.launcher.launch(request)
        while not all((request.folder.path / f"waiting-{rank}").exists() for rank in range(2)):
            poll_one(self.launcher, request)
            self.launcher.wait(0.1)
        return request, self.new_launcher()

    def has_processes(self, request: LaunchRequest) -> bool:
        return any(str(request.folder.spec) in _command_line(pid) for pid in living_processes())


class SlurmPilotBench(SlurmBench):
    """Ranks are real processes in steps of one batch job. A step needs a whole node, and the pilot has two."""

    def __init__(self, root: Path, sandbox: SlurmSandbox):
        snapshot_code(root / "code")  # the stand-in trial takes its place in it
        super().__init__(root, sandbox)

    def new_launcher(self) -> Launcher:
        jobs = lambda max_age_s: Answer(self.slurm.jobs(), self.slurm.now(), 0.0)  # noqa: E731
        sleep = lambda seconds: time.sleep(min(seconds, 0.1))  # noqa: E731
        work = WorkLeft(attempts=2, parallel=2)
        return SlurmPilotLauncher(self.slurm, JobOptions(), PilotRules(2, 2), PollPace(0.1), jobs, lambda: work, sleep)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


@pytest.fixture(scope="module")
def ray_runtime() -> Iterator[RayRuntime]:
    runtime = RayRuntime.start_loopback(rank_slots=4, num_gpus=0)
    yield runtime
    runtime.close()


IN_SECONDS = [
    pytest.param("local", marks=[pytest.mark.processes, pytest.mark.timeout(180)]),
    pytest.param("ray", marks=[pytest.mark.processes, pytest.mark.timeout(300)]),
    "recorded",
    "fake_slurm",
]
"""All but a real Slurm, which needs more than a minute to end a job at its limit; a pilot ends its steps itself."""


ON_SLURM = [
    pytest.param("slurm", marks=[pytest.mark.processes, pytest.mark.timeout(300)]),
    pytest.param("slurm_pilot", marks=[pytest.mark.processes, pytest.mark.timeout(300)]),
]


@pytest.fixture(params=[*IN_SECONDS, *ON_SLURM])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("slurm.client.CANCEL_TIMEOUT_S", 120.0)  # COMPLETING was seen to last 40 s
    if request.param == "recorded":
        yield RecordedBench(tmp_path)
    elif request.param == "fake_slurm":
        yield FakeSlurmBench(tmp_path)
    elif request.param == "slurm":
        yield SlurmBench(tmp_path, request.getfixturevalue("slurm_sandbox_accounting"))
    elif request.param == "slurm_pilot":
        pilots = SlurmPilotBench(tmp_path, request.getfixturevalue("slurm_sandbox_accounting"))
        yield pilots
        pilots.launcher.close()
        # The next test's pilot has the same name, so none may be left: not one that was taken over either.
        assert pilots.slurm.cancel([job for job in pilots.slurm.jobs() if not job.state.is_ended]) == set()
    elif request.param == "ray":
        runtime = request.getfixturevalue("ray_runtime")
        yield ProcessBench(tmp_path, RayLauncher(lambda: runtime, GRACES))
    else:
        launcher = LocalLauncher([[], []], GRACES)
        yield ProcessBench(tmp_path, launcher)
        launcher.close()


def test_an_attempt_is_alive_and_then_ends_measured(bench: Bench) -> None:
    request = bench.request("measure")
    assert bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).life in (Life.ALIVE, Life.ENDED)
    ending = wait_until_ended(bench.launcher, request)
    assert (ending.life, ending.started, ending.failed, ending.reason) == (Life.ENDED, True, False, None)
    assert ending.started_at is not None
    assert ending.ended_at is not None
    assert ending.started_at <= ending.ended_at <= bench.launcher.now()
    verdict = verdict_on(request, ending)
    assert (verdict.state, verdict.excerpt) == (TrialState.MEASURED, None)


@pytest.mark.security("paths")
def test_nothing_is_launched_in_a_folder_that_was_put_in_the_place_of_the_one_taken(bench: Bench) -> None:
    request = bench.request("measure")
    root = request.folder.path.parents[2]
    request = replace(request, taken=TakenFolder.at(root))
    shutil.copytree(root.rename(root.with_name("aside")), root)
    with pytest.raises(InputError, match="another was put in its place"):
        bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).life is Life.UNKNOWN
    assert not request.folder.ranks.exists()


def test_a_broken_script_ends_as_script_error_with_what_shows_it(bench: Bench) -> None:
    request = bench.request("fail", rank=1, others="hang")
    bench.launcher.launch(request)
    ending = wait_until_ended(bench.launcher, request)
    verdict = verdict_on(request, ending)
    assert (verdict.state, verdict.reason) == (TrialState.FAILED, FailureReason.SCRIPT_ERROR)
    assert verdict.excerpt
    assert ending.failed
    assert not bench.has_processes(request)


def test_a_cancelled_attempt_has_ended_when_cancel_returns(bench: Bench) -> None:
    request = bench.request("hang")
    bench.launcher.launch(request)
    wait_until_started(bench.launcher, request)
    assert bench.launcher.cancel([request.spec.attempt_key]) == set()
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.CANCELLED_BY_SEARCH)
    assert not bench.has_processes(request)


def test_an_attempt_cancelled_before_it_starts_never_starts(bench: Bench) -> None:
    request = bench.request("hang")
    bench.launcher.launch(request)
    assert bench.launcher.cancel([request.spec.attempt_key]) == set()
    assert poll_one(bench.launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)


def test_cancelling_what_has_ended_or_was_never_launched_changes_nothing(bench: Bench) -> None:
    request = bench.request("measure")
    bench.launcher.launch(request)
    before = wait_until_ended(bench.launcher, request)
    assert bench.launcher.cancel([request.spec.attempt_key, "demo-abc234.t0009.a1"]) == set()
    assert poll_one(bench.launcher, request) == before


def test_an_attempt_it_never_saw_is_unknown(bench: Bench) -> None:
    assert poll_one(bench.launcher, bench.request("measure")).life is Life.UNKNOWN


@pytest.mark.parametrize("bench", [*IN_SECONDS, ON_SLURM[1]], indirect=True)
def test_the_time_limit_ends_an_attempt(bench: Bench) -> None:
    request = bench.request("hang", time_limit_s=0.5)
    bench.launcher.launch(request)
    ending = wait_until_ended(bench.launcher, request)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.TIME_LIMIT)
    assert verdict_on(request, ending).state is TrialState.FAILED
    assert not bench.has_processes(request)


@pytest.mark.parametrize("bench", [*IN_SECONDS, ON_SLURM[1]], indirect=True)
def test_nothing_outlasts_the_time_limit_by_more_than_the_allowance(bench: Bench) -> None:
    request = bench.request("ignore_sigterm", time_limit_s=2.0)
    bench.launcher.launch(request)
    ending = wait_until_ended(bench.launcher, request)
    assert ending.reason is FailureReason.TIME_LIMIT
    assert ending.started_at is not None
    assert ending.ended_at is not None
    assert 2.0 <= ending.ended_at - ending.started_at <= bench.longest_s(2.0)


def test_two_attempts_run_side_by_side(bench: Bench) -> None:
    requests = [bench.request("hang", trial=trial) for trial in ("t0001", "t0002")]
    for request in requests:
        assert bench.launcher.launch(request)
    for request in requests:
        wait_until_started(bench.launcher, request)
    endings = bench.launcher.poll(request.spec.attempt_key for request in requests)
    assert all(ending.life is Life.ALIVE and ending.started for ending in endings.values())
    assert bench.launcher.cancel(endings) == set()


def test_an_attempt_is_launched_once(bench: Bench) -> None:
    request = bench.request("measure")
    bench.launcher.launch(request)
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(request)
    wait_until_ended(bench.launcher, request)
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(request)


def test_an_attempt_that_was_never_accepted_is_not_adopted(bench: Bench) -> None:
    request = bench.request("measure")
    assert bench.launcher.adopt({request.spec.attempt_key: request}) == {}
    assert bench.launcher.launch(request)
    assert verdict_on(request, wait_until_ended(bench.launcher, request)).state is TrialState.MEASURED


def test_the_next_driver_takes_over_what_the_last_one_left_and_nothing_runs_twice(bench: Bench) -> None:
    request, launcher = bench.take_over()
    assert list(launcher.adopt({request.spec.attempt_key: request})) == [request.spec.attempt_key]
    if not bench.outlives_its_driver:
        assert not bench.has_processes(request)
    with pytest.raises(ValueError, match="launched before"):
        launcher.launch(request)
    (request.folder.path / "go").touch()
    ending = wait_until_ended(launcher, request)
    assert ending.started_at is not None
    assert ending.ended_at is not None
    assert ending.started_at <= ending.ended_at <= launcher.now()
    verdict = verdict_on(request, ending)
    if bench.outlives_its_driver:
        assert verdict.state is TrialState.MEASURED
    else:
        assert verdict.reason is FailureReason.INTERRUPTED


@pytest.mark.parametrize(
    "bench",
    ["fake_slurm", *ON_SLURM],
    indirect=True,
)
def test_what_is_taken_over_lives_under_its_job_and_the_next_driver_can_end_it(bench: Bench) -> None:
    request, launcher = bench.take_over()
    key = request.spec.attempt_key
    adopted = launcher.adopt({key: request})
    ending = wait_until_started(launcher, request)
    assert ending.life is Life.ALIVE
    # A step's number is known once it has its nodes, which may be after it was taken over.
    assert str(ending.job_id).partition(".")[0] == adopted[key].partition(".")[0]
    assert bench.has_processes(request)
    assert launcher.cancel([key]) == set()
    assert poll_one(launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)
