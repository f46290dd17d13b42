"""Commands to a search's driver to cancel it, sent through the ledger."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from sqlalchemy import Engine, bindparam, insert, select

from search_spaces.errors import InputError
from trials.ledger.database import open_to_write, retry_while_busy
from trials.ledger.tables import COMMAND, SEARCH
from trials.trial import utc_seconds, utc_text


@dataclass(frozen=True)
class Command:
    """A request to cancel. `id` grows with every command of the ledger; `at` is UTC seconds since the epoch."""

    id: int
    at: float


def request_cancel(url: str, search_id: str, at: float) -> None:
    """Ask the driver of this search to cancel it. InputError for an unknown search, LedgerUnavailable."""
    engine = open_to_write(url)

    def send() -> None:
        with engine.begin() as connection:
            if connection.scalar(select(SEARCH.c.search_id).where(SEARCH.c.search_id == search_id)) is None:
                message = f"there is no search {search_id!r} in this ledger"
                fix = "parlay status --all lists those that are"
                raise InputError.of("unknown_id", message, value=search_id, fix=fix)
            command = {"search_id": search_id, "at": utc_text(at)}
            connection.execute(insert(COMMAND).values(command))

    try:
        retry_while_busy(send)
    finally:
        engine.dispose()


_PENDING = (
    select(COMMAND.c.id, COMMAND.c.at)
    .where(COMMAND.c.search_id == bindparam("of"), COMMAND.c.settled_at.is_(None))
    .order_by(COMMAND.c.id)
)
_ANY_IN_SQLITE = "SELECT 1 FROM command WHERE search_id = ? AND settled_at IS NULL LIMIT 1"


def pending(engine: Engine, search_id: str) -> list[Command]:
    """The commands of this search whose effects are not recorded yet, oldest first.

    Drivers call this in every iteration, and nearly always there are none, so SQLite is queried without SQLAlchemy's
    overhead.
    """
    if engine.dialect.name == "sqlite" and not _has_any(engine, search_id):
        return []
    with engine.connect() as connection:
        rows = connection.execute(_PENDING, {"of": search_id}).all()
    return [Command(row.id, utc_seconds(row.at)) for row in rows]


def _has_any(engine: Engine, search_id: str) -> bool:
    with closing(engine.raw_connection()) as connection:
        return connection.cursor().execute(_ANY_IN_SQLITE, (search_id,)).fetchone() is not None
