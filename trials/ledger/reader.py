"""Read access to the ledger: searches and their trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath
from typing import Any, TypeVar

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session

from search_spaces.errors import InputError
from trials.ledger.commands import Command, pending
from trials.ledger.database import checked_rows, open_to_read, retry_while_busy
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.ledger.rows import search_record, trial_record
from trials.ledger.tables import AttemptRow, SearchRow, TrialRow
from trials.trial import Trial

T = TypeVar("T")

_MOST_CANDIDATES = 10
_WHERE_ELSE = (
    "the ledger is empty: name the search by its folder, or name its ledger (PARLAY_HOME, --ledger);"
    " parlay ledger rebuild FOLDER fills this one"
)


@dataclass(frozen=True)
class SearchSummary:
    """Summary of a search. `lease` is the driver's lease as it last wrote it to the ledger."""

    search_id: str
    folder: str | None
    state: SearchState
    end_reason: EndReason | None
    best_trial: str | None
    num_trials: int
    created_at: float
    ended_at: float | None
    last_seq: int
    lease: Mapping[str, Any] | None


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
        found = self._read(lambda session: _search(session, search_id), None)
        if found is None:
            raise _unknown(search_id, [s.search_id for s in self.searches()])
        return found

    def searches(self) -> list[SearchSummary]:
        """All searches, newest first."""
        return self._read(_summaries, [])

    def newest(self, count: int) -> list[tuple[str, Mapping[str, Any]]]:
        """Ids and specs of the `count` newest searches, newest first."""
        return self._read(lambda session: _newest(session, count), [])

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

    def _read(self, work: Callable[[Session], T], when_empty: T) -> T:
        def ask(engine: Engine) -> T:
            with Session(engine) as session, session.begin(), checked_rows():
                return work(session)

        return self._ask(ask, when_empty)

    def _ask(self, work: Callable[[Engine], T], when_empty: T) -> T:
        self._engine = self._engine or open_to_read(self._url)
        engine = self._engine
        return when_empty if engine is None else retry_while_busy(lambda: work(engine))


def _search(session: Session, search_id: str) -> SearchRecord | None:
    row = session.get(SearchRow, search_id)
    return None if row is None else search_record(row, _trials(session, search_id))


def _trials(session: Session, search_id: str) -> list[Trial]:
    trials = select(TrialRow).where(TrialRow.search_id == search_id).order_by(TrialRow.proposed_seq)
    attempts = select(AttemptRow).where(AttemptRow.search_id == search_id).order_by(AttemptRow.trial)
    of_trial = {name: list(rows) for name, rows in groupby(session.scalars(attempts), lambda row: row.trial)}
    return [trial_record(row, of_trial.get(row.trial, [])) for row in session.scalars(trials)]


def _summaries(session: Session) -> list[SearchSummary]:
    num_trials = (
        select(func.count()).where(TrialRow.search_id == SearchRow.search_id).correlate(SearchRow).scalar_subquery()
    )
    rows = session.execute(select(SearchRow, num_trials).order_by(SearchRow.created_at.desc(), SearchRow.search_id))
    return [_summary(row, count) for row, count in rows]


def _newest(session: Session, count: int) -> list[tuple[str, Mapping[str, Any]]]:
    order = (SearchRow.created_at.desc(), SearchRow.search_id)
    rows = session.execute(select(SearchRow.search_id, SearchRow.spec).order_by(*order).limit(count))
    return [(search_id, spec) for search_id, spec in rows]


def _summary(row: SearchRow, num_trials: int) -> SearchSummary:
    return SearchSummary(
        search_id=row.search_id,
        folder=folder_of(row.search_id, row.spec),
        state=SearchState(row.state),
        end_reason=None if row.end_reason is None else EndReason(row.end_reason),
        best_trial=row.best_trial,
        num_trials=num_trials,
        created_at=row.created_at,
        ended_at=row.ended_at,
        last_seq=row.last_seq,
        lease=row.lease,
    )


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
