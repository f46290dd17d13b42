"""One attempt run to its end: waits that are logged, and stops."""

from __future__ import annotations

import pytest

from orchestrator.diagnostics.job import Program, new_job
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchPostponed, LaunchRequest
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.scripted import Script, ScriptedLauncher
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.parity_models import SHAPES
from trials.files.folders import SearchFolder

ALIVE = LaunchStatus(Liveness.ALIVE, detail="Resources")
ENDED = LaunchStatus(Liveness.ENDED)


@pytest.fixture
def request_(tmp_path) -> LaunchRequest:
    cpu = Cluster(ACCELERATORS["cpu"], 1, 1)
    program = Program(cpu, SHAPES["gpt2"], {"kind": "doctor"}, "python3", 60.0, lambda place: place)
    return new_job(SearchFolder(tmp_path / "job"), program)


def launcher_of(*seen: LaunchStatus) -> ScriptedLauncher:
    """Launcher that postpones the launch three times; then the attempt has these statuses, the last one for good."""
    script = Script(look=lambda request, number: seen[min(number, len(seen)) - 1])
    return ScriptedLauncher(lambda spec: script, meets=[LaunchPostponed("the queue is full")] * 3)


def test_waiting_reasons_are_logged_once(request_, logged):
    seen = [
        *[ALIVE] * 3,
        LaunchStatus(Liveness.ALIVE, detail="PartitionDown"),
        *[LaunchStatus(Liveness.UNKNOWN, detail="Slurm does not answer")] * 2,
        *[LaunchStatus(Liveness.ALIVE, started=True, nodes=("n1", "n2"))] * 2,
        ENDED,
    ]
    polls = []
    assert AttemptRunner(launcher_of(*seen)).run(request_, lambda: polls.append(1)) == ENDED
    assert len(polls) == len(seen) - 1
    assert logged == [
        "the queue is full",
        "t0001.a1 waits: Resources",
        "t0001.a1 waits: PartitionDown",
        "t0001.a1 is unreachable: Slurm does not answer",
        "t0001.a1 runs on n1 n2",
    ]


@pytest.mark.parametrize("left", [set(), {"job.t0001.a1"}, KeyboardInterrupt()], ids=["ended", "left", "interrupted"])
def test_a_requested_stop_cancels_and_an_attempt_that_may_still_run_is_logged(request_, left, logged):
    def on_cancel(keys: set[str]) -> set[str]:
        if isinstance(left, KeyboardInterrupt):
            raise left
        return left

    launcher = launcher_of(ALIVE)
    launcher.on_cancel = on_cancel
    with pytest.raises(KeyboardInterrupt):
        AttemptRunner(launcher, lambda: any(job.looks > 3 for job in launcher.jobs.values())).run(request_)
    assert launcher.cancelled == ["job.t0001.a1"]
    assert logged[-1].startswith("may still be running: job.t0001.a1") is (left != set())


def test_a_stop_requested_before_the_launch_launches_nothing(request_):
    launcher = launcher_of(ALIVE)
    with pytest.raises(KeyboardInterrupt):
        AttemptRunner(launcher, lambda: True).run(request_)
    assert (launcher.requests, launcher.cancelled) == ([], [])


def test_results_are_waited_for_no_longer_than_the_limit():
    launcher = ScriptedLauncher(clock=0.0)
    assert AttemptRunner(launcher).wait_for(lambda: "found" if launcher.clock >= 5.0 else None, 90.0) == "found"
    assert launcher.clock == 5.0
    assert AttemptRunner(launcher).wait_for(lambda: None, 90.0) is None
    assert launcher.clock == 95.0
