"""Attempt folders that answer late, never, or with half a file: their trial waits, the others continue."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.launchers.timeouts import HangGuard
from orchestrator.search import attempt_factory
from orchestrator.search.attempt_factory import OUTCOME_GRACE_S, SILENT_NODES_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import NODE, Script, ScriptedLauncher
from tests.rig import Rig
from trials.attempt_result import LaunchStatus, Liveness
from trials.ledger.events import EventKind, SearchRecord
from trials.trial import FailureReason, TrialState

pytestmark = pytest.mark.slow

CUT = b'{"schema": "parlay.outcome/1", "search_id": "rig-aa'
ONE = Limits(max_trials=1, parallel_trials=1)


@dataclass
class LateLauncher(ScriptedLauncher):
    """Show the outcomes that `node` wrote of t0001 as `shown` (None: no file) until `late_s` after their end."""

    node: str = "elsewhere"
    was_silent: bool = False
    shown: bytes | None = None
    late_s: float = OUTCOME_GRACE_S / 2

    def _status(self, key: str) -> LaunchStatus:
        status, job = super()._status(key), self.jobs[key]
        if status.liveness is Liveness.ENDED and job.request.spec.trial == "t0001":
            path = job.request.folder.outcome()
            if self.clock - status.ended_at < self.late_s:
                path.unlink()
                if self.shown is not None:
                    path.write_bytes(self.shown)
        return replace(status, nodes=(self.node,), nodes_were_silent=self.was_silent)


def all_measured_at_once(search: SearchRecord) -> bool:
    return [(t.state, len(t.attempts)) for t in search.trials] == [(TrialState.MEASURED, 1)] * 9


def waited_s(rig: Rig, launcher: LateLauncher) -> float:
    """Run a search of one trial, and return how long its outcome was waited for."""
    rig.limits, rig.launcher, begun = ONE, launcher, launcher.clock
    rig.run()
    return launcher.clock - begun - Script().duration_s


@pytest.mark.fault(25)
@pytest.mark.parametrize("shown", [None, b"", CUT, b"\xc3"])
def test_an_outcome_that_comes_late_is_waited_for_while_others_go_on(rig, shown):
    rig.launcher, events = LateLauncher(shown=shown), []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: events.append((event.kind, event.data.get("trial"))))
    assert all_measured_at_once(rig.run())
    assert (EventKind.ATTEMPT_UNKNOWN, "t0001") in events
    own_end = events.index((EventKind.TRIAL_ENDED, "t0001"))
    assert (EventKind.TRIAL_ENDED, "t0002") in events[:own_end]
    assert (EventKind.TRIAL_PROPOSED, "t0003") in events[:own_end]


@pytest.mark.fault(19, 25)
@pytest.mark.parametrize(
    ("seen", "grace_s", "reason"),
    [
        ({}, OUTCOME_GRACE_S, FailureReason.SCRIPT_ERROR),
        ({"shown": b""}, OUTCOME_GRACE_S, FailureReason.RESULT_INVALID),
        ({"shown": CUT}, OUTCOME_GRACE_S, FailureReason.RESULT_INVALID),
        ({"was_silent": True}, SILENT_NODES_GRACE_S, FailureReason.SCRIPT_ERROR),
        ({"node": NODE}, 0.0, FailureReason.SCRIPT_ERROR),
    ],
    ids=["none", "empty", "cut", "of nodes that were silent for long", "of this machine"],
)
def test_one_that_never_comes_is_waited_for_until_the_grace_is_over(rig, seen, grace_s, reason):
    assert grace_s <= waited_s(rig, LateLauncher(late_s=1e9, **seen)) < grace_s + 5
    assert rig.open_driver().search.trials[0].reason is reason


@pytest.mark.fault(25)
def test_the_folder_is_opened_anew_before_every_look(rig, monkeypatch):
    """NFS asks its server when a folder is opened; a local file system is always up to date."""
    opened: list[tuple[Path, int]] = []

    def noting(path, flags):
        opened.append((path, flags))
        return os.open(path, flags)

    monkeypatch.setattr(attempt_factory, "os", SimpleNamespace(**vars(os) | {"open": noting}))
    waited_s(rig, LateLauncher())
    folder = rig.folder.attempt("t0001", "a1").path
    looks = [flags for path, flags in opened if path == folder and flags & os.O_DIRECTORY]
    assert len(looks) > OUTCOME_GRACE_S / 2, "twice a second until it came"


@pytest.mark.fault(28)
def test_a_folder_that_cannot_be_written_holds_up_only_its_own_trial(rig, logged):
    folder = rig.folder.path / "trials" / "t0001"
    folder.mkdir(parents=True)

    def end_once_all_others_ended(search, event) -> None:
        if event.kind is EventKind.TRIAL_ENDED and sum(t.state.is_ended for t in search.trials) == 8:
            assert not search.trial("t0001").state.is_ended
            end()

    with read_only(folder) as end:
        rig.callbacks = DriverCallbacks(on_event=end_once_all_others_ended)
        assert all_measured_at_once(rig.run())
    [note] = logged
    assert str(folder) in note


@contextmanager
def read_only(folder: Path) -> Iterator[Callable[[], None]]:
    """Make a folder unwritable: by its mode; for root, whom modes do not stop, by a mount or a stray file."""
    undo: list[Callable[[], object]] = []
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)]
    if os.geteuid() != 0:
        folder.chmod(0o500)
        undo.append(lambda: folder.chmod(0o700))
    elif subprocess.run(mount, capture_output=True).returncode == 0:
        undo.append(lambda: subprocess.run(["umount", str(folder)], check=True))
    else:
        folder.rmdir()
        folder.touch()
        undo.append(folder.unlink)
    end = lambda: undo and undo.pop()()  # noqa: E731
    yield end
    end()


def test_while_a_call_hangs_another_of_its_kind_is_refused_at_once_and_the_next_is_made_anew():
    come_back, calls, guard = threading.Event(), [], HangGuard(0.05)

    def hang() -> str:
        calls.append("hung")
        come_back.wait()
        return "old"

    for _ in range(3):
        with pytest.raises(TimeoutError, match="disk"):
            guard.call("disk", hang)
    assert calls == ["hung"]
    assert guard.call("another", lambda: "answer") == "answer"
    come_back.set()
    answers: list[str] = []
    while not answers:
        try:
            answers.append(guard.call("disk", lambda: "new"))
        except TimeoutError:
            continue
    assert answers == ["new"]


def test_a_time_out_that_a_call_raises_itself_is_raised_and_refuses_no_other():
    def fail() -> None:
        raise TimeoutError("the server's own")

    guard = HangGuard(5.0)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="the server's own"):
            guard.call("server", fail)
