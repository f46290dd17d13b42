"""History: the one place where a search's state changes. Journal first, then the ledger, then memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trials.ledger.events import Event, EventKind, SearchRecord, apply
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter


class History:
    """A search as the fold of its journal, kept equal to the ledger. One writer: whoever holds the lease.

    `clock` gives UTC seconds since the epoch, `fencing` is the lease's number. An event is on disk in the journal
    before anything follows from it; a ledger that missed the last lines catches up when the history is opened.
    """

    def __init__(
        self, search_id: str, journal: Journal, ledger: LedgerWriter, fencing: int, clock: Callable[[], float]
    ):
        self.search_id = search_id
        self._journal = journal
        self._ledger = ledger
        self._fencing = fencing
        self._clock = clock
        self._search: SearchRecord | None = None
        self._catch_up()

    @property
    def search(self) -> SearchRecord:
        """The search as it stands; RuntimeError before its first event."""
        if self._search is None:
            raise RuntimeError(f"search {self.search_id} has no events yet")
        return self._search

    @property
    def is_empty(self) -> bool:
        return self._search is None

    def record(self, kind: EventKind, /, **data: Any) -> Event:
        """Write one event down and make it true. ValueError, and nothing written, if it contradicts the state."""
        last_seq = 0 if self._search is None else self._search.last_seq
        event = Event(last_seq + 1, self._fencing, self._clock(), kind, data)
        changed = apply(self._search, self.search_id, event)
        self._journal.append(event)
        self._ledger.apply(self.search_id, event)
        self._search = changed
        return event

    def _catch_up(self) -> None:
        events = self._journal.read()
        for event in events:
            self._search = apply(self._search, self.search_id, event)
        self._ledger.catch_up(self.search_id, events)
