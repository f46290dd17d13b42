"""Write access to the ledger for a search's driver: events in, rows out. Only the orchestrator imports this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from json import JSONDecodeError
from typing import Any, TypeVar

from sqlalchemy import Connection, Insert, Update, bindparam, delete, insert, select, update
from sqlalchemy.orm import Session

from trials.ledger.database import LedgerBehind, checked_rows, open_to_write, retry_while_busy
from trials.ledger.events import Event, EventKind, FencedError, SearchRecord
from trials.ledger.fold import apply_event
from trials.ledger.rows import attempt_values, search_record, search_values, trial_record, trial_values
from trials.ledger.tables import AttemptRow, Base, CommandRow, SearchRow, TrialRow
from trials.trial import Trial

T = TypeVar("T")

# Statements are built once, and rows written without ORM objects, for speed: a trial has seven events.
_SEARCH, _TRIAL, _ATTEMPT = SearchRow.__table__, TrialRow.__table__, AttemptRow.__table__
_CONSTANT_COLUMNS = ("spec", "code_hash", "lease")
_STORED_SEARCH = (
    select(*(column for column in _SEARCH.c if column.name not in _CONSTANT_COLUMNS))
    .where(_SEARCH.c.search_id == bindparam("of"))
    .with_for_update()
)
_LAST_SEQ = select(_SEARCH.c.last_seq).where(_SEARCH.c.search_id == bindparam("of"))
_STORED_TRIAL = select(_TRIAL).where(_TRIAL.c.search_id == bindparam("of"), _TRIAL.c.trial == bindparam("named"))
_STORED_ATTEMPTS = (
    select(_ATTEMPT)
    .where(_ATTEMPT.c.search_id == bindparam("of"), _ATTEMPT.c.trial == bindparam("named"))
    .order_by(_ATTEMPT.c.attempt)
)


class LedgerWriter:
    """Writes searches to the ledger at `url` for the holders of their leases.

    The ledger is created or migrated on construction. Each call is one short transaction, retried while the database is
    locked or restarting; after a minute it raises LedgerUnavailable and has changed nothing. Safe for several
    processes. A search has one writer; one that gets FencedError must stop.
    """

    def __init__(self, url: str):
        self._engine = open_to_write(url)

    def apply(self, search_id: str, event: Event, after: SearchRecord | None = None) -> None:
        """Record one event; one already applied is skipped.

        `after` is the search after it, for callers who have it: nothing is read then, as long as the ledger holds all
        events before. Raises LedgerBehind when events before it are missing, LedgerDamaged when the stored state
        contradicts it, FencedError for an old lease.
        """

        def attempt() -> None:
            with self._engine.begin() as connection, checked_rows():
                _apply(connection, search_id, event, after)

        retry_while_busy(attempt)

    def catch_up(self, search_id: str, events: Iterable[Event]) -> None:
        """Apply the events of a journal that the ledger lacks."""
        seen = self.last_seq(search_id)
        for event in events:
            if event.seq > seen:
                self.apply(search_id, event)

    def replace(self, search_id: str, events: Sequence[Event], folder: str) -> None:
        """Replace the rows of this search by those of all its events, in one transaction.

        Its commands and the copy of its lease stay; `folder` is its current folder. Raises as `apply`.
        """
        self._transaction(lambda session: _replace(session, search_id, events, folder))

    def set_folder(self, search_id: str, folder: str) -> None:
        """Record the search's current folder (an absolute path); its journal keeps the original one."""
        self._transaction(lambda session: _set_folder(session, search_id, folder))

    def last_seq(self, search_id: str) -> int:
        """The last event applied to this search; 0 where it is unknown."""
        return self._transaction(lambda session: session.scalar(_LAST_SEQ, {"of": search_id})) or 0

    def copy_lease(self, search_id: str, fencing: int, lease: Mapping[str, Any]) -> None:
        """Store a copy of lease.json in the search's row, if there is one; FencedError when a later lease has
        written."""
        self._transaction(lambda session: _copy_lease(session, search_id, fencing, dict(lease)))

    def settle_commands(self, search_id: str, last_id: int, at: float) -> None:
        """Mark the commands up to `last_id` as done: their effects are in the journal (UTC seconds)."""
        pending = (CommandRow.search_id == search_id, CommandRow.id <= last_id, CommandRow.settled_at.is_(None))
        self._transaction(lambda session: session.execute(update(CommandRow).where(*pending).values(settled_at=at)))

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _transaction(self, work: Callable[[Session], T]) -> T:
        def attempt() -> T:
            with Session(self._engine, expire_on_commit=False) as session, session.begin(), checked_rows():
                return work(session)

        return retry_while_busy(attempt)


def _apply(connection: Connection, search_id: str, event: Event, after: SearchRecord | None = None) -> None:
    if after is not None and _advance(connection, after):
        if event.kind in _CHANGE_THE_SEARCH:
            _change(connection, _CHANGED_SEARCH, search_values(after))
    elif (after := _folded(connection, search_id, event)) is None:
        return
    elif event.kind is EventKind.SEARCH_CREATED:
        connection.execute(_NEW[SearchRow], search_values(after))
    else:
        _change(connection, _CHANGED_SEARCH, search_values(after))
    if (name := event.data.get("trial")) is not None and event.kind is not EventKind.BEST_CHANGED:
        _store_trial(connection, search_id, after.trial(name), event)


def _advance(connection: Connection, after: SearchRecord) -> bool:
    """Count the event that leads to `after`, if it is the next one and not of an older lease."""
    values = {"of": after.search_id, "its_last_seq": after.last_seq, "its_fencing": after.fencing}
    return connection.execute(_ADVANCED, values).rowcount == 1


def _folded(connection: Connection, search_id: str, event: Event) -> SearchRecord | None:
    """The search after `event`, with only the trial that the event concerns; None where it was applied before."""
    stored = connection.execute(_STORED_SEARCH, {"of": search_id}).one_or_none()
    last_seq = 0 if stored is None else stored.last_seq
    if event.seq <= last_seq:
        return None
    if event.seq > last_seq + 1:
        raise LedgerBehind(f"event {event.seq} ({event.kind}) of {search_id} where {last_seq + 1} was expected")
    name = event.data.get("trial")
    # An event touches one trial at most, so the fold over that one is the fold over all.
    known = [] if stored is None or name is None else _stored_trials(connection, search_id, name)
    return apply_event(None if stored is None else search_record(stored, known), search_id, event)


def _replace(session: Session, search_id: str, events: Sequence[Event], folder: str) -> None:
    lease = _stored_lease(session, search_id)
    commands = list(session.scalars(select(CommandRow).where(CommandRow.search_id == search_id)))
    session.expunge_all()
    for table in (CommandRow, AttemptRow, TrialRow, SearchRow):
        session.execute(delete(table).where(table.search_id == search_id))
    for event in events:
        _apply(session.connection(), search_id, event)
    _set_folder(session, search_id, folder)
    session.get_one(SearchRow, search_id).lease = lease
    session.flush()  # a command refers to its search
    for command in commands:
        session.merge(command)


def _stored_lease(session: Session, search_id: str) -> Any:
    """The copy of the search's lease; the row is locked from here on. None for invalid JSON."""
    try:
        return session.scalar(select(SearchRow.lease).where(SearchRow.search_id == search_id).with_for_update())
    except JSONDecodeError:
        return None


def _set_folder(session: Session, search_id: str, folder: str) -> None:
    row = session.get_one(SearchRow, search_id, with_for_update=True)
    if row.spec.get("folder") != folder:
        row.spec = {**row.spec, "folder": folder}


def _stored_trials(connection: Connection, search_id: str, name: str) -> list[Trial]:
    wanted = {"of": search_id, "named": name}
    row = connection.execute(_STORED_TRIAL, wanted).one_or_none()
    return [] if row is None else [trial_record(row, connection.execute(_STORED_ATTEMPTS, wanted))]


def _store_trial(connection: Connection, search_id: str, trial: Trial, event: Event) -> None:
    last = trial.last_attempt
    if event.kind is EventKind.TRIAL_PROPOSED:
        connection.execute(_NEW[TrialRow], trial_values(search_id, trial) | {"proposed_seq": event.seq})
    if event.kind in _CHANGE_THE_TRIAL:
        _change(connection, _CHANGED_TRIAL, trial_values(search_id, trial))
    if last is not None and event.kind is EventKind.ATTEMPT_SUBMITTED:
        connection.execute(_NEW[AttemptRow], attempt_values(search_id, last))
    if last is not None and event.kind in _CHANGE_THE_ATTEMPT:
        _change(connection, _CHANGED_ATTEMPT, attempt_values(search_id, last))


def _change(connection: Connection, change: Update, values: Mapping[str, Any]) -> None:
    connection.execute(change, {f"its_{name}": value for name, value in values.items()})


def _changed(row: type[Base], *names: str) -> Update:
    """An update of these columns of one row; its values are named `its_<column>`."""
    columns = row.__table__.c
    wanted = (column == bindparam(f"its_{column.name}") for column in row.__table__.primary_key)
    return update(row).where(*wanted).values({columns[name]: bindparam(f"its_{name}") for name in names})


_CHANGE_THE_SEARCH = (
    *(EventKind.SEARCH_STATE, EventKind.BEST_CHANGED),
    *(EventKind.PILOT_ENDED, EventKind.DRIVER_JOB_USED, EventKind.FABRIC_CHECK),
)
_CHANGE_THE_TRIAL = (
    *(EventKind.ATTEMPT_SUBMITTED, EventKind.ATTEMPT_LAUNCHED, EventKind.ATTEMPT_REQUEUED),
    *(EventKind.ATTEMPT_RUNNING, EventKind.TRIAL_ENDED),
)
_CHANGE_THE_ATTEMPT = (
    *(EventKind.ATTEMPT_LAUNCHED, EventKind.ATTEMPT_REQUEUED, EventKind.ATTEMPT_RUNNING),
    *(EventKind.ATTEMPT_UNKNOWN, EventKind.ATTEMPT_WAITS, EventKind.ATTEMPT_ENDED),
)
"""Events that change a row, besides the event counter in the search's row."""

_NEW: dict[type[Base], Insert] = {row: insert(row) for row in (SearchRow, TrialRow, AttemptRow)}
_ADVANCED = (
    update(SearchRow)
    .where(_SEARCH.c.search_id == bindparam("of"), _SEARCH.c.last_seq + 1 == bindparam("its_last_seq"))
    .where(_SEARCH.c.fencing <= bindparam("its_fencing"))
    .values(last_seq=bindparam("its_last_seq"), fencing=bindparam("its_fencing"))
)
_CHANGED_SEARCH = _changed(
    SearchRow,
    *("state", "end_reason", "detail", "best_trial", "ended_at", "last_seq", "fencing", "pilots", "driver_jobs"),
    "fabric_check",
)
_CHANGED_TRIAL = _changed(TrialRow, "state", "reason")
_CHANGED_ATTEMPT = _changed(
    AttemptRow,
    *("state", "reason", "job_id", "nodes", "leaves", "started_at", "ended_at", "unknown_since", "waits_for"),
    *("restart", "earlier_node_hours", "node_hours", "billed_hours", "outcome", "excerpt"),
)


def _copy_lease(session: Session, search_id: str, fencing: int, lease: Mapping[str, Any]) -> None:
    row = session.get(SearchRow, search_id, with_for_update=True)
    if row is None:
        return
    if fencing < row.fencing:
        raise FencedError(f"search {search_id} is driven under lease {row.fencing}, not {fencing}")
    row.lease = lease
