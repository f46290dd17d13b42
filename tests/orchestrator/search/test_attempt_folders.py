"""Attempt folders that answer late, never, or with half a file: their trial waits, the others continue."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.common.timeouts import HangGuard
from orchestrator.samplers.model_free import GridSampler
from orchestrator.search import attempt_factory
from orchestrator.search.attempt_factory import OUTCOME_GRACE_S, SILENT_NODES_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import NODE, Script, ScriptedLauncher, measured_outcome
from tests.orchestrator.search.rig import Rig
from trials.attempt_result import LaunchStatus, Liveness
from trials.files import folders
from trials.files.folders import write_json
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason, TrialState

pytestmark = pytest.mark.slow

CUT = b'{"schema": "parlay.outcome/1", "search_id": "rig-aa'


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


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig(tmp_path, limits=Limits(max_trials=9, parallel_trials=2))


def when_all_others_ended(rig: Rig, then: Callable[[], None]) -> Callable[..., None]:
    """Call `then` once every trial but t0001 has ended, and assert that t0001 has not."""

    def on_event(search, event) -> None:
        if event.kind is EventKind.TRIAL_ENDED and sum(t.state.is_ended for t in search.trials) == 8:
            assert not search.trial("t0001").state.is_ended
            then()

    return on_event


@pytest.mark.fault(25)
@pytest.mark.parametrize("shown", [None, b"", CUT, b"\xc3"])
def test_an_outcome_that_comes_late_is_waited_for_while_others_go_on(rig, shown):
    rig.launcher = LateLauncher(shown=shown)
    events = []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: events.append((event.kind, event.data.get("trial"))))
    search = rig.open_driver().run()
    assert [(t.state, len(t.attempts)) for t in search.trials] == [(TrialState.MEASURED, 1)] * 9
    assert (EventKind.ATTEMPT_UNKNOWN, "t0001") in events
    own_end = events.index((EventKind.TRIAL_ENDED, "t0001"))
    assert (EventKind.TRIAL_ENDED, "t0002") in events[:own_end]
    assert (EventKind.TRIAL_PROPOSED, "t0003") in events[:own_end]


@pytest.mark.fault(25)
@pytest.mark.parametrize(
    ("shown", "reason"),
    [(None, FailureReason.SCRIPT_ERROR), (b"", FailureReason.RESULT_INVALID), (CUT, FailureReason.RESULT_INVALID)],
)
def test_one_that_never_comes_is_waited_for_until_the_grace_is_over(rig, shown, reason):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.launcher = LateLauncher(shown=shown, late_s=1e9)
    begun = rig.launcher.clock
    trial = rig.open_driver().run().trials[0]
    assert trial.reason is reason
    waited_s = rig.launcher.clock - begun - Script().duration_s
    assert OUTCOME_GRACE_S <= waited_s < OUTCOME_GRACE_S + 5


@pytest.mark.fault(19)
def test_of_nodes_that_were_silent_for_long_nothing_is_waited_for(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.launcher = LateLauncher(late_s=1e9, was_silent=True)
    begun = rig.launcher.clock
    rig.open_driver().run()
    waited_s = rig.launcher.clock - begun - Script().duration_s
    assert SILENT_NODES_GRACE_S <= waited_s < SILENT_NODES_GRACE_S + 5 < OUTCOME_GRACE_S


@pytest.mark.fault(25)
def test_what_this_machine_wrote_is_there_at_once_or_not_at_all(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.launcher = LateLauncher(node=NODE, late_s=1e9)
    begun = rig.launcher.clock
    rig.open_driver().run()
    assert rig.launcher.clock - begun < Script().duration_s + 5


@pytest.mark.fault(25)
def test_the_folder_is_opened_anew_before_every_look(rig, monkeypatch):
    """NFS asks its server when a folder is opened; a local file system is always up to date."""
    opened: list[tuple[Path, int]] = []

    def noting(path, flags):
        opened.append((path, flags))
        return os.open(path, flags)

    monkeypatch.setattr(attempt_factory, "os", SimpleNamespace(**vars(os) | {"open": noting}))
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.launcher = LateLauncher()
    rig.open_driver().run()
    folder = rig.path / "runs" / "rig-aaaaaa" / "trials" / "t0001" / "a1"
    looks = [flags for path, flags in opened if path == folder and flags & os.O_DIRECTORY]
    assert len(looks) > OUTCOME_GRACE_S / 2, "twice a second until it came"


@pytest.fixture
def quickly(monkeypatch) -> None:
    monkeypatch.setattr(attempt_factory, "FOLDER_TIMEOUT_S", 0.2)


@pytest.mark.fault(28)
def test_a_folder_that_hangs_when_it_is_read_holds_up_only_its_own_trial(rig, quickly, monkeypatch):
    rig.launcher.script = lambda spec: Script(leaves_outcome=spec.trial != "t0001")
    hanging = rig.path / "runs" / "rig-aaaaaa" / "trials" / "t0001" / "a1" / "outcome.r0.json"
    is_back, read_plain = threading.Event(), folders.read_plain

    def read(path, most_bytes=None):
        if path == hanging and not is_back.is_set():
            is_back.wait()  # as for a file on a server that is gone
            raise FileNotFoundError  # what was not there then: an old nothing is not believed
        return read_plain(path, most_bytes)

    def answer() -> None:
        job = rig.launcher.jobs["rig-aaaaaa.t0001.a1"]
        write_json(hanging, measured_outcome(job.request.spec, 1000.0).to_json())
        is_back.set()

    monkeypatch.setattr(folders, "read_plain", read)
    rig.callbacks = DriverCallbacks(on_event=when_all_others_ended(rig, answer))
    threads = threading.active_count()
    search = rig.open_driver().run()
    assert [(t.state, len(t.attempts)) for t in search.trials] == [(TrialState.MEASURED, 1)] * 9
    assert threading.active_count() <= threads + 1


@pytest.mark.fault(28)
def test_a_folder_that_cannot_be_written_holds_up_only_its_own_trial(rig, logged):
    folder = rig.path / "runs" / "rig-aaaaaa" / "trials" / "t0001"
    folder.mkdir(parents=True)
    with ReadOnly(folder) as read_only:
        rig.callbacks = DriverCallbacks(on_event=when_all_others_ended(rig, read_only.end))
        search = rig.open_driver().run()
    assert search.state is SearchState.COMPLETED
    assert [(t.state, len(t.attempts)) for t in search.trials] == [(TrialState.MEASURED, 1)] * 9
    assert len(logged) == 1
    assert str(folder) in logged[0]


class ReadOnly:
    """An unwritable folder: by its mode; for root, whom modes do not stop, by a mount or a stray file."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __enter__(self) -> ReadOnly:
        self._undo: Callable[[], object] | None
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(self._folder)]
        if os.geteuid() != 0:
            self._folder.chmod(0o500)
            self._undo = lambda: self._folder.chmod(0o700)
        elif subprocess.run(mount, capture_output=True).returncode == 0:
            self._undo = lambda: subprocess.run(["umount", str(self._folder)], check=True)
        else:
            self._folder.rmdir()
            self._folder.touch()
            self._undo = self._folder.unlink
        return self

    def end(self) -> None:
        if self._undo is not None:
            self._undo()
            self._undo = None

    def __exit__(self, *error: object) -> None:
        self.end()


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


def test_what_a_call_raises_is_raised_also_a_time_out_of_its_own():
    with pytest.raises(ZeroDivisionError):
        HangGuard(5.0).call("sum", lambda: 1 // 0)

    def fail() -> None:
        raise TimeoutError("the server's own")

    guard = HangGuard(5.0)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="the server's own"):
            guard.call("server", fail)


@pytest.mark.fault(43)
def test_a_sampler_that_repeats_itself_has_run_out(rig, monkeypatch):
    ask = GridSampler.ask
    monkeypatch.setattr(GridSampler, "ask", lambda self, count, history: [*ask(self, 4, []), *ask(self, 4, [])])
    search = rig.open_driver().run()
    assert search.end_reason is EndReason.SPACE_EXHAUSTED
    assert len({t.layout.key for t in search.trials}) == len(search.trials) == 4
