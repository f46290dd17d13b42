"""The supervisor of drivers, its handling of sessions that end, and its watch over stalls."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import create_search
from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession
from orchestrator.service.executors import Executor, ExecutorKind
from orchestrator.service.quota_file import QuotaFile
from orchestrator.service.stall_watch import StallWatch
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from orchestrator.service.supervisor import (
    BACKOFF_S,
    HELD_RETRY_S,
    MAX_FAILURES,
    STOPPED_CHECK_S,
    DriverState,
    DriverSupervisor,
)
from search_spaces.errors import ExternalError
from tests.kit import loaded
from tests.orchestrator.lifecycle.test_notify import KEEP_STDIN
from tests.rig import Rig
from trials.files.folders import SearchFolder
from trials.ledger.location import ledger_url


class ScriptedExecutor(Executor):
    """Sessions end when the test says so."""

    kind = ExecutorKind.RAY

    def __init__(self) -> None:
        self.started: list[str] = []
        self.results: dict[int, DriverResult] = {}
        self.stopped: list[int] = []
        self.alive, self.closed = True, False

    def start(self, session: DriverSession) -> int:
        self.started.append(session._folder.search_id)
        return len(self.started) - 1

    def result(self, running: int) -> DriverResult | None:
        return self.results.get(running)

    def stop(self, running: int) -> None:
        self.stopped.append(running)
        self.results[running] = DriverResult(DriverExit.STOPPED)

    @property
    def is_alive(self) -> bool:
        return self.alive

    def close(self) -> None:
        self.closed = True


class SupervisorRig:
    def __init__(self, home: Path, max_in_flight: int | None = None):
        self.state_dir = ServiceStateDir.of(home)
        self.state_dir.folder.mkdir(parents=True, exist_ok=True)
        self.executor, self.now = ScriptedExecutor(), 0.0
        self.supervisor = DriverSupervisor(self.state_dir, self.executor, max_in_flight, lambda: self.now)

    def take(self, *names: str) -> None:
        for name in names:
            self.supervisor.supervise(ServiceSearch(name, self.state_dir.folder / name, "sqlite:////nowhere/ledger.db"))
        self.supervisor.iterate()

    def end(self, end: DriverExit, detail: str = "") -> None:
        """End the newest session."""
        self.executor.results[len(self.executor.started) - 1] = DriverResult(end, detail)
        self.supervisor.iterate()

    def after(self, seconds: float) -> int:
        """Number of sessions started once this much time has passed."""
        self.now += seconds
        self.supervisor.iterate()
        return len(self.executor.started)

    def entry(self, name: str = "a"):
        return self.supervisor.searches().get(name)


@pytest.fixture
def rig(tmp_path):
    return SupervisorRig(tmp_path)


def test_a_search_is_driven_at_once_and_forgotten_when_it_has_ended(rig):
    rig.take("a", "b")
    assert rig.executor.started == ["a", "b"]
    assert set(rig.state_dir.read_searches()) == {"a", "b"}
    rig.end(DriverExit.ENDED)
    assert set(rig.state_dir.read_searches()) == set(rig.supervisor.searches()) == {"a"}


def test_a_driver_that_died_is_replaced_later_and_later_and_at_last_no_more(rig, logged):
    rig.take("a")
    waits = defaultdict(float)
    for turns in range(1, MAX_FAILURES + 1):
        rig.end(DriverExit.LOST, "its process died")
        assert rig.entry().state is DriverState.WAITING
        while rig.after(0.5) == turns:
            waits[turns] += 0.5
    assert [waits[n] + 0.5 for n in sorted(waits)] == [BACKOFF_S * 2**n for n in range(MAX_FAILURES)]
    rig.end(DriverExit.FAILED, "no disk")
    assert rig.entry().state is DriverState.STOPPED
    assert rig.entry().detail == "its driver failed 6 times in a row, last error: no disk"
    assert rig.after(10_000) == MAX_FAILURES + 1
    assert "has no driver any more" in logged[-1]


def test_a_search_that_was_given_up_is_driven_again_when_somebody_asks(rig):
    rig.take("a")
    rig.end(DriverExit.REFUSED, "code has changed")
    assert (rig.entry().state, rig.entry().detail) == (DriverState.STOPPED, "code has changed")
    rig.take("a")
    assert (rig.entry().state, rig.entry().failures) == (DriverState.DRIVING, 0)


@pytest.mark.slow
def test_a_stopped_search_holds_what_others_leave_in_flight_and_nothing_once_they_have_ended_it(tmp_path):
    rig, quota = SupervisorRig(tmp_path, max_in_flight=2), QuotaFile(tmp_path / "service" / "quota.json", 2)
    search = Rig("scripted", tmp_path)
    driver = search.open_driver()
    driver.recover()
    driver.iterate()
    name, folder = driver.search.search_id, tmp_path / "runs" / driver.search.search_id
    rig.supervisor.supervise(ServiceSearch(name, folder, "sqlite:////nowhere/ledger.db"))
    rig.supervisor.iterate()
    rig.end(DriverExit.REFUSED, "code has changed")
    assert quota.grant("other", 0, 2) == 0
    search.open_driver().run()
    rig.after(STOPPED_CHECK_S)
    assert quota.grant("other", 0, 2) == 2
    assert rig.supervisor.searches() == rig.state_dir.read_searches() == {}


def test_a_search_that_another_driver_holds_is_waited_for_and_that_is_no_failure(rig):
    rig.take("a")
    for turns in range(1, 3 * MAX_FAILURES):
        rig.end(DriverExit.HELD, "driven by process 7")
        assert rig.entry().detail == "driven by process 7"
        assert rig.after(HELD_RETRY_S) == turns + 1


def full(*_) -> None:
    raise OSError("No space left on device")


def test_a_search_is_taken_and_forgotten_once_that_can_be_written_down(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ServiceStateDir, "write_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.take("a")
    rig.supervisor.iterate()
    assert (rig.supervisor.searches(), rig.executor.started) == ({}, [])
    rig.take("a")
    rig.executor.results[0] = DriverResult(DriverExit.ENDED)
    with monkeypatch.context() as patched:
        patched.setattr(ServiceStateDir, "write_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.supervisor.iterate()
    rig.supervisor.iterate()
    assert set(rig.state_dir.read_searches()) == set(rig.supervisor.searches()) == set()


def test_a_new_supervisor_goes_on_with_the_searches_of_the_old_one(rig, tmp_path):
    rig.take("a", "b")
    again = SupervisorRig(tmp_path)
    again.supervisor.iterate()
    assert again.executor.started == ["a", "b"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"searches": [{"search_id": "a"}]}'])
def test_a_damaged_list_of_searches_is_reported_with_a_way_out(tmp_path, damage):
    state_dir = ServiceStateDir.of(tmp_path)
    state_dir.folder.mkdir()
    state_dir.searches.write_text(damage)
    with pytest.raises(ExternalError) as refused:
        state_dir.read_searches()
    assert str(state_dir.searches) in str(refused.value)
    assert "parlay resume" in (refused.value.fix or "")


HOUR_S = 3600.0


@pytest.fixture
def search(tmp_path) -> SearchFolder:
    """A search that nobody drives, and whose stalls are told to the file `told`."""
    told = {"events": ["stall"], "stall_after": "1h", "command": [*KEEP_STDIN, str(tmp_path / "told")]}
    return create_search(loaded(tmp_path, notify=told, work_dir=str(tmp_path / "runs")), ledger_url())


@pytest.mark.slow
def test_a_search_that_nobody_drives_is_told_of_once_after_the_stated_time(own_home, search, tmp_path):
    created, told = time.time(), tmp_path / "told"
    StallWatch(ledger_url()).check(created + HOUR_S - 60)
    assert not told.exists()
    for _ in range(2):
        StallWatch(ledger_url()).check(created + HOUR_S + 60)
    (sent,) = map(json.loads, told.read_text().splitlines())
    assert (sent["event"], sent["status"]["state"]) == ("stall", "created")
    assert sent["message"].startswith(f"{search.search_id}: no trial has ended for 1:0")
    assert sent["message"].endswith("(0 trials in flight, 0 so far); no driver has begun")


def test_an_unreachable_folder_does_not_keep_others_from_being_told_of(own_home, search, tmp_path, monkeypatch):
    second = create_search(load_search_file(tmp_path / "search.yaml"), ledger_url())
    search.path.rename(tmp_path / "elsewhere")
    StallWatch(ledger_url()).check(time.time() + 2 * HOUR_S)
    (sent,) = map(json.loads, (tmp_path / "told").read_text().splitlines())
    assert sent["status"]["search_id"] == second.search_id
