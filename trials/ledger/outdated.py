"""A ledger of another schema: its searches and commands, read to be stored in this Parlay's tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, String, cast, insert, inspect, select

from search_spaces.errors import ExternalError
from trials.files.folders import SearchFolder
from trials.files.text import plural
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of
from trials.ledger.projection import load, store
from trials.ledger.reader import folder_of
from trials.ledger.tables import COMMAND, METADATA, SEARCH


@dataclass(frozen=True)
class OutdatedLedger:
    """Searches by their journals, those of which only rows are left, ids of those that can be read nowhere, and pending
    commands."""

    by_journal: tuple[SearchRecord, ...]
    by_rows: tuple[SearchRecord, ...]
    unread: tuple[str, ...]
    commands: tuple[dict[str, Any], ...]

    @property
    def words(self) -> str:
        """What the searches were read from, with their numbers."""
        words = f"{plural(len(self.by_journal), 'search')} from their journals"
        if self.by_rows:
            words += f", {len(self.by_rows)} from rows alone, since their folders are gone"
        if self.unread:
            names = ", ".join(self.unread[:10])
            words += f"; {len(self.unread)} without a folder or rows that can be read stay behind: {names}"
        return words


def specs_of(connection: Connection) -> dict[str, str]:
    """Specs of all searches by id, as text."""
    return dict(connection.execute(select(SEARCH.c.search_id, cast(SEARCH.c.spec, String))).all())


def read_journals(specs: Mapping[str, str]) -> dict[str, SearchRecord]:
    """Searches by id, from the journals in the folders that their specs name; without those that cannot be read there.
    A folder is only read."""
    found = {search_id: _by_journal(search_id, spec) for search_id, spec in specs.items()}
    return {search_id: record for search_id, record in found.items() if record is not None}


def read_outdated(connection: Connection, journals: Mapping[str, SearchRecord]) -> OutdatedLedger:
    """Read all searches: from these journals, else from their rows, as far as these have columns of ours. A journal
    that has grown since is read again."""
    tables = inspect(connection)
    known = {name: {column["name"] for column in tables.get_columns(name)} for name in METADATA.tables}
    by_journal, by_rows, unread = [], [], []
    events = _num_events(connection, known)
    for search_id, spec in specs_of(connection).items():
        record = journals.get(search_id)
        if record is not None and record.last_seq < events.get(search_id, 0):
            record = _by_journal(search_id, spec)
        if record is not None:
            by_journal.append(record)
        elif (record := _by_rows(connection, search_id, known)) is not None:
            by_rows.append(record)
        else:
            unread.append(search_id)
    found = {record.search_id for record in (*by_journal, *by_rows)}
    pending = select(*(COMMAND.c[name] for name in ("search_id", "at"))).order_by(COMMAND.c.id)
    commands = [dict(row) for row in connection.execute(pending.where(COMMAND.c.settled_at.is_(None))).mappings()]
    kept = tuple(command for command in commands if command["search_id"] in found)
    return OutdatedLedger(tuple(by_journal), tuple(by_rows), tuple(unread), kept)


def _num_events(connection: Connection, known: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Numbers of events in the rows of searches by id; empty where the rows do not tell them."""
    if "last_seq" not in known[SEARCH.name]:
        return {}
    return dict(connection.execute(select(SEARCH.c.search_id, SEARCH.c.last_seq)).all())


def carry_over(connection: Connection, ledger: OutdatedLedger) -> None:
    """Store what was read in this schema's tables, which are empty."""
    for record in (*ledger.by_journal, *ledger.by_rows):
        store(connection, record)
    if ledger.commands:
        connection.execute(insert(COMMAND), list(ledger.commands))


def _by_journal(search_id: str, spec: str) -> SearchRecord | None:
    """The search in the folder that its row names; None where no journal of it can be read there."""
    with suppress(OSError, ValueError, ExternalError, AttributeError, TypeError, KeyError):
        if (named := folder_of(search_id, json.loads(spec))) is None:
            return None
        folder = SearchFolder(Path(named))
        record = search_of(folder.journal, search_id, Journal(folder.journal).read())
        return None if record is None else replace(record, spec={**record.spec, "folder": named})
    return None


def _by_rows(connection: Connection, search_id: str, known: Mapping[str, Collection[str]]) -> SearchRecord | None:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return load(connection, search_id, known)
    return None
