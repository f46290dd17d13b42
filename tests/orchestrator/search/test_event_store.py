"""Changes of the driver: the search stays readable and continues, whatever the old driver still writes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.search.event_store import EventStore
from tests.trials.ledger.stories import NOON, SEARCH_ID, Story, measured_story, written
from trials.ledger.events import Event, EventKind, FencedError, SearchState
from trials.ledger.fold import fold
from trials.ledger.journal import Journal, JournalDamaged
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter


@pytest.fixture
def path(tmp_path) -> Path:
    return written(tmp_path / "journal.jsonl", measured_story().events[:2]).path


@pytest.fixture
def ledger(tmp_path) -> Iterator[LedgerWriter]:
    ledger = LedgerWriter(f"sqlite:///{tmp_path}/ledger.db")
    yield ledger
    ledger.close()


def opened(path: Path, fencing: int, ledger=None) -> EventStore:
    return EventStore(SEARCH_ID, Journal(path), ledger or MagicMock(LedgerWriter), fencing, lambda: NOON)


def told(history: EventStore, detail: str) -> Event:
    return history.record(EventKind.SEARCH_STATE, state=SearchState.RUNNING, end_reason=None, detail=detail)


def test_whoever_opens_the_search_under_a_new_lease_says_so_once_in_the_journal(path):
    history = opened(path, fencing=2)
    last, before = Journal(path).read()[-1], path.read_bytes()
    assert (last.seq, last.fencing, last.kind) == (3, 2, EventKind.DRIVER_TOOK_OVER)
    assert last.data == {"host": socket.gethostname(), "pid": os.getpid()}
    assert (history.search.last_seq, history.search.fencing) == (3, 2)
    opened(path, fencing=2)
    assert path.read_bytes() == before


def test_a_search_without_events_begins_with_its_creation(tmp_path):
    history = opened(tmp_path / "journal.jsonl", fencing=3)
    assert history.is_empty
    history.record(EventKind.SEARCH_CREATED, spec={}, code_hash="")
    assert [e.fencing for e in Journal(tmp_path / "journal.jsonl").read()] == [3]


def test_the_ledger_is_fenced_and_caught_up_as_soon_as_the_search_is_open(path, ledger, tmp_path):
    history = opened(path, 2, ledger)
    assert LedgerReader(f"sqlite:///{tmp_path}/ledger.db").search(SEARCH_ID) == history.search
    late = Event(4, 1, NOON, EventKind.BEST_CHANGED, {"trial": None})
    with pytest.raises(FencedError):
        ledger.apply(late, replace(history.search, last_seq=4, fencing=1))


@pytest.mark.slow
@pytest.mark.timeout(120)
@settings(deadline=None, max_examples=150)
@given(order=st.lists(st.integers(0, 2), max_size=60))
def test_drivers_that_write_in_any_order_leave_a_search_that_can_be_read_and_lose_nothing_they_were_told_is_there(
    order,
):
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = written(Path(folder) / "journal.jsonl", [Story().create()]).path
        turns = Turns(patch)
        drivers = [SteppedDriver(path, fencing, turns) for fencing in (1, 2, 3)]
        for number in order:
            turns.step(drivers[number])
            assert_whole(path, drivers)
        for driver in drivers:
            while driver.is_alive():
                turns.step(driver)
            assert_whole(path, drivers)
        assert all(driver.error is None or isinstance(driver.error, FencedError) for driver in drivers)
        assert drivers[-1].error is None, "nobody may fence the newest off"
        opened(path, fencing=4)


def assert_whole(path: Path, drivers: list[SteppedDriver]) -> None:
    events = Journal(path).read()
    fold(SEARCH_ID, events)
    assert all(event in events for driver in drivers for event in driver.recorded)


class Turns:
    """Threads that run one at a time, each up to its journal's next system call, in the order a test sets."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self._paused = threading.Semaphore(0)
        held = {name: self._held(getattr(os, name)) for name in ("open", "fstat", "write", "fsync", "ftruncate")}
        patch.setattr("trials.ledger.journal.os", SimpleNamespace(**vars(os) | held))

    def step(self, driver: SteppedDriver) -> None:
        """Run the driver up to its next system call, or to its end."""
        if not driver.ident:
            driver.start()
        elif driver.is_alive():
            driver.go.release()
        else:
            return
        self._paused.acquire()
        if driver.is_done:
            driver.join()

    def pause(self, driver: SteppedDriver) -> None:
        self._paused.release()
        if not driver.is_done:
            driver.go.acquire()

    def _held(self, call):
        def hold(*args, **kwargs):
            if isinstance(driver := threading.current_thread(), SteppedDriver):
                self.pause(driver)
            return call(*args, **kwargs)

        return hold


class SteppedDriver(threading.Thread):
    """Open the search and record three events in it, unless it is fenced off."""

    def __init__(self, path: Path, fencing: int, turns: Turns):
        super().__init__(daemon=True)
        self.go = threading.Semaphore(0)
        self.recorded: list[Event] = []
        self.error: Exception | None = None
        self.is_done = False
        self._path, self._fencing, self._turns = path, fencing, turns

    def run(self) -> None:
        try:
            history = opened(self._path, self._fencing)
            for number in range(3):
                self.recorded.append(told(history, f"{self._fencing}.{number}"))
        except (ValueError, JournalDamaged) as error:
            self.error = error
        finally:
            self.is_done = True
            self._turns.pause(self)
