"""The agent of a pilot, as its batch script starts it; the steps here are scripts that need no Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.kit import until
from tests.orchestrator.launchers.attempts import is_running
from trials.pilot.files import (
    FORK_SERVER_SCRIPT,
    PilotFolder,
    PilotPlan,
    StepEnd,
    StepEndReason,
    StepFileKind,
    StepRequest,
    write,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

WITHIN_S = 60.0
AGENT = ("-m", "trials.pilot")
NUMBERED = 'echo 4 > "$PARLAY_STEP_FILE"\n'
"""The prolog's part of srun."""


class Pilot:
    """A pilot of two nodes and its agent."""

    def __init__(self, path: Path):
        self.folder = PilotFolder(path / "p0001")
        self.path = path
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self, idle_s: float = 60.0, program: Sequence[str] = AGENT) -> None:
        self.folder.steps.mkdir(parents=True, exist_ok=True)
        write(self.folder.plan, PilotPlan(2, 2, 3600.0, sys.executable, "", idle_s, time.time()))
        argv = [sys.executable, *program, str(self.folder.path)]
        self.agent = subprocess.Popen(argv, env={**os.environ, "SLURM_JOB_ID": "7"}, stderr=subprocess.DEVNULL)

    def ask(self, name: str, script: str, limit_s: float = 60.0, **details: object) -> Path:
        """Ask for a step on one node; returns its folder."""
        place = self.path / name
        place.mkdir()
        (place / "job.sh").write_text(script)
        self.folder.steps.mkdir(parents=True, exist_ok=True)
        given = {"nodes": ("n1",), "num_nodes": 1, "time_limit_s": limit_s} | details
        asked = StepRequest(str(place), "job.sh", **given)
        write(self.folder.step_file(name, StepFileKind.REQUESTED), asked)
        return place

    def end_of(self, name: str) -> StepEnd:
        until(self.folder.step_file(name, StepFileKind.ENDED).exists)
        return self.folder.end(name)

    def ends(self) -> int:
        return self.agent.wait(WITHIN_S)

    def kill(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()


PATIENT = """
import sys
from pathlib import Path
from trials.pilot import agent

agent._SETTLE_S = 60.0
agent.run_agent(Path(sys.argv[1]))
"""
"""An agent that keeps a step that failed back for longer than a test takes to go on."""


@pytest.fixture
def pilot(tmp_path: Path) -> Iterator[Pilot]:
    made = Pilot(tmp_path)
    yield made
    made.kill()


def test_a_step_is_started_once_and_told_of(pilot):
    place = pilot.ask("t0001.a1", NUMBERED + "echo ran >> ran; sleep 0.5; exit 3")
    pilot.start()
    end = pilot.end_of("t0001.a1")
    assert (end.reason, end.exit_code, end.signal, end.step) == (StepEndReason.EXITED, 3, 0, "4")
    assert (place / "ran").read_text() == "ran\n"
    assert pilot.folder.start("t0001.a1").step == "4"
    assert end.ended_at - end.started_at >= 0.5
    pilot.folder.drain.touch()
    assert pilot.ends() == 0
    assert pilot.folder.closed.exists()


def test_what_the_driver_took_back_never_runs(pilot):
    place = pilot.ask("t0001.a1", "touch ran")
    assert pilot.folder.take("t0001.a1", StepFileKind.WITHDRAWN)
    pilot.start(idle_s=0.5)
    assert pilot.ends() == 0
    assert not (place / "ran").exists()
    assert not pilot.folder.step_file("t0001.a1", StepFileKind.CLAIMED).exists()


def test_what_the_agent_has_claimed_can_not_be_taken_back_but_cancelled(pilot):
    pilot.ask("t0001.a1", "exec sleep 60")
    pilot.start()
    until(pilot.folder.step_file("t0001.a1", StepFileKind.CLAIMED).exists)
    assert not pilot.folder.take("t0001.a1", StepFileKind.WITHDRAWN)
    pilot.folder.step_file("t0001.a1", StepFileKind.CANCEL).touch()
    end = pilot.end_of("t0001.a1")
    assert (end.reason, end.signal, end.step) == (StepEndReason.CANCELLED, signal.SIGTERM, None)


def test_a_step_is_ended_at_its_limit_and_the_others_go_on(pilot):
    pilot.ask("t0001.a1", NUMBERED + "exec sleep 60", limit_s=1.0)
    pilot.ask("t0002.a1", NUMBERED + "until [ -e go ]; do sleep 0.05; done")
    pilot.start()
    end = pilot.end_of("t0001.a1")
    assert end.reason is StepEndReason.TIME_LIMIT
    assert 1.0 <= end.ended_at - end.started_at < 60.0
    (pilot.path / "t0002.a1" / "go").touch()
    assert pilot.end_of("t0002.a1").exit_code == 0


def test_a_pilot_that_nobody_needs_ends_by_itself_but_not_while_a_step_runs(pilot):
    pilot.ask("t0001.a1", "sleep 1.5")
    pilot.start(idle_s=0.5)
    assert pilot.ends() == 0
    assert pilot.folder.end("t0001.a1").exit_code == 0


def test_steps_that_end_with_the_job_are_told_apart_from_those_that_fail(pilot):
    """Slurm signals the agent and the steps at the same time: the step's end may be seen first, and here is."""
    place = pilot.ask("t0001.a1", NUMBERED + "trap 'exit 143' TERM; echo $$ > pid; sleep 60 & wait")
    pilot.ask("t0002.a1", NUMBERED + "touch begun; exec sleep 60")
    pilot.start(program=("-c", PATIENT))
    until((pilot.path / "t0002.a1" / "begun").exists)
    until(lambda: (place / "pid").exists() and bool((place / "pid").read_text().strip()))
    pid = int((place / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{pid}").exists())  # a process whose end nobody has looked at is still there
    pilot.agent.terminate()
    assert pilot.ends() == 0
    assert [pilot.folder.end(name).reason for name in ("t0001.a1", "t0002.a1")] == [StepEndReason.INTERRUPTED] * 2


def test_a_script_that_cannot_be_started_has_ended(pilot):
    pilot.folder.steps.mkdir(parents=True)
    asked = StepRequest(str(pilot.path / "nowhere"), "job.sh", 1, 60.0, ("n1",))
    write(pilot.folder.step_file("t0001.a1", StepFileKind.REQUESTED), asked)
    pilot.start()
    end = pilot.end_of("t0001.a1")
    assert (end.reason, end.exit_code, end.step) == (StepEndReason.EXITED, 127, None)


def test_an_agent_that_is_started_again_serves_nobody(pilot):
    """After a requeue of the job its steps are gone."""
    place = pilot.ask("t0001.a1", "touch ran")
    pilot.folder.heartbeat.touch()
    pilot.start()
    assert pilot.ends() == 1
    assert not (place / "ran").exists()


@pytest.mark.walks
def test_limits_hold_while_nothing_can_be_written(pilot):
    place = pilot.ask("t0001.a1", NUMBERED + "trap 'touch ended; exit 1' TERM; sleep 60 & wait", limit_s=1.0)
    pilot.folder.step_file("t0001.a1", StepFileKind.STARTED).mkdir()  # nothing can take its place
    pilot.start()
    until((place / "ended").exists)
    pilot.folder.step_file("t0001.a1", StepFileKind.STARTED).rmdir()
    assert pilot.end_of("t0001.a1").reason is StepEndReason.TIME_LIMIT


TELL = NUMBERED + 'echo "${PARLAY_FORK_SERVERS-plain}" > how'


def servers(pilot: Pilot, script: str) -> Path:
    """The folder of a kind of fork servers whose step is this script in the place of srun."""
    folder = pilot.folder.fork_servers("k1")
    folder.mkdir(parents=True)
    (folder / FORK_SERVER_SCRIPT).write_text(script)
    return folder


def test_steps_of_a_kind_share_its_fork_servers_which_end_with_the_pilot_and_others_start_plain(pilot):
    folder = servers(pilot, "echo $$ > pid; echo started >> starts; touch n1.socket; exec sleep 600")
    places = [pilot.ask(f"t000{i}.a1", TELL, fork_servers="k1") for i in (1, 2)]
    plain = pilot.ask("t0003.a1", TELL)
    pilot.start()
    assert [pilot.end_of(f"t000{i}.a1").exit_code for i in (1, 2, 3)] == [0, 0, 0]
    found = [(place / "how").read_text().strip() for place in (*places, plain)]
    assert found == [str(folder), str(folder), "plain"]
    assert (folder / "starts").read_text() == "started\n"
    pilot.folder.drain.touch()
    assert pilot.ends() == 0
    assert not is_running(int((folder / "pid").read_text()))
    assert pilot.folder.read_plain_starts() is None


@pytest.mark.fault(54)
def test_where_slurm_refuses_the_fork_servers_step_the_reason_is_kept_for_the_driver(pilot):
    servers(pilot, "echo \"srun: unrecognized option '--overlap'\" >&2; exit 1")
    for name in ("t0001.a1", "t0002.a1", "t0003.a1"):
        place = pilot.ask(name, TELL, fork_servers="k1")
        if name == "t0001.a1":
            pilot.start()
        assert pilot.end_of(name).exit_code == 0
    assert (place / "how").read_text() == "plain\n"
    assert "--overlap" in pilot.folder.read_plain_starts().reason
