"""Event store: the only place where a search's state changes. Journal first, then memory, then the ledger."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trials.ledger.database import LedgerBehind
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.fold import apply_event
from trials.ledger.journal import ConcurrentAppend, Journal, search_of
from trials.ledger.writer import LedgerWriter


class EventStore:
    """A search as the fold of its journal, with the ledger kept equal to it. One writer: the holder of the lease.

    `clock` gives UTC seconds since the epoch, `fencing` is the lease's number. An event is in the journal on disk
    before anything follows from it. Opening the store fences off the previous driver by an event, and writes the events
    that the ledger has missed; FencedError if a later lease has written.
    """

    def __init__(
        self, search_id: str, journal: Journal, ledger: LedgerWriter, fencing: int, clock: Callable[[], float]
    ):
        self.search_id = search_id
        self._journal = journal
        self._ledger = ledger
        self._fencing = fencing
        self.clock = clock
        self._search: SearchRecord | None = None
        self._pending: list[tuple[Event, SearchRecord]] = []
        self._take_over()

    @property
    def search(self) -> SearchRecord:
        """The search after its last event; RuntimeError before the first."""
        if self._search is None:
            raise RuntimeError(f"search {self.search_id} has no events yet")
        return self._search

    @property
    def is_empty(self) -> bool:
        return self._search is None

    def record(self, kind: EventKind, /, **data: Any) -> Event:
        """Record one event. ValueError, and nothing is written, if it contradicts the state.

        It counts once it is in the journal. If the ledger refuses it (LedgerUnavailable, or LedgerFull, which is an
        OSError), it is written there before the next one.
        """
        self.flush_ledger()
        event = self._next_event(kind, data)
        changed = apply_event(self._search, self.search_id, event)
        self._journal.append(event)
        self._search = changed
        self._pending.append((event, changed))
        self.flush_ledger()
        return event

    @property
    def pending(self) -> list[Event]:
        """Events in the journal that the ledger has refused so far."""
        return [event for event, _ in self._pending]

    def flush_ledger(self) -> None:
        """Write the events that the ledger has refused. Raises as `record` does."""
        while self._pending:
            try:
                self._ledger.apply(*self._pending[0])
            except LedgerBehind:  # it was lost, and has been made anew
                self.rewrite_ledger()
            del self._pending[0]

    def rewrite_ledger(self) -> None:
        """Replace the ledger's rows of this search. Raises LedgerUnavailable."""
        self._ledger.replace(self.search, str(self._journal.path.parent))

    def _take_over(self) -> None:
        """Read the search and fence off its previous driver. Read again if that one wrote meanwhile."""
        while True:
            events = self._journal.read()
            self._search = search_of(self._journal.path, self.search_id, events)
            if self._search is None or self._search.fencing == self._fencing:
                break
            with suppress(ConcurrentAppend):
                driver = {"host": socket.gethostname(), "pid": os.getpid()}
                self._journal.append(self._next_event(EventKind.DRIVER_TOOK_OVER, driver))
        if self._search is not None:
            self._ledger.catch_up(self._search, events)

    def _next_event(self, kind: EventKind, data: Mapping[str, Any]) -> Event:
        last_seq = 0 if self._search is None else self._search.last_seq
        return Event(last_seq + 1, self._fencing, self.clock(), kind, data)
