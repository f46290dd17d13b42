"""`parlay replay` stopped by ctrl-C, SIGTERM or both, in a run or between sessions; unwritable folders; and its lock on
this machine. All in this process."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.launchers import factory
from orchestrator.launchers.base import LaunchRefused
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.machine_lock import MachineLock
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import Script, ScriptedLauncher, in_turn
from trials.attempt_result import LaunchStatus, Liveness


def signalled(*signals: signal.Signals) -> ScriptedLauncher:
    """Sends this process the next signal whenever its run is waited for or cancelled; the run never ends."""
    left = list(signals)

    def send(*_: object) -> set[str]:
        if launcher.requests and left:
            os.kill(os.getpid(), left.pop(0))
        return set()

    runs = Script(look=lambda request, number: LaunchStatus(Liveness.ALIVE, started=True))
    launcher = ScriptedLauncher(lambda spec: runs, meets=[None], on_wait=send, on_cancel=send)
    return launcher


def signalled_between_sessions(number: signal.Signals, *step_times_s: float) -> ScriptedLauncher:
    """Sends this process the signal while the second session is waited for."""
    launcher = in_turn(*step_times_s)

    def send() -> None:
        if len(launcher.requests) == len(step_times_s):
            os.kill(os.getpid(), number)

    launcher.on_wait = send
    return launcher


def no_space_left(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def recipe(tmp_path) -> Path:
    (tmp_path / "code").mkdir()
    return write_recipe(tmp_path / "recipe", source_of(measured_trial("t0001", LAYOUT, 0.1)), tmp_path / "code")


@pytest.mark.parametrize(
    ("signals", "code", "left"),
    [
        ([signal.SIGINT], 130, False),
        ([signal.SIGTERM], 75, False),
        ([signal.SIGTERM, signal.SIGTERM], 75, False),
        ([signal.SIGINT, signal.SIGINT], 130, True),
    ],
)
def test_a_signal_cancels_the_run_in_flight_and_a_second_ctrl_c_leaves_at_once(
    recipe, tmp_path, monkeypatch, capsys, signals, code, left
):
    launcher = signalled(*signals)
    monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: (launcher, None))
    before = signal.getsignal(signal.SIGTERM)
    assert run(["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--repeats", "1", "--json"]) == code
    out, err = capsys.readouterr()
    assert len(launcher.cancelled) == 1
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert ("may still be running: replay-" in err) is left
    assert "measuring 1 time in " in err
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_between_sessions_leaves_what_was_measured_until_then(
    recipe, tmp_path, monkeypatch, capsys, number, code
):
    launcher = signalled_between_sessions(number, 0.115, 0.115)
    monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: (launcher, None))
    assert run(["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--repeats", "2", "--json"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "interrupted"
    [file] = (tmp_path / "runs").glob("replay-*/replay.json")
    left = json.loads(file.read_text())
    assert (left["verdict"], left["detail"]) == ("inconclusive", "stopped before it had a verdict")
    assert left["ratio"] == pytest.approx(0.1 / 0.115)
    assert [session["runs"] for session in left["sessions"]] == [2]
    assert f"the result so far is in {file}" in err
    assert "0.870x as fast" in err


def test_a_replay_that_is_stopped_and_cannot_write_what_it_measured_is_stopped_all_the_same(
    recipe, tmp_path, monkeypatch, capsys
):
    launcher = signalled_between_sessions(signal.SIGTERM, 0.115)
    monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: (launcher, None))
    monkeypatch.setattr("orchestrator.replay.run.write_json", no_space_left)
    assert run(["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--repeats", "1", "--json"]) == 75
    out, err = capsys.readouterr()
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert "the result so far could not be written: [Errno 28] No space left on device" in err


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_a_home_that_cannot_be_written_is_named_as_what_is_wrong(
    recipe, tmp_path, own_home, monkeypatch, capsys, launcher
):
    (own_home / "measuring.lock").mkdir()
    (own_home / "slurm").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's commands
    words = ["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--launcher", launcher, "--json"]
    assert run(words) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["key"], error["value"]) == ("home", "PARLAY_HOME", str(own_home))
    assert "set PARLAY_HOME" in error["fix"]
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_named_by_its_option(recipe, tmp_path, capsys):
    (tmp_path / "runs").write_text("")
    words = ["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--launcher", "local", "--json"]
    assert run(words) == 6
    assert json.loads(capsys.readouterr().out)["error"]["key"] == "--work-dir"


class TestTurn:
    """Another replay holds this machine's lock when one begins."""

    @pytest.fixture
    def other(self, own_home) -> Iterator[MachineLock]:
        lock = MachineLock(own_home)
        assert lock.try_acquire()
        yield lock
        lock.release()

    @pytest.fixture
    def words(self, recipe, tmp_path) -> list[str]:
        return ["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), "--launcher", "local"]

    def test_what_starts_its_ranks_is_started_under_its_lock(self, words, other, own_home, monkeypatch, capsys):
        """Ray's start would disturb the one that measures."""
        seen = []

        def wait(seconds: float) -> None:
            seen.append("waits")
            other.release()

        def made(*_: object, **__: object) -> tuple[ScriptedLauncher, None]:
            assert not other.try_acquire()
            seen.append("starts")
            return in_turn(0.1), None

        monkeypatch.setattr("orchestrator.replay.run.time.sleep", wait)
        monkeypatch.setattr(factory, "make_launcher", made)
        assert run([*words, "--repeats", "1"]) == 0
        assert seen == ["waits", "starts"]
        assert "waiting for another replay on this machine to finish" in capsys.readouterr().err
        assert other.try_acquire()

    def test_where_nothing_can_start_its_ranks_it_releases_its_lock(self, words, other, monkeypatch):
        def refused(*_: object, **__: object) -> None:
            raise LaunchRefused("no Ray at 10.0.0.1:6379")

        other.release()
        monkeypatch.setattr(factory, "make_launcher", refused)
        assert run(words) == 6
        assert other.try_acquire()

    def test_what_is_impossible_here_waits_for_no_lock_and_starts_nothing(self, words, other, tmp_path, monkeypatch):
        monkeypatch.setattr("orchestrator.replay.run.this_machine", lambda *_: Cluster(ACCELERATORS["h100-80gb"], 8, 1))
        monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: pytest.fail("a launcher is made"))
        assert run(words) == 12
        assert not (tmp_path / "runs").exists()
