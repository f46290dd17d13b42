"""Which searches are driven, and what becomes of one whose driver dies: on a clock of its own, with scripted turns."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.service.driver_turn import DriverTurn, TurnEnd, TurnResult
from orchestrator.service.executors import Executor, ExecutorKind, ThreadExecutor
from orchestrator.service.quota_file import ShareFile
from orchestrator.service.state_dir import OwnSearch, ServicePlace
from orchestrator.service.supervisor import (
    BACK_OFF_S,
    HEALTHY_S,
    HELD_WAIT_S,
    LOOK_AGAIN_S,
    MOST_FAILURES,
    DriverState,
    Keeper,
)
from search_spaces.errors import ExternalError
from tests.orchestrator.search.rig import Rig


class ScriptedExecutor(Executor):
    """Turns end when the test says so."""

    kind = ExecutorKind.RAY

    def __init__(self) -> None:
        self.started: list[str] = []
        self.results: dict[int, TurnResult] = {}
        self.stopped: list[int] = []
        self.alive, self.closed = True, False

    def start(self, turn: DriverTurn) -> int:
        self.started.append(turn._folder.search_id)
        return len(self.started) - 1

    def result(self, running: int) -> TurnResult | None:
        return self.results.get(running)

    def stop(self, running: int) -> None:
        self.stopped.append(running)
        self.results[running] = TurnResult(TurnEnd.STOPPED)

    @property
    def is_alive(self) -> bool:
        return self.alive

    def close(self) -> None:
        self.closed = True


class KeeperRig:
    def __init__(self, home: Path, max_in_flight: int | None = None):
        self.place = ServicePlace.of(home)
        self.place.folder.mkdir(parents=True, exist_ok=True)
        self.executor, self.now, self.notes = ScriptedExecutor(), 0.0, []
        self.keeper = Keeper(self.place, self.executor, max_in_flight, self.notes.append, lambda: self.now)

    def take(self, *names: str) -> None:
        for name in names:
            self.keeper.take(OwnSearch(name, self.place.folder / name, "sqlite:////nowhere/ledger.db"))
        self.keeper.turn()

    def end(self, end: TurnEnd, detail: str = "") -> None:
        """The newest turn ends like this."""
        self.executor.results[len(self.executor.started) - 1] = TurnResult(end, detail)
        self.keeper.turn()

    def after(self, seconds: float) -> int:
        """How many turns have begun once these seconds have passed."""
        self.now += seconds
        self.keeper.turn()
        return len(self.executor.started)

    def kept(self, name: str = "a"):
        return self.keeper.kept().get(name)


@pytest.fixture
def rig(tmp_path):
    return KeeperRig(tmp_path)


def test_a_search_is_driven_at_once_and_forgotten_when_it_has_ended(rig):
    rig.take("a", "b")
    assert rig.executor.started == ["a", "b"]
    assert set(rig.place.own_searches()) == {"a", "b"}
    rig.end(TurnEnd.ENDED)
    assert set(rig.place.own_searches()) == set(rig.keeper.kept()) == {"a"}


def test_a_driver_that_died_is_replaced_later_and_later_and_at_last_no_more(rig):
    rig.take("a")
    waits = defaultdict(float)
    for turns in range(1, MOST_FAILURES + 1):
        rig.end(TurnEnd.LOST, "its process died")
        assert rig.kept().state is DriverState.WAITING
        while rig.after(0.5) == turns:
            waits[turns] += 0.5
    assert [waits[n] + 0.5 for n in sorted(waits)] == [BACK_OFF_S * 2**n for n in range(MOST_FAILURES)]
    rig.end(TurnEnd.FAILED, "no disk")
    assert rig.kept().state is DriverState.STOPPED
    assert rig.kept().detail == "its driver failed 6 times in a row, at last: no disk"
    assert rig.after(10_000) == MOST_FAILURES + 1
    assert "not driven any more" in rig.notes[-1]


def test_a_long_turn_makes_up_for_the_failures_before_it(rig):
    rig.take("a")
    for _ in range(2 * MOST_FAILURES):
        rig.now += HEALTHY_S
        rig.end(TurnEnd.LOST)
        rig.after(BACK_OFF_S)
    assert rig.kept().state is DriverState.DRIVING


def test_a_search_that_was_given_up_is_driven_again_when_somebody_asks(rig):
    rig.take("a")
    rig.end(TurnEnd.REFUSED, "code has changed")
    assert (rig.kept().state, rig.kept().detail) == (DriverState.STOPPED, "code has changed")
    rig.take("a")
    assert (rig.kept().state, rig.kept().failures) == (DriverState.DRIVING, 0)


@pytest.mark.slow
def test_a_stopped_search_holds_what_others_leave_in_flight_and_nothing_once_they_have_ended_it(tmp_path):
    rig, shares = KeeperRig(tmp_path, max_in_flight=2), ShareFile(tmp_path / "service" / "shares.json", 2)
    search = Rig(tmp_path)
    driver = search.open_driver()
    driver.recover()
    driver.iterate()
    name, folder = driver.search.search_id, tmp_path / "runs" / driver.search.search_id
    rig.keeper.take(OwnSearch(name, folder, "sqlite:////nowhere/ledger.db"))
    rig.keeper.turn()
    rig.end(TurnEnd.REFUSED, "code has changed")
    assert shares.ask("other", 0, 2) == 0
    search.open_driver().run()
    rig.after(LOOK_AGAIN_S)
    assert shares.ask("other", 0, 2) == 2
    assert rig.keeper.kept() == rig.place.own_searches() == {}


def test_a_stopped_search_whose_files_have_gone_is_still_there_to_be_asked_for(rig):
    rig.take("a")
    rig.end(TurnEnd.REFUSED, "it has no journal")
    rig.after(LOOK_AGAIN_S)
    assert rig.kept().state is DriverState.STOPPED


def test_a_search_that_another_driver_holds_is_waited_for_and_that_is_no_failure(rig):
    rig.take("a")
    for turns in range(1, 3 * MOST_FAILURES):
        rig.end(TurnEnd.HELD, "driven by process 7")
        assert rig.kept().detail == "driven by process 7"
        assert rig.after(HELD_WAIT_S) == turns + 1


def test_taking_a_search_that_is_driven_changes_nothing(rig):
    rig.take("a")
    rig.take("a")
    assert rig.executor.started == ["a"]


def full(*_) -> None:
    raise OSError("No space left on device")


def test_a_search_that_cannot_be_written_down_is_refused_and_not_driven_all_the_same(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(ServicePlace, "write_own_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.take("a")
    rig.keeper.turn()
    assert rig.keeper.kept() == {}
    assert rig.executor.started == []


def test_a_search_that_has_ended_is_forgotten_once_that_can_be_written_down(rig, monkeypatch):
    rig.take("a")
    rig.executor.results[0] = TurnResult(TurnEnd.ENDED)
    with monkeypatch.context() as patched:
        patched.setattr(ServicePlace, "write_own_searches", full)
        with pytest.raises(OSError, match="No space"):
            rig.keeper.turn()
    rig.keeper.turn()
    assert set(rig.place.own_searches()) == set(rig.keeper.kept()) == set()


def test_a_new_keeper_goes_on_with_the_searches_of_the_old_one(rig, tmp_path):
    rig.take("a", "b")
    again = KeeperRig(tmp_path)
    again.keeper.turn()
    assert again.executor.started == ["a", "b"]


def test_when_it_stops_every_turn_is_stopped_and_nothing_is_forgotten(rig):
    rig.take("a", "b")
    rig.keeper.stop()
    rig.keeper.run()
    assert rig.executor.stopped == [0, 1]
    assert set(rig.place.own_searches()) == {"a", "b"}


def test_what_was_lost_with_a_dead_ray_goes_on_in_threads(rig):
    rig.take("a")
    rig.executor.alive = False
    rig.keeper.turn()
    assert isinstance(rig.keeper._executor, ThreadExecutor)
    assert rig.executor.closed
    assert (rig.kept().state, rig.kept().failures) == (DriverState.WAITING, 1)


def test_what_keeps_it_from_a_turn_ends_it_not_and_is_told_once(rig, monkeypatch):
    turns = []

    def turn():
        turns.append(1)
        if len(turns) > 2:
            rig.keeper.stop()
        rig.keeper._wake.set()
        raise OSError("No space left on device")

    monkeypatch.setattr(rig.keeper, "turn", turn)
    rig.keeper.run()
    assert rig.notes == ["retrying: OSError: No space left on device"]


@pytest.mark.parametrize("damage", ["{", "[]", '{"searches": [{"search_id": "a"}]}'])
def test_a_damaged_list_of_searches_is_told_with_a_way_out(tmp_path, damage):
    place = ServicePlace.of(tmp_path)
    place.folder.mkdir()
    place.searches.write_text(damage)
    with pytest.raises(ExternalError) as refused:
        place.own_searches()
    assert str(place.searches) in str(refused.value)
    assert "parlay resume" in (refused.value.fix or "")
