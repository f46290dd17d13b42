"""The ledger as its one writer sees it: events in, rows out. Only the orchestrator imports this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from trials.ledger.database import open_to_write, patiently
from trials.ledger.events import Event, EventKind, Fenced, SearchRecord
from trials.ledger.events import apply as apply_event
from trials.ledger.rows import attempt_row, search_record, search_row, trial_record, trial_row
from trials.ledger.tables import AttemptRow, CommandRow, SearchRow, TrialRow
from trials.trial import Trial

T = TypeVar("T")


class LedgerWriter:
    """Writes searches to the ledger at `url` for whoever holds their leases.

    The ledger is created or migrated when this is made. Each call is one short transaction, tried again while the
    database is locked or coming back, so that it may raise LedgerUnavailable after a minute and then has changed
    nothing. Safe for several processes; a search has one writer, and a Fenced one must stop.
    """

    def __init__(self, url: str):
        self._engine = open_to_write(url)

    def apply(self, search_id: str, event: Event) -> None:
        """Record one event. One already applied is passed over.

        Raises ValueError when events before it are missing or it contradicts what is stored, Fenced when it comes
        from an old lease.
        """
        self._transaction(lambda session: _apply(session, search_id, event))

    def catch_up(self, search_id: str, events: Iterable[Event]) -> None:
        """Apply those of a journal's events that the ledger has not seen."""
        seen = self.last_seq(search_id)
        for event in events:
            if event.seq > seen:
                self.apply(search_id, event)

    def replace(self, search_id: str, events: Sequence[Event], folder: str) -> None:
        """Drop the rows of this search and make them anew from all its events, in one transaction.

        Its commands and the copy of its lease stay; `folder` is where it lies now. Raises ValueError as `apply`.
        """
        self._transaction(lambda session: _replace(session, search_id, events, folder))

    def place(self, search_id: str, folder: str) -> None:
        """Record where the search lies now (an absolute path); its journal keeps saying where it began."""
        self._transaction(lambda session: _place(session, search_id, folder))

    def last_seq(self, search_id: str) -> int:
        """The last event applied to this search; 0 where it is unknown."""
        row = self._transaction(lambda session: session.get(SearchRow, search_id))
        return 0 if row is None else row.last_seq

    def copy_lease(self, search_id: str, fencing: int, lease: Mapping[str, Any]) -> None:
        """Keep a copy of lease.json beside the search; Fenced when a later lease has written."""
        self._transaction(lambda session: _copy_lease(session, search_id, fencing, dict(lease)))

    def settle_commands(self, search_id: str, last_id: int, at: float) -> None:
        """Mark the commands up to `last_id` as done: what follows from them is in the journal (UTC seconds)."""
        pending = (CommandRow.search_id == search_id, CommandRow.id <= last_id, CommandRow.settled_at.is_(None))
        self._transaction(lambda session: session.execute(update(CommandRow).where(*pending).values(settled_at=at)))

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _transaction(self, work: Callable[[Session], T]) -> T:
        def attempt() -> T:
            with Session(self._engine, expire_on_commit=False) as session, session.begin():
                return work(session)

        return patiently(attempt)


def _apply(session: Session, search_id: str, event: Event) -> None:
    stored = session.get(SearchRow, search_id, with_for_update=True)
    if stored is not None and event.seq <= stored.last_seq:
        return
    name = event.data.get("trial")
    # An event touches one trial at most, so the fold over that one is the fold over all.
    known = [] if stored is None or name is None else _stored_trials(session, search_id, name)
    before = None if stored is None else search_record(stored, known)
    after = apply_event(before, search_id, event)
    session.merge(search_row(after))
    if after.trials and event.kind is not EventKind.BEST_CHANGED:
        _store_trial(session, after, event)


def _replace(session: Session, search_id: str, events: Sequence[Event], folder: str) -> None:
    before = session.get(SearchRow, search_id, with_for_update=True)
    lease = None if before is None else before.lease
    commands = list(session.scalars(select(CommandRow).where(CommandRow.search_id == search_id)))
    session.expunge_all()
    for table in (CommandRow, AttemptRow, TrialRow, SearchRow):
        session.execute(delete(table).where(table.search_id == search_id))
    for event in events:
        _apply(session, search_id, event)
    _place(session, search_id, folder)
    session.get_one(SearchRow, search_id).lease = lease
    session.flush()  # a command refers to its search
    for command in commands:
        session.merge(command)


def _place(session: Session, search_id: str, folder: str) -> None:
    row = session.get_one(SearchRow, search_id, with_for_update=True)
    if row.spec.get("folder") != folder:
        row.spec = {**row.spec, "folder": folder}


def _stored_trials(session: Session, search_id: str, name: str) -> list[Trial]:
    row = session.get(TrialRow, (search_id, name))
    if row is None:
        return []
    mine = (AttemptRow.search_id == search_id, AttemptRow.trial == name)
    return [trial_record(row, session.scalars(select(AttemptRow).where(*mine)))]


def _store_trial(session: Session, search: SearchRecord, event: Event) -> None:
    trial = search.trials[-1]
    row = trial_row(search.search_id, trial)
    if event.kind is EventKind.TRIAL_PROPOSED:
        row.proposed_seq = event.seq
    session.merge(row)
    session.flush()  # the attempt refers to its trial
    if trial.last_attempt is not None:
        session.merge(attempt_row(search.search_id, trial.last_attempt))


def _copy_lease(session: Session, search_id: str, fencing: int, lease: Mapping[str, Any]) -> None:
    row = session.get(SearchRow, search_id, with_for_update=True)
    if row is None:
        raise ValueError(f"the ledger does not know the search {search_id}")
    if fencing < row.fencing:
        raise Fenced(f"search {search_id} is driven under lease {row.fencing}, not {fencing}")
    row.lease = lease
