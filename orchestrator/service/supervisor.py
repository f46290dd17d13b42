"""Keeps the service's own searches driven: each by a turn of its own, begun again from the ledger when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from orchestrator.search.lease import retry_releases
from orchestrator.service.driver_turn import DriverTurn, TurnEnd, TurnResult
from orchestrator.service.executors import Executor, ThreadExecutor
from orchestrator.service.quota_file import ShareFile
from orchestrator.service.state_dir import OwnSearch, ServicePlace
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of

MOST_FAILURES = 5
"""Turns that may fail or be lost one after the other before a search is left stopped."""
BACK_OFF_S = 1.0
"""Before the first new turn; twice as long before each one after it."""
HELD_WAIT_S = 5.0
HEALTHY_S = 600.0
"""A turn that lasted as long has made up for the failures before it."""
LOOK_AGAIN_S = 60.0
"""Between two looks at the stopped searches, which others may drive."""
STOP_LIMIT_S = 30.0
_TURN_S = 0.5


class DriverState(StrEnum):
    """`waiting`: for its first or next turn. `stopped`: given up, until somebody asks for it again."""

    WAITING = "waiting"
    DRIVING = "driving"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Kept:
    """A search of the service as it is kept: `failures` in a row, and in words why it does not go on."""

    search: OwnSearch
    state: DriverState = DriverState.WAITING
    failures: int = 0
    detail: str | None = None
    begins_at: float = 0.0
    begun_at: float = 0.0
    turn: Any = field(default=None, compare=False)


class Keeper:
    """One thread (`run`) starts turns and takes in how they end; `take`, `kept` and `stop` are for others."""

    def __init__(
        self,
        place: ServicePlace,
        executor: Executor,
        max_in_flight: int | None,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._place = place
        self._executor = executor
        self._shares = None if max_in_flight is None else ShareFile(place.shares, max_in_flight)
        self._note = note
        self._clock = clock
        self._said: set[str] = set()
        self._looks_at = clock() + LOOK_AGAIN_S
        self._lock = threading.Lock()
        self._kept = {search.search_id: Kept(search) for search in place.own_searches().values()}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        if self._shares is not None:
            self._shares.reset({name: _num_held(_record_of(kept.search)) for name, kept in self._kept.items()})

    def take(self, search: OwnSearch) -> None:
        """Drive this search until it has ended, also after a restart of the service."""
        with self._lock:
            known = self._kept.get(search.search_id)
            if known is None or known.state is not DriverState.DRIVING:
                self._remember({**self._kept, search.search_id: Kept(search)})
        self._wake.set()

    def kept(self) -> dict[str, Kept]:
        """The searches that have not ended, by id."""
        with self._lock:
            return dict(self._kept)

    def stop(self) -> None:
        """Have `run` return, after every turn has left at a safe point."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Keep the searches until `stop`. What keeps it from one turn (a full disk) is told, and the next one comes."""
        while not self._stopping.is_set():
            try:
                self.turn()
            except Exception as error:
                self._say_once(f"retrying: {type(error).__name__}: {error}")
            self._wake.wait(_TURN_S)
            self._wake.clear()
        self._end_turns()

    def turn(self) -> None:
        """Everything that is to be done now, once."""
        retry_releases(time.time())
        if not self._executor.is_alive:
            self._go_on_in_threads()
        for kept in self.kept().values():
            if kept.state is DriverState.DRIVING:
                if (result := self._executor.result(kept.turn)) is not None:
                    self._after(kept, result)
            elif kept.state is DriverState.WAITING and self._clock() >= kept.begins_at:
                self._begin(kept)
        if self._clock() >= self._looks_at:
            self._looks_at = self._clock() + LOOK_AGAIN_S
            self._look_at_stopped()

    def _begin(self, kept: Kept) -> None:
        search = kept.search
        turn = self._executor.start(DriverTurn(search.folder, search.ledger_url, self._shares))
        self._set(replace(kept, state=DriverState.DRIVING, begun_at=self._clock(), turn=turn))

    def _after(self, kept: Kept, result: TurnResult) -> None:
        now, search_id = self._clock(), kept.search.search_id
        if self._shares is not None:
            self._shares.expect(search_id, _num_held(_record_of(kept.search)))
        if result.end is TurnEnd.ENDED:
            self._forget(kept)
        elif result.end is TurnEnd.HELD:
            waiting = replace(kept, state=DriverState.WAITING, begins_at=now + HELD_WAIT_S, detail=result.detail)
            self._set(replace(waiting, turn=None))
        elif result.end is TurnEnd.REFUSED:
            self._give_up(kept, result.detail)
        elif result.end is not TurnEnd.STOPPED:
            self._after_failure(kept, result.detail, now)

    def _after_failure(self, kept: Kept, detail: str, now: float) -> None:
        failures = 1 if now - kept.begun_at >= HEALTHY_S else kept.failures + 1
        if failures > MOST_FAILURES:
            self._give_up(kept, f"its driver failed {failures} times in a row, at last: {detail}")
            return
        begins_at = now + BACK_OFF_S * 2 ** (failures - 1)
        again = Kept(kept.search, failures=failures, detail=detail, begins_at=begins_at)
        self._note(f"{kept.search.search_id}: {detail}; driven again in {begins_at - now:.0f} s")
        self._set(again)

    def _give_up(self, kept: Kept, detail: str) -> None:
        self._note(f"{kept.search.search_id} is not driven any more: {detail}")
        self._set(replace(kept, state=DriverState.STOPPED, detail=detail, turn=None))

    def _look_at_stopped(self) -> None:
        """Searches that were given up here, and that somebody may drive by hand: what they hold, and whether they have
        ended."""
        for kept in self.kept().values():
            if kept.state is DriverState.STOPPED:
                record = _record_of(kept.search)
                if self._shares is not None:
                    self._shares.expect(kept.search.search_id, _num_held(record))
                if record is not None and record.state.is_ended:
                    self._forget(kept)

    def _go_on_in_threads(self) -> None:
        """Anything asked of a dead Ray ends this process. Its actors have died, or soon will, with their searches."""
        self._note("Ray has died; drivers are threads of this process from now on")
        dead, self._executor = self._executor, ThreadExecutor()
        for kept in self.kept().values():
            if kept.state is DriverState.DRIVING:
                self._after(kept, TurnResult(TurnEnd.LOST, "Ray has died"))
        dead.close()

    def _end_turns(self) -> None:
        """Stop all turns, wait for them a while, and end what is left with the executor."""
        running = [kept for kept in self.kept().values() if kept.state is DriverState.DRIVING]
        if self._executor.is_alive:
            for kept in running:
                self._executor.stop(kept.turn)
        deadline = self._clock() + STOP_LIMIT_S
        while running and self._clock() < deadline and self._executor.is_alive:
            for kept in list(running):
                if (result := self._executor.result(kept.turn)) is not None:
                    self._after(kept, result)
                    running.remove(kept)
            time.sleep(0.05)
        for kept in running:
            self._note(f"{kept.search.search_id}: its driver did not stop in time and is ended; nothing is lost")

    def _say_once(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            self._note(words)

    def _set(self, kept: Kept) -> None:
        with self._lock:
            self._kept[kept.search.search_id] = kept

    def _forget(self, ended: Kept) -> None:
        """One that somebody has asked for again meanwhile has another turn, which ends at once."""
        with self._lock:
            self._remember({name: kept for name, kept in self._kept.items() if kept is not ended})

    def _remember(self, kept: dict[str, Kept]) -> None:
        """On disk first: a search that a full disk keeps from being taken is refused, and not driven all the same."""
        self._place.write_own_searches({name: each.search for name, each in kept.items()})
        self._kept = kept


def _record_of(search: OwnSearch) -> SearchRecord | None:
    """The search as its journal tells it; None where that cannot be read now."""
    try:
        with closing(Journal(SearchFolder(search.folder).journal)) as journal:
            return search_of(journal.path, search.search_id, journal.read())
    except Exception:  # a damaged journal is told by the turn that reads it
        return None


def _num_held(record: SearchRecord | None) -> int:
    """The trials of the search that have not ended."""
    return 0 if record is None else sum(not trial.state.is_ended for trial in record.trials)
