"""Read access to the ledger: searches and their trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, func, select

from search_spaces.decoding import decode
from search_spaces.errors import InputError
from trials.ledger.commands import Command, pending
from trials.ledger.database import checked_rows, open_to_read, retry_while_busy
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.ledger.projection import load, load_readable
from trials.ledger.tables import SEARCH, TRIAL
from trials.trial import UtcSeconds

T = TypeVar("T")

_MOST_CANDIDATES = 10
_WHERE_ELSE = (
    "the ledger is empty: name the search by its folder, or name its ledger (PARLAY_HOME, --ledger);"
    " parlay ledger rebuild FOLDER fills this one"
)


@dataclass(frozen=True)
class SearchSummary:
    search_id: str
    spec: Mapping[str, Any]
    state: SearchState
    end_reason: EndReason | None
    best_trial: str | None
    num_trials: int
    created_at: UtcSeconds
    ended_at: UtcSeconds | None
    last_seq: int

    @property
    def folder(self) -> str | None:
        return folder_of(self.search_id, self.spec)


class LedgerReader:
    """Reads the ledger at `url`; one that does not exist yet is empty, and is not created.

    Each call sees one state of the ledger, complete up to some event. Safe for several threads. Raises
    LedgerUnavailable, LedgerDamaged, and InputError for an unknown schema.
    """

    def __init__(self, url: str):
        self._url = url
        self._engine: Engine | None = None

    def search(self, search_id: str) -> SearchRecord:
        """The search after its events so far; InputError for an unknown id."""
        found = self._read(lambda connection: load(connection, search_id), None)
        if found is None:
            raise _unknown(search_id, [s.search_id for s in self.searches()])
        return found

    def readable(self, search_id: str) -> tuple[SearchRecord, int]:
        """`search` without its damaged trials, and the number of these."""
        found = self._read(lambda connection: load_readable(connection, search_id), None)
        if found is None:
            raise _unknown(search_id, [])
        return found

    def searches(self) -> list[SearchSummary]:
        """All searches, newest first."""
        return self._read(_summaries, [])

    def newest(self, count: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Ids and specs of the `count` newest searches, newest first."""
        return self._read(lambda connection: _newest(connection, count), [])

    def resolve(self, prefix: str) -> str:
        """The unique search id that is `prefix` or begins with it; InputError unknown_id or ambiguous_id."""
        ids = [s.search_id for s in self.searches()]
        matches = [i for i in ids if i == prefix] or [i for i in ids if i.startswith(prefix)]
        if len(matches) == 1:
            return matches[0]
        raise _ambiguous(prefix, matches) if matches else _unknown(prefix, ids)

    def pending_commands(self, search_id: str) -> list[Command]:
        """Commands to this search's driver, oldest first, until `LedgerWriter.settle_commands`.

        A driver polls this; unlike the writer's methods it takes no lock.
        """
        return self._ask(lambda engine: pending(engine, search_id), [])

    def close(self) -> None:
        """Close the connections."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def _read(self, work: Callable[[Connection], T], when_empty: T) -> T:
        def ask(engine: Engine) -> T:
            with engine.begin() as connection, checked_rows():
                return work(connection)

        return self._ask(ask, when_empty)

    def _ask(self, work: Callable[[Engine], T], when_empty: T) -> T:
        self._engine = self._engine or open_to_read(self._url)
        engine = self._engine
        return when_empty if engine is None else retry_while_busy(lambda: work(engine))


_NEWEST_FIRST = (SEARCH.c.created_at.desc(), SEARCH.c.search_id)
_OF_SUMMARY = [SEARCH.c[field.name] for field in fields(SearchSummary) if field.name in SEARCH.c]


def _summaries(connection: Connection) -> list[SearchSummary]:
    num_trials = select(func.count()).where(TRIAL.c.search_id == SEARCH.c.search_id).scalar_subquery()
    rows = connection.execute(select(*_OF_SUMMARY, num_trials.label("num_trials")).order_by(*_NEWEST_FIRST))
    return [decode(SearchSummary, row) for row in rows.mappings()]


def _newest(connection: Connection, count: int) -> list[tuple[str, Mapping[str, Any]]]:
    rows = connection.execute(select(SEARCH.c.search_id, SEARCH.c.spec).order_by(*_NEWEST_FIRST).limit(count))
    return [(search_id, spec) for search_id, spec in rows]


def folder_of(search_id: str, spec: Mapping[str, Any]) -> str | None:
    """Folder of a search, whose name is the id; None where a row of somebody else's names none, or another search's."""
    folder = spec.get("folder")
    if not isinstance(folder, str) or "\0" in folder or PurePath(folder).name != search_id:
        return None
    return folder


def _ambiguous(prefix: str, matches: Sequence[str]) -> InputError:
    return InputError.of(
        "ambiguous_id",
        f"{prefix!r} matches {len(matches)} searches: {_listed(matches)}",
        key="search",
        value=prefix,
        rule="an id may be shortened as long as it is unique",
        fix="give more characters of the id",
    )


def _unknown(search_id: str, known: Sequence[str]) -> InputError:
    return InputError.of(
        "unknown_id",
        f"there is no search {search_id!r} in this ledger",
        key="search",
        value=search_id,
        rule="a search is named by its id, by its beginning, or by its folder",
        fix=f"one of: {_listed(known)}" if known else _WHERE_ELSE,
    )


def _listed(ids: Iterable[str]) -> str:
    names = list(ids)
    more = len(names) - _MOST_CANDIDATES
    return ", ".join(names[:_MOST_CANDIDATES]) + (f" and {more} more" if more > 0 else "")
