"""Searches as rows of the ledger's tables: stored by upserts, read back by the codec."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, Table, Update, bindparam, delete, select, update
from sqlalchemy.dialects import sqlite

from search_spaces.decoding import decode, encode
from trials.ledger.database import LedgerBehind
from trials.ledger.events import FABRIC_CHECK, Event, EventKind, FencedError, SearchRecord
from trials.ledger.tables import ATTEMPT, SEARCH, TRIAL
from trials.trial import Attempt, Trial

_FIXED = ("search_id", "spec", "code_hash", "created_at")
"""Columns of a search that no event changes. The spec's folder is where the search lies now."""
_COUNTER = ("last_seq", "fencing")
_CHANGING = tuple(column.name for column in SEARCH.c if column.name not in _FIXED)


def store_event(connection: Connection, event: Event, after: SearchRecord) -> None:
    """Store what an event changed, given the search after it; nothing is read. One stored before changes nothing.

    Raises LedgerBehind when events before it are missing, FencedError for an old lease.
    """
    if event.kind is EventKind.SEARCH_CREATED:
        if position(connection, after.search_id) == (0, 0):
            _upsert(connection, SEARCH, [_search_row(after)])
        return
    name = trial_name(event)
    values = encode(after, "search_id", *(_CHANGING if name is None else _COUNTER))
    if connection.execute(_CHANGED if name is None else _COUNTED, _named(values)).rowcount == 0:
        _require_stored(connection, event, after.search_id)
    elif name is not None:
        trial = after.trial(name)
        if event.kind is EventKind.TRIAL_PROPOSED:
            _upsert(connection, TRIAL, [_trial_row(after, trial)])
        else:
            known = {"search_id": after.search_id, **encode(trial, "trial", "state", "reason")}
            connection.execute(_CHANGED_TRIAL, _named(known))
        if "attempt" in event.data:
            _upsert(connection, ATTEMPT, [_attempt_row(after, attempt) for attempt in trial.attempts[-1:]])


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"its_{column}": value for column, value in values.items()}


def trial_name(event: Event) -> str | None:
    """Name of the trial that an event changes; None where it changes the search, whose row has the fabric check."""
    name = None if event.kind is EventKind.BEST_CHANGED else event.data.get("trial")
    return None if name == FABRIC_CHECK else name


def store(connection: Connection, search: SearchRecord, trials: Collection[str] | None = None) -> None:
    """Store a search: what changed of it and of these trials, or all of it in place of what is stored."""
    if trials is None:
        for table in (ATTEMPT, TRIAL):
            connection.execute(delete(table).where(table.c.search_id == search.search_id))
        _upsert(connection, SEARCH, [_search_row(search)])
    else:
        changed = update(SEARCH).where(SEARCH.c.search_id == search.search_id).values(encode(search, *_CHANGING))
        connection.execute(changed)
    found = [trial for trial in search.trials if trials is None or trial.trial in trials]
    _upsert(connection, TRIAL, [_trial_row(search, trial) for trial in found])
    _upsert(connection, ATTEMPT, [_attempt_row(search, attempt) for trial in found for attempt in trial.attempts])


def load(
    connection: Connection, search_id: str, known: Mapping[str, Collection[str]] | None = None
) -> SearchRecord | None:
    """The stored search; None for an unknown one. `known` are the columns by table, where they are of another schema:
    its trials are in the order of their numbers.

    ValueError for rows that no search writes.
    """
    search, trials = _stored(connection, search_id, known)
    return None if search is None else decode(SearchRecord, search | {"trials": trials})


def load_readable(connection: Connection, search_id: str) -> tuple[SearchRecord, int] | None:
    """`load` without the trials that have values which no search writes, and the number of these."""
    search, trials = _stored(connection, search_id, None)
    if search is None:
        return None
    found = []
    for trial in trials:
        with suppress(ValueError):
            found.append(decode(Trial, trial))
    return replace(decode(SearchRecord, search), trials=tuple(found)), len(trials) - len(found)


def _stored(
    connection: Connection, search_id: str, known: Mapping[str, Collection[str]] | None
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Rows of a search, None for an unknown one, and of its trials with their attempts, as the codec reads them."""
    found = [_rows(connection, kind, table, search_id, known) for kind, table in _TABLES.items()]
    searches, trials, attempts = found
    of_trial = defaultdict(list)
    for attempt in attempts:
        of_trial[attempt["trial"]].append(attempt)
    with_attempts = [trial | {"attempts": _in_order(of_trial[trial["trial"]], "attempt")} for trial in trials]
    in_order = with_attempts if known is None else _in_order(with_attempts, "trial")
    return (searches[0] if searches else None), in_order


def _in_order(rows: Iterable[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Rows in the order of the numbers in their names: t9999 before t10000."""
    return sorted(rows, key=lambda row: (len(row[name]), row[name]))


_TABLES: Mapping[type, Table] = {SearchRecord: SEARCH, Trial: TRIAL, Attempt: ATTEMPT}


def _rows(
    connection: Connection, kind: type, table: Table, search_id: str, known: Mapping[str, Collection[str]] | None
) -> list[dict[str, Any]]:
    """Rows of a search as fields of this dataclass, trials in the order of their proposals unless `known` is given."""
    columns = [table.c[f.name] for f in fields(kind) if f.name in table.c]
    if known is not None:
        columns = [column for column in columns if column.name in known[table.name]]
    order = [table.c["place"]] if "place" in table.c and known is None else []
    rows = connection.execute(select(*columns).where(table.c.search_id == search_id).order_by(*order))
    return [dict(row) for row in rows.mappings()]


def position(connection: Connection, search_id: str) -> tuple[int, int]:
    """The last event stored of this search and its lease, whose row is locked from here on; 0 where it is unknown."""
    last_seq, fencing = connection.execute(_STORED, {"of": search_id}).one_or_none() or (0, 0)
    return last_seq, fencing


def _require_stored(connection: Connection, event: Event, search_id: str) -> None:
    seen, fencing = position(connection, search_id)
    if event.seq > seen + 1:
        raise LedgerBehind(f"event {event.seq} ({event.kind}) of {search_id} where {seen + 1} was expected")
    if event.seq > seen:
        raise FencedError(f"search {search_id} is driven under lease {fencing}, not {event.fencing}")


def _search_row(search: SearchRecord) -> dict[str, Any]:
    return encode(search, *(column.name for column in SEARCH.c))


def _trial_row(search: SearchRecord, trial: Trial) -> dict[str, Any]:
    known = {"search_id": search.search_id, "place": search.index_of(trial.trial)}
    return known | encode(trial, *(column.name for column in TRIAL.c if column.name not in known))


def _attempt_row(search: SearchRecord, attempt: Attempt) -> dict[str, Any]:
    known = {"search_id": search.search_id}
    return known | encode(attempt, *(column.name for column in ATTEMPT.c if column.name not in known))


def _upsert(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(_upserts(table, connection.dialect.name), rows)


@cache
def _upserts(table: Table, dialect: str) -> Any:
    insert: Any
    if dialect == "sqlite":
        insert = sqlite.insert(table)
    else:
        from sqlalchemy.dialects import postgresql  # seldom needed, with a few drivers

        insert = postgresql.insert(table)
    new = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=table.primary_key, set_=new)


def _guarded(names: Iterable[str]) -> Update:
    """An update of these columns by the next event, unless its lease is old; its values are named `its_<column>`."""
    return (
        update(SEARCH)
        .where(SEARCH.c.search_id == bindparam("its_search_id"), SEARCH.c.last_seq + 1 == bindparam("its_last_seq"))
        .where(SEARCH.c.fencing <= bindparam("its_fencing"))
        .values({name: bindparam(f"its_{name}") for name in names})
    )


_CHANGED_TRIAL = (
    update(TRIAL)
    .where(TRIAL.c.search_id == bindparam("its_search_id"), TRIAL.c.trial == bindparam("its_trial"))
    .values(state=bindparam("its_state"), reason=bindparam("its_reason"))
)
_COUNTED, _CHANGED = _guarded(_COUNTER), _guarded(_CHANGING)
_STORED = select(SEARCH.c.last_seq, SEARCH.c.fencing).where(SEARCH.c.search_id == bindparam("of")).with_for_update()
