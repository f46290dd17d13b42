"""What other verbs may ask of a search's driver, by way of the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from search_spaces.errors import InputError
from trials.ledger.database import open_to_write, patiently
from trials.ledger.tables import CommandRow, SearchRow
from trials.trial import Word


class CommandKind(Word):
    CANCEL = "cancel"


@dataclass(frozen=True)
class Command:
    """`id` grows with every command of the ledger; `at` is UTC seconds since the epoch."""

    id: int
    search_id: str
    kind: CommandKind
    at: float


def request_cancel(url: str, search_id: str, at: float) -> None:
    """Ask the driver of this search to cancel it. InputError for an unknown search, LedgerUnavailable."""
    engine = open_to_write(url)

    def insert() -> None:
        with Session(engine) as session, session.begin():
            if session.get(SearchRow, search_id) is None:
                raise InputError.of("unknown_id", f"there is no search {search_id!r} in this ledger", value=search_id)
            session.add(CommandRow(search_id=search_id, kind=CommandKind.CANCEL.value, at=at))

    try:
        patiently(insert)
    finally:
        engine.dispose()


_PENDING = (
    select(CommandRow.id, CommandRow.search_id, CommandRow.kind, CommandRow.at)
    .where(CommandRow.search_id == bindparam("of"), CommandRow.settled_at.is_(None))
    .order_by(CommandRow.id)
)
"""Made once: every driver asks this in every turn."""


def pending(session: Session, search_id: str) -> list[Command]:
    """The commands of this search whose consequences are not recorded yet, oldest first."""
    rows = session.execute(_PENDING, {"of": search_id})
    return [Command(row.id, row.search_id, CommandKind(row.kind), row.at) for row in rows]
