"""`parlay replay` stopped by ctrl-C, SIGTERM or both, in a run or between sessions; unwritable folders; and its lock on
this machine. All in this process."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.main import main as run
from orchestrator.launchers import factory
from orchestrator.launchers.base import Launcher
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.runs import MachineLock
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


@pytest.fixture
def replayed(recipe, tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Replay the recipe with this launcher; return the exit code, the object and the remarks."""

    def answered(launcher: Launcher | None, *words: str) -> tuple[int, dict[str, Any], str]:
        if launcher is not None:
            monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: (launcher, None))
        code = run(["replay", str(recipe.parent), "--work-dir", str(tmp_path / "runs"), *words, "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return answered


@pytest.mark.parametrize(
    ("signals", "code", "left"),
    [
        ([signal.SIGINT], 130, False),
        ([signal.SIGTERM], 75, False),
        ([signal.SIGTERM, signal.SIGTERM], 75, False),
        ([signal.SIGINT, signal.SIGINT], 130, True),
    ],
)
def test_a_signal_cancels_the_run_in_flight_and_a_second_ctrl_c_leaves_at_once(replayed, signals, code, left):
    launcher, before = signalled(*signals), signal.getsignal(signal.SIGTERM)
    ended, answer, err = replayed(launcher, "--repeats", "1")
    assert (ended, answer["error"]["code"], len(launcher.cancelled)) == (code, "interrupted", 1)
    assert ("may still be running: replay-" in err) is left
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_between_sessions_leaves_what_was_measured_until_then(replayed, tmp_path, number, code):
    ended, answer, err = replayed(signalled_between_sessions(number, 0.115, 0.115), "--repeats", "2")
    assert (ended, answer["error"]["code"]) == (code, "interrupted")
    [file] = (tmp_path / "runs").glob("replay-*/replay.json")
    assert [session["runs"] for session in json.loads(file.read_text())["sessions"]] == [2]
    assert f"the result so far is in {file}" in err


def test_a_replay_that_is_stopped_and_cannot_write_what_it_measured_is_stopped_all_the_same(replayed, monkeypatch):
    monkeypatch.setattr("orchestrator.replay.run.write_json", no_space_left)
    code, answer, err = replayed(signalled_between_sessions(signal.SIGTERM, 0.115), "--repeats", "1")
    assert (code, answer["error"]["code"]) == (75, "interrupted")
    assert "the result so far could not be written: [Errno 28] No space left on device" in err


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_a_home_that_cannot_be_written_is_named_as_what_is_wrong(replayed, tmp_path, own_home, monkeypatch, launcher):
    (own_home / "measuring.lock").mkdir()
    (own_home / "slurm").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))  # without Slurm's commands
    code, answer, _ = replayed(None, "--launcher", launcher)
    error = answer["error"]
    assert (code, error["code"], error["key"], error["value"]) == (2, "home", "PARLAY_HOME", str(own_home))
    assert not (tmp_path / "runs").exists()


def test_what_starts_ranks_on_this_machine_is_started_under_its_lock(replayed, own_home, monkeypatch):
    """Ray's start would disturb the one that measures."""
    other, seen = MachineLock(own_home), []
    assert other.try_acquire()

    def wait(seconds: float) -> None:
        seen.append("waits")
        other.release()

    def made(*_: object, **__: object) -> tuple[ScriptedLauncher, None]:
        assert not other.try_acquire()
        seen.append("starts")
        return in_turn(0.1), None

    monkeypatch.setattr("orchestrator.replay.run.time", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(factory, "make_launcher", made)
    code, _, err = replayed(None, "--launcher", "local", "--repeats", "1")
    assert (code, seen) == (0, ["waits", "starts"])
    assert "waiting for another replay on this machine to finish" in err
    assert other.try_acquire()
    other.release()
