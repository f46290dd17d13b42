"""Contract of every launcher: local processes, Ray, Slurm and the simulated one."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from orchestrator.config.schema.launcher import ENDING_ALLOWANCE_S
from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.local.processes import GracePeriods
from orchestrator.launchers.ray.launcher import RayLauncher
from orchestrator.launchers.ray.runtime import RayRuntime
from orchestrator.launchers.simulated import SimulatedLauncher
from orchestrator.launchers.slurm.launcher import SlurmAccess, SlurmLauncher
from orchestrator.launchers.slurm.queries import PollBackoff
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import PilotRules, RemainingWork
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.tables.measured_table import Observation
from slurm.request import JobOptions
from slurm.sandbox.daemons import running_pids
from slurm.sandbox.sandbox import SlurmSandbox
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.jobs import JobPlan, StartedJob
from tests.fake_slurm.placement import FakeNode
from tests.orchestrator.launchers.attempts import (
    LAYOUT,
    MODEL,
    attempt_request,
    is_running,
    poll_one,
    rank_pids,
    result_of,
    serve,
    wait_until_ended,
    wait_until_started,
    with_spec,
)
from tests.orchestrator.tabled_trial import measured_outcome
from tests.rig import access_to, asking
from tests.trials.fork_server.servers import light_code
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.files.path_owners import FolderIdentity
from trials.trial import FailureReason, TrialSpec, TrialState

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
        """The most seconds that an attempt of this limit may take, with grace periods shorter than the defaults."""
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
        cluster = Cluster(ACCELERATORS["cpu"], 2, 1)
        row = Observation("p", "test", "tiny", MODEL, cluster, LAYOUT.global_batch_size, LAYOUT, "ok", step_time_s=0.5)
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
        return SlurmLauncher(
            SlurmAccess(self.slurm, JobOptions(), PollBackoff(30.0), asking(self.slurm), self.cluster.advance)
        )

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
        return any(job.run is not None for job in self.cluster.jobs() if job.request.name == request.key)


class SlurmBench(Bench):
    """Ranks are real processes in batch jobs of a real Slurm, which still answers for jobs of earlier benches."""

    outlives_its_driver = True
    _numbers = itertools.count()

    def __init__(self, root: Path, sandbox: SlurmSandbox):
        super().__init__(root)
        self.search_id = f"demo-{next(self._numbers):06}"
        self.access = access_to(sandbox)
        self.slurm = self.access.slurm
        self.launcher = self.new_launcher()

    def request(self, behaviour: str, trial: str = "t0001", **details: object) -> LaunchRequest:
        return super().request(behaviour, trial, search_id=self.search_id, **details)

    def new_launcher(self) -> Launcher:
        return SlurmLauncher(self.access)

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
        serve(self.launcher, root, search_id=self.search_id)

    def new_launcher(self) -> Launcher:
        work = RemainingWork(attempts=2, parallel=2)
        return SlurmPilotLauncher(self.access, PilotRules(2, 2), lambda: work)


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


PROCESSES = [pytest.mark.processes, pytest.mark.timeout(300)]
LOCAL = [pytest.param(name, marks=PROCESSES) for name in ("local", "local_warm")]
HERE = [*LOCAL, "simulated", "fake_slurm"]
RAY, SLURM, PILOT = (
    pytest.param(name, marks=[*PROCESSES, pytest.mark.walks]) for name in ("ray", "slurm", "slurm_pilot")
)
RAY_WARM = pytest.param("ray_warm", marks=[*PROCESSES, pytest.mark.walks])
"""Ranks that Ray forks, for cases about ranks and their end: in the others it is the same as a plain Ray."""
IN_SECONDS = [*HERE, RAY, PILOT]
"""All but a real Slurm, which takes more than a minute to end a job at its limit; a pilot ends its steps itself."""
EVERYWHERE = pytest.mark.parametrize(
    "bench",
    [*HERE, *(pytest.param(name, marks=PROCESSES) for name in ("ray", "slurm", "slurm_pilot")), RAY_WARM],
    indirect=True,
)
"""Cases that show that a launcher is connected to its backend; further ones are walks where that is another system."""


@pytest.fixture(params=[*HERE, RAY, SLURM, PILOT])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr("slurm.client.CANCEL_TIMEOUT_S", 120.0)  # COMPLETING was seen to last 40 s
    if request.param == "simulated":
        yield SimulatedBench(tmp_path)
    elif request.param == "fake_slurm":
        yield FakeSlurmBench(tmp_path)
    elif request.param == "slurm":
        yield SlurmBench(tmp_path, request.getfixturevalue("slurm_sandbox_accounting"))
    elif request.param == "slurm_pilot":
        pilots = SlurmPilotBench(tmp_path, request.getfixturevalue("slurm_sandbox_accounting"))
        yield pilots
        pilots.launcher.close()
        # The sandbox is shared: no pilot may hold its nodes, not one that was taken over either.
        assert pilots.slurm.cancel([job for job in pilots.slurm.jobs() if not job.state.is_ended]) == set()
    elif request.param in ("ray", "ray_warm"):
        # Ray lives longer than a test, and a later test may get an earlier one's path with other code in it.
        root = tmp_path / request.param
        if request.param == "ray_warm":
            light_code(root / "code")
        runtime = request.getfixturevalue("ray_runtime")
        launcher = RayLauncher(lambda: runtime, GRACE_PERIODS)
        if request.param == "ray_warm":
            serve(launcher, root)
        yield ProcessBench(root, launcher)
        runtime.close_fork_servers()  # an owner keeps those of two kinds, and each test has code of its own
    else:
        if request.param == "local_warm":
            light_code(tmp_path / "code")  # the stand-in trial takes its place in it
        launcher = LocalLauncher([[], []], GRACE_PERIODS)
        if request.param == "local_warm":
            serve(launcher, tmp_path)
        yield ProcessBench(tmp_path, launcher)
        launcher.close()


def ended(bench: Bench, behaviour: str, **details: object) -> tuple[LaunchRequest, LaunchStatus]:
    """An attempt that was launched, and its status once it has ended."""
    request = bench.request(behaviour, **details)
    assert bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).liveness in (Liveness.ALIVE, Liveness.ENDED)
    return request, wait_until_ended(bench.launcher, request)


@EVERYWHERE
def test_an_attempt_is_alive_and_then_ends_measured(bench):
    request, status = ended(bench, "measure")
    assert (status.liveness, status.started, status.failed, status.reason) == (Liveness.ENDED, True, False, None)
    assert status.started_at <= status.ended_at <= bench.launcher.now()
    verdict = result_of(request, status)
    assert (verdict.state, verdict.excerpt) == (TrialState.MEASURED, None)


@pytest.mark.security("paths")
def test_nothing_is_launched_in_a_folder_that_was_put_in_the_place_of_the_one_taken(bench):
    request = bench.request("measure")
    root = request.folder.path.parents[2]
    request = replace(request, taken=FolderIdentity.at(root))
    shutil.copytree(root.rename(root.with_name("aside")), root, ignore=shutil.ignore_patterns("*.socket"))
    with pytest.raises(InputError, match="was replaced by another folder"):
        bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).liveness is Liveness.UNKNOWN
    assert not request.folder.ranks.exists()


@pytest.mark.parametrize("bench", [*HERE, RAY, RAY_WARM, SLURM, PILOT], indirect=True)
def test_a_broken_script_ends_as_script_error_with_what_shows_it(bench):
    request, status = ended(bench, "fail", rank=1, others="hang")
    verdict = result_of(request, status)
    assert (verdict.state, verdict.reason) == (TrialState.FAILED, FailureReason.SCRIPT_ERROR)
    assert verdict.excerpt
    assert status.failed
    assert not bench.has_processes(request)


def test_a_cancelled_attempt_has_ended_when_cancel_returns(bench):
    request = bench.request("hang")
    bench.launcher.launch(request)
    wait_until_started(bench.launcher, request)
    assert bench.launcher.cancel([request.key]) == set()
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.CANCELLED_BY_SEARCH)
    assert not bench.has_processes(request)


def test_an_attempt_cancelled_before_it_starts_never_starts(bench):
    request = bench.request("hang")
    bench.launcher.launch(request)
    assert bench.launcher.cancel([request.key]) == set()
    assert poll_one(bench.launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)


def test_cancelling_what_has_ended_or_was_never_launched_changes_nothing_and_it_is_launched_once(bench):
    request, before = ended(bench, "measure")
    assert bench.launcher.cancel([request.key, "demo-abc234.t0009.a1"]) == set()
    assert poll_one(bench.launcher, request) == before
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(request)


@pytest.mark.parametrize("bench", [*IN_SECONDS, RAY_WARM], indirect=True)
def test_nothing_outlasts_the_time_limit_by_more_than_the_allowance(bench):
    request, status = ended(bench, "ignore_sigterm", time_limit_s=2.0)
    assert (status.reason, result_of(request, status).state) == (FailureReason.TIME_LIMIT, TrialState.FAILED)
    assert not bench.has_processes(request)
    assert 2.0 <= status.ended_at - status.started_at <= bench.longest_s(2.0)


def test_two_attempts_run_side_by_side_each_launched_once(bench):
    requests = [bench.request("hang", trial=trial) for trial in ("t0001", "t0002")]
    assert bench.launcher.launch(requests[0])
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(requests[0])
    assert bench.launcher.launch(requests[1])
    for request in requests:
        wait_until_started(bench.launcher, request)
    statuses = bench.launcher.poll(request.key for request in requests)
    assert all(status.liveness is Liveness.ALIVE and status.started for status in statuses.values())
    assert bench.launcher.cancel(statuses) == set()


def test_an_attempt_that_was_never_accepted_is_unknown_and_not_adopted(bench):
    request = bench.request("measure")
    assert poll_one(bench.launcher, request).liveness is Liveness.UNKNOWN
    assert bench.launcher.adopt({request.key: request}) == {}
    assert bench.launcher.launch(request)
    assert result_of(request, wait_until_ended(bench.launcher, request)).state is TrialState.MEASURED


@EVERYWHERE
def test_the_next_driver_takes_over_what_the_last_one_left_and_nothing_runs_twice(bench):
    request, launcher = bench.take_over()
    assert list(launcher.adopt({request.key: request})) == [request.key]
    assert bench.outlives_its_driver or not bench.has_processes(request)
    with pytest.raises(ValueError, match="launched before"):
        launcher.launch(request)
    (request.folder.path / "go").touch()
    status = wait_until_ended(launcher, request)
    assert status.started_at <= status.ended_at <= launcher.now()
    verdict = result_of(request, status)
    assert verdict.reason is (None if bench.outlives_its_driver else FailureReason.INTERRUPTED)
    assert (verdict.state is TrialState.MEASURED) is bench.outlives_its_driver


@pytest.mark.parametrize("bench", ["fake_slurm", SLURM, PILOT], indirect=True)
def test_what_is_taken_over_lives_under_its_job_and_the_next_driver_can_end_it(bench):
    request, launcher = bench.take_over()
    adopted = launcher.adopt({request.key: request})
    status = wait_until_started(launcher, request)
    assert status.liveness is Liveness.ALIVE
    # A step's number is known once it has its nodes, which may be after it was taken over.
    assert str(status.job_id).partition(".")[0] == adopted[request.key].partition(".")[0]
    assert bench.has_processes(request)
    assert launcher.cancel([request.key]) == set()
    assert poll_one(launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)
