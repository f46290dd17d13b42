"""What every launcher keeps, whatever it launches with: plain processes, Ray, a measured table."""

from __future__ import annotations

import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.base import ENDING_ALLOWANCE_S, Launcher, LaunchRequest
from orchestrator.launchers.local import LocalLauncher
from orchestrator.launchers.processes import Graces
from orchestrator.launchers.ray import RayLauncher
from orchestrator.launchers.recorded import RecordedLauncher
from orchestrator.ray_runtime import RayRuntime
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.measured import Observation
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
from trials.classify import Life
from trials.trial import FailureReason, TrialState

GRACES = Graces(after_failure_s=0.3, after_success_s=5.0, after_term_s=0.3)
REPOSITORY = Path(__file__).parents[2]


class Bench(ABC):
    """A launcher with room for two attempts of two ranks, and attempts that behave as asked."""

    launcher: Launcher

    def __init__(self, root: Path):
        self.root = root

    def request(self, behaviour: str, trial: str = "t0001", **details: object) -> LaunchRequest:
        return attempt_request(self.root, behaviour, trial=trial, **details)

    @abstractmethod
    def take_over(self) -> tuple[LaunchRequest, Launcher]:
        """An attempt whose driver has vanished while it ran, and the launcher of the next driver."""

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


@pytest.fixture(scope="module")
def ray_runtime() -> Iterator[RayRuntime]:
    runtime = RayRuntime.start_loopback(rank_slots=4, num_gpus=0)
    yield runtime
    runtime.close()


@pytest.fixture(
    params=[
        pytest.param("local", marks=[pytest.mark.processes, pytest.mark.timeout(60)]),
        pytest.param("ray", marks=[pytest.mark.processes, pytest.mark.timeout(90)]),
        "recorded",
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "recorded":
        yield RecordedBench(tmp_path)
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


def test_the_time_limit_ends_an_attempt(bench: Bench) -> None:
    request = bench.request("hang", time_limit_s=0.5)
    bench.launcher.launch(request)
    ending = wait_until_ended(bench.launcher, request)
    assert (ending.life, ending.reason) == (Life.ENDED, FailureReason.TIME_LIMIT)
    assert verdict_on(request, ending).state is TrialState.FAILED
    assert not bench.has_processes(request)


def test_nothing_outlasts_the_time_limit_by_more_than_the_allowance(bench: Bench) -> None:
    request = bench.request("ignore_sigterm", time_limit_s=2.0)
    bench.launcher.launch(request)
    ending = wait_until_ended(bench.launcher, request)
    assert ending.reason is FailureReason.TIME_LIMIT
    assert ending.started_at is not None
    assert ending.ended_at is not None
    least_allowed_s = ENDING_ALLOWANCE_S - (Graces().after_term_s - GRACES.after_term_s)
    assert 2.0 <= ending.ended_at - ending.started_at <= 2.0 + least_allowed_s


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
    assert not bench.has_processes(request)
    with pytest.raises(ValueError, match="launched before"):
        launcher.launch(request)
    ending = wait_until_ended(launcher, request)
    assert ending.started_at is not None
    assert ending.ended_at is not None
    assert ending.started_at <= ending.ended_at <= launcher.now()
    verdict = verdict_on(request, ending)
    if isinstance(bench, ProcessBench):
        assert verdict.reason is FailureReason.INTERRUPTED
    else:
        assert verdict.state is TrialState.MEASURED
