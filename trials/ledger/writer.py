"""Write access to the ledger for a search's driver: events in, rows out. Only the orchestrator imports this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection, select, update

from trials.ledger.database import checked_rows, open_to_write, retry_while_busy
from trials.ledger.events import Event, FencedError, SearchRecord
from trials.ledger.projection import position, store, store_event, trial_name
from trials.ledger.tables import COMMAND, SEARCH
from trials.trial import utc_text

T = TypeVar("T")


class LedgerWriter:
    """Writes searches to the ledger at `url` for the holders of their leases.

    The ledger is created or rebuilt on construction, as by `open_to_write`. Each call is one short transaction, retried
    while the database is locked or restarting; after a minute it raises LedgerUnavailable and has changed nothing. Safe
    for several processes. A search has one writer; one that gets FencedError must stop.
    """

    def __init__(self, url: str, may_rebuild: bool = False):
        self._engine = open_to_write(url, may_rebuild)

    def apply(self, event: Event, after: SearchRecord) -> None:
        """Record one event, after which the search is `after`; one already applied is skipped.

        Raises LedgerBehind when events before it are missing, FencedError for an old lease.
        """
        self._transaction(lambda connection: store_event(connection, event, after))

    def catch_up(self, search: SearchRecord, events: Iterable[Event]) -> None:
        """Record those of the search's events that the ledger lacks. FencedError for an old lease."""
        self._transaction(lambda connection: _catch_up(connection, search, events))

    def replace(self, search: SearchRecord, folder: str) -> None:
        """Replace the rows of this search, in one transaction. Its commands stay; `folder` is its current folder."""
        here = replace(search, spec={**search.spec, "folder": folder})
        self._transaction(lambda connection: store(connection, here))

    def set_folder(self, search_id: str, folder: str) -> None:
        """Record the search's current folder (an absolute path); its journal keeps the original one."""
        self._transaction(lambda connection: _set_folder(connection, search_id, folder))

    def last_seq(self, search_id: str) -> int:
        """The last event applied to this search; 0 where it is unknown."""
        return self._transaction(lambda connection: position(connection, search_id))[0]

    def settle_commands(self, search_id: str, last_id: int, at: float) -> None:
        """Mark the commands up to `last_id` as done: their effects are in the journal (UTC seconds)."""
        pending = (COMMAND.c.search_id == search_id, COMMAND.c.id <= last_id, COMMAND.c.settled_at.is_(None))
        settled = update(COMMAND).where(*pending).values(settled_at=utc_text(at))
        self._transaction(lambda connection: connection.execute(settled))

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        def attempt() -> T:
            with self._engine.begin() as connection, checked_rows():
                return work(connection)

        return retry_while_busy(attempt)


def _catch_up(connection: Connection, search: SearchRecord, events: Iterable[Event]) -> None:
    seen, fencing = position(connection, search.search_id)
    if seen >= search.last_seq:
        return
    if fencing > search.fencing:
        raise FencedError(f"search {search.search_id} is driven under lease {fencing}, not {search.fencing}")
    missing = {name for event in events if event.seq > seen and (name := trial_name(event)) is not None}
    store(connection, search, None if seen == 0 else missing)


def _set_folder(connection: Connection, search_id: str, folder: str) -> None:
    spec = connection.execute(select(SEARCH.c.spec).where(SEARCH.c.search_id == search_id).with_for_update()).scalar()
    if spec is not None and spec.get("folder") != folder:
        moved = update(SEARCH).where(SEARCH.c.search_id == search_id).values(spec={**spec, "folder": folder})
        connection.execute(moved)
