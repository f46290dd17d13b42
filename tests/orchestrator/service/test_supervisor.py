"""The supervisor's searches, and its handling of sessions that end: simulated clock, scripted sessions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.service.driver_session import DriverExit, DriverResult, DriverSession
from orchestrator.service.executors import Executor, ExecutorKind, ThreadExecutor
from orchestrator.service.quota_file import QuotaFile
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from orchestrator.service.supervisor import (
    BACKOFF_S,
    HEALTHY_S,
    HELD_RETRY_S,
    MAX_FAILURES,
    STOPPED_CHECK_S,
    DriverState,
    DriverSupervisor,
)
from search_spaces.errors import ExternalError
from tests.rig import Rig


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


def test_a_long_session_makes_up_for_the_failures_before_it(rig):
    rig.take("a")
    for _ in range(2 * MAX_FAILURES):
        rig.now += HEALTHY_S
        rig.end(DriverExit.LOST)
        rig.after(BACKOFF_S)
    assert rig.entry().state is DriverState.DRIVING


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


def test_a_stopped_search_whose_files_have_gone_is_still_there_to_be_asked_for(rig):
    rig.take("a")
    rig.end(DriverExit.REFUSED, "it has no journal")
    rig.after(STOPPED_CHECK_S)
    assert rig.entry().state is DriverState.STOPPED


def test_a_search_that_another_driver_holds_is_waited_for_and_that_is_no_failure(rig):
    rig.take("a")
    for turns in range(1, 3 * MAX_FAILURES):
        rig.end(DriverExit.HELD, "driven by process 7")
        assert rig.entry().detail == "driven by process 7"
        assert rig.after(HELD_RETRY_S) == turns + 1


def test_taking_a_search_that_is_driven_changes_nothing(rig):
    rig.take("a")
    rig.take("a")
    assert rig.executor.started == ["a"]


def full(*_) -> None:
    raise OSError("No space left on device")


def test_a_search_that_cannot_be_written_down_is_refused_and_not_driven_all_the_same(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ServiceStateDir, "write_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.take("a")
    rig.supervisor.iterate()
    assert rig.supervisor.searches() == {}
    assert rig.executor.started == []


def test_a_search_that_has_ended_is_forgotten_once_that_can_be_written_down(rig, monkeypatch):
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


def test_when_it_stops_every_session_is_stopped_and_nothing_is_forgotten(rig):
    rig.take("a", "b")
    rig.supervisor.stop()
    rig.supervisor.run()
    assert rig.executor.stopped == [0, 1]
    assert set(rig.state_dir.read_searches()) == {"a", "b"}


def test_what_was_lost_with_a_dead_ray_goes_on_in_threads(rig):
    rig.take("a")
    rig.executor.alive = False
    rig.supervisor.iterate()
    assert isinstance(rig.supervisor._executor, ThreadExecutor)
    assert rig.executor.closed
    assert (rig.entry().state, rig.entry().failures) == (DriverState.WAITING, 1)


def test_what_keeps_it_from_a_session_does_not_end_it_and_is_logged_once(rig, monkeypatch, logged):
    turns = []

    def turn():
        turns.append(1)
        if len(turns) > 2:
            rig.supervisor.stop()
        rig.supervisor._wake.set()
        raise OSError("No space left on device")

    monkeypatch.setattr(rig.supervisor, "iterate", turn)
    rig.supervisor.run()
    assert logged == ["retrying: OSError: No space left on device"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"searches": [{"search_id": "a"}]}'])
def test_a_damaged_list_of_searches_is_reported_with_a_way_out(tmp_path, damage):
    state_dir = ServiceStateDir.of(tmp_path)
    state_dir.folder.mkdir()
    state_dir.searches.write_text(damage)
    with pytest.raises(ExternalError) as refused:
        state_dir.read_searches()
    assert str(state_dir.searches) in str(refused.value)
    assert "parlay resume" in (refused.value.fix or "")
