"""Contract of every launcher: local processes, Ray, Slurm and the simulated one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.launchers.ray.launcher import RayLauncher
from orchestrator.launchers.ray.runtime import RayRuntime
from search_spaces.errors import InputError
from tests.contracts.launcher_benches import (
    GRACE_PERIODS,
    Bench,
    FakeSlurmBench,
    ProcessBench,
    SimulatedBench,
    SlurmBench,
    SlurmPilotBench,
)
from tests.orchestrator.launchers.attempts import (
    poll_one,
    result_of,
    wait_until_ended,
    wait_until_started,
)
from tests.trials.fork_server.servers import light_code
from trials.attempt_result import Liveness
from trials.files.path_owners import FolderIdentity
from trials.trial import FailureReason, TrialState


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
        # The next test's pilot has the same name, so none may be left: not one that was taken over either.
        assert pilots.slurm.cancel([job for job in pilots.slurm.jobs() if not job.state.is_ended]) == set()
    elif request.param in ("ray", "ray_warm"):
        if request.param == "ray_warm":
            light_code(tmp_path / "code")
        runtime = request.getfixturevalue("ray_runtime")
        yield ProcessBench(tmp_path, RayLauncher(lambda: runtime, GRACE_PERIODS))
    else:
        if request.param == "local_warm":
            light_code(tmp_path / "code")  # the stand-in trial takes its place in it
        launcher = LocalLauncher([[], []], GRACE_PERIODS)
        yield ProcessBench(tmp_path, launcher)
        launcher.close()


@EVERYWHERE
def test_an_attempt_is_alive_and_then_ends_measured(bench):
    request = bench.request("measure")
    assert bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).liveness in (Liveness.ALIVE, Liveness.ENDED)
    status = wait_until_ended(bench.launcher, request)
    assert (status.liveness, status.started, status.failed, status.reason) == (Liveness.ENDED, True, False, None)
    assert status.started_at is not None
    assert status.ended_at is not None
    assert status.started_at <= status.ended_at <= bench.launcher.now()
    verdict = result_of(request, status)
    assert (verdict.state, verdict.excerpt) == (TrialState.MEASURED, None)


@pytest.mark.security("paths")
def test_nothing_is_launched_in_a_folder_that_was_put_in_the_place_of_the_one_taken(bench):
    request = bench.request("measure")
    root = request.folder.path.parents[2]
    request = replace(request, taken=FolderIdentity.at(root))
    shutil.copytree(root.rename(root.with_name("aside")), root)
    with pytest.raises(InputError, match="was replaced by another folder"):
        bench.launcher.launch(request)
    assert poll_one(bench.launcher, request).liveness is Liveness.UNKNOWN
    assert not request.folder.ranks.exists()


@pytest.mark.parametrize("bench", [*HERE, RAY, RAY_WARM, SLURM, PILOT], indirect=True)
def test_a_broken_script_ends_as_script_error_with_what_shows_it(bench):
    request = bench.request("fail", rank=1, others="hang")
    bench.launcher.launch(request)
    status = wait_until_ended(bench.launcher, request)
    verdict = result_of(request, status)
    assert (verdict.state, verdict.reason) == (TrialState.FAILED, FailureReason.SCRIPT_ERROR)
    assert verdict.excerpt
    assert status.failed
    assert not bench.has_processes(request)


@EVERYWHERE
def test_a_cancelled_attempt_has_ended_when_cancel_returns(bench):
    request = bench.request("hang")
    bench.launcher.launch(request)
    wait_until_started(bench.launcher, request)
    assert bench.launcher.cancel([request.spec.attempt_key]) == set()
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.CANCELLED_BY_SEARCH)
    assert not bench.has_processes(request)


def test_an_attempt_cancelled_before_it_starts_never_starts(bench):
    request = bench.request("hang")
    bench.launcher.launch(request)
    assert bench.launcher.cancel([request.spec.attempt_key]) == set()
    assert poll_one(bench.launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)


def test_cancelling_what_has_ended_or_was_never_launched_changes_nothing(bench):
    request = bench.request("measure")
    bench.launcher.launch(request)
    before = wait_until_ended(bench.launcher, request)
    assert bench.launcher.cancel([request.spec.attempt_key, "demo-abc234.t0009.a1"]) == set()
    assert poll_one(bench.launcher, request) == before


def test_an_attempt_it_never_saw_is_unknown(bench):
    assert poll_one(bench.launcher, bench.request("measure")).liveness is Liveness.UNKNOWN


@pytest.mark.parametrize("bench", IN_SECONDS, indirect=True)
def test_the_time_limit_ends_an_attempt(bench):
    request = bench.request("hang", time_limit_s=0.5)
    bench.launcher.launch(request)
    status = wait_until_ended(bench.launcher, request)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.TIME_LIMIT)
    assert result_of(request, status).state is TrialState.FAILED
    assert not bench.has_processes(request)


@pytest.mark.parametrize("bench", [*IN_SECONDS, RAY_WARM], indirect=True)
def test_nothing_outlasts_the_time_limit_by_more_than_the_allowance(bench):
    request = bench.request("ignore_sigterm", time_limit_s=2.0)
    bench.launcher.launch(request)
    status = wait_until_ended(bench.launcher, request)
    assert status.reason is FailureReason.TIME_LIMIT
    assert status.started_at is not None
    assert status.ended_at is not None
    assert 2.0 <= status.ended_at - status.started_at <= bench.longest_s(2.0)


def test_two_attempts_run_side_by_side(bench):
    requests = [bench.request("hang", trial=trial) for trial in ("t0001", "t0002")]
    for request in requests:
        assert bench.launcher.launch(request)
    for request in requests:
        wait_until_started(bench.launcher, request)
    statuses = bench.launcher.poll(request.spec.attempt_key for request in requests)
    assert all(status.liveness is Liveness.ALIVE and status.started for status in statuses.values())
    assert bench.launcher.cancel(statuses) == set()


def test_an_attempt_is_launched_once(bench):
    request = bench.request("measure")
    bench.launcher.launch(request)
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(request)
    wait_until_ended(bench.launcher, request)
    with pytest.raises(ValueError, match="launched before"):
        bench.launcher.launch(request)


def test_an_attempt_that_was_never_accepted_is_not_adopted(bench):
    request = bench.request("measure")
    assert bench.launcher.adopt({request.spec.attempt_key: request}) == {}
    assert bench.launcher.launch(request)
    assert result_of(request, wait_until_ended(bench.launcher, request)).state is TrialState.MEASURED


@EVERYWHERE
def test_the_next_driver_takes_over_what_the_last_one_left_and_nothing_runs_twice(bench):
    request, launcher = bench.take_over()
    assert list(launcher.adopt({request.spec.attempt_key: request})) == [request.spec.attempt_key]
    if not bench.outlives_its_driver:
        assert not bench.has_processes(request)
    with pytest.raises(ValueError, match="launched before"):
        launcher.launch(request)
    (request.folder.path / "go").touch()
    status = wait_until_ended(launcher, request)
    assert status.started_at is not None
    assert status.ended_at is not None
    assert status.started_at <= status.ended_at <= launcher.now()
    verdict = result_of(request, status)
    if bench.outlives_its_driver:
        assert verdict.state is TrialState.MEASURED
    else:
        assert verdict.reason is FailureReason.INTERRUPTED


@pytest.mark.parametrize("bench", ["fake_slurm", SLURM, PILOT], indirect=True)
def test_what_is_taken_over_lives_under_its_job_and_the_next_driver_can_end_it(bench):
    request, launcher = bench.take_over()
    key = request.spec.attempt_key
    adopted = launcher.adopt({key: request})
    status = wait_until_started(launcher, request)
    assert status.liveness is Liveness.ALIVE
    # A step's number is known once it has its nodes, which may be after it was taken over.
    assert str(status.job_id).partition(".")[0] == adopted[key].partition(".")[0]
    assert bench.has_processes(request)
    assert launcher.cancel([key]) == set()
    assert poll_one(launcher, request).reason is FailureReason.CANCELLED_BY_SEARCH
    assert not bench.has_processes(request)
