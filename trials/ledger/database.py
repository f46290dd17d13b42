"""Connections to a ledger: created, rebuilt, guarded, and retried while another process holds the lock.

SQLite runs in WAL mode: readers (status, the MLflow sync, a person's own query) never block the driver and never see
half a transaction. Its shared memory only works within one machine, which is why `location` refuses network file
systems. A commit may be lost in a power failure (synchronous = NORMAL), never torn: the journal, synced first, restores
it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy.event
from sqlalchemy import URL, Connection, Engine, create_engine, inspect, make_url, text
from sqlalchemy.exc import DatabaseError, InvalidatePoolError, OperationalError, SQLAlchemyError

from search_spaces.errors import ExternalError, InputError
from trials.files import sqlite_file
from trials.ledger.events import FencedError
from trials.ledger.tables import METADATA, SCHEMA

VERSION_TABLE = "parlay_ledger_version"

PATIENCE_S = 60.0
"""Seconds for which a transaction is retried while the database is locked or restarting."""

_OPENING_PATIENCE_S = 10.0
_BUSY_TIMEOUT_MS = 100
_TRANSIENT_ERRORS = ("locked", "busy", "connection refused", "the database system is ", "closed the connection")
"""Messages of transient errors. Postgres may be starting up, shutting down, in recovery mode, or not accepting
connections."""

_REBUILD_HINT = "parlay ledger rebuild FOLDER, with the folder that holds your searches, recreates it"
REBUILD = "parlay ledger rebuild FOLDER, with the folder that holds your searches, sets it aside and recreates it"
"""Fix for a damaged ledger: the journals in the search folders hold everything."""

_DISK_FULL_ERRORS = ("disk is full", "no space left", "quota exceeded")
_ADVISORY_LOCK = 0x7061726C6179  # "parlay": held by whoever makes a Postgres ledger

T = TypeVar("T")

_log = logging.getLogger(__name__)


class LedgerUnavailable(ExternalError):
    """The database refused, or stayed locked or unreachable; the transaction was rolled back."""


class LedgerDamaged(LedgerUnavailable):
    """The database is corrupt: SQLite cannot read the file, or rows hold values that no search writes."""

    def __init__(self, words: str):
        super().__init__(f"the ledger is damaged: {words}", REBUILD)


class LedgerBehind(ValueError):
    """The ledger lacks events of the search before this one."""


class LedgerFull(LedgerUnavailable, OSError):
    """There is no room for the transaction, which was rolled back: like any full disk this may pass."""


def open_to_write(url: str, may_rebuild: bool = False) -> Engine:
    """The ledger at `url`, created if missing; its transactions take the write lock at once.

    A SQLite ledger of another schema is put aside and rebuilt, which is logged. One in Postgres may be others' too: it
    is rebuilt with `may_rebuild`, for the command that asks for it. Raises InputError (another schema, not a ledger, a
    driver that is not installed) and LedgerUnavailable.
    """
    target = make_url(url)
    if target.get_backend_name() == "sqlite":
        _create(Path(target.database or ""))
    engine = _engine(target, "BEGIN IMMEDIATE")
    retry_while_busy(partial(_prepare, engine, may_rebuild), _OPENING_PATIENCE_S)
    return engine


def open_to_read(url: str) -> Engine | None:
    """The ledger at `url`; None where there is none yet. One of another schema is treated as by `open_to_write`.

    A transaction sees one state of the whole ledger, whatever is written meanwhile.
    """
    target = make_url(url)
    if target.get_backend_name() == "sqlite" and not os.path.lexists(target.database or ""):
        return None
    engine = _engine(target, "BEGIN")
    with retry_while_busy(engine.connect, _OPENING_PATIENCE_S) as connection:
        found = retry_while_busy(partial(_schema, connection), _OPENING_PATIENCE_S)
    if found is None:
        engine.dispose()
        return None
    if found != SCHEMA:
        open_to_write(url).dispose()
    return engine


@contextmanager
def checked_rows() -> Iterator[None]:
    """Within this block rows are converted to records; LedgerDamaged for values that no search writes."""
    try:
        yield
    except (LedgerBehind, FencedError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerDamaged(f"a row has values that no search writes: {error}") from error


def put_aside_damaged(url: str) -> Path | None:
    """Rename the file of a ledger that SQLite finds damaged, so that the next open recreates it; returns the new path.

    None for a sound ledger, for none, and for one that is not a file. Raises LedgerUnavailable.
    """
    target = make_url(url)
    path = Path(target.database or "")
    if target.get_backend_name() != "sqlite" or (found := sqlite_file.identity(path)) is None:
        return None
    if retry_while_busy(partial(sqlite_file.damage, path), _OPENING_PATIENCE_S) is None:
        return None
    try:
        return sqlite_file.put_aside(path, found)
    except OSError as error:
        words = f"{path} cannot be put aside: {error.filename}: {error.strerror}"
        raise LedgerUnavailable(words, f"move it and its -wal and -shm away, then {_REBUILD_HINT}") from error


def retry_while_busy(transaction: Callable[[], T], patience_s: float = PATIENCE_S) -> T:
    """Run `transaction`, again while a lock or a lost connection prevents it; it must be safe to repeat.

    Raises LedgerUnavailable once `patience_s` have passed, or at once for any other refusal of the database, LedgerFull
    for a full disk, LedgerDamaged for a corrupt file.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return transaction()
        except (OperationalError, sqlite3.OperationalError) as error:
            if _is_full(error):
                raise LedgerFull(f"the ledger's database has no room: {_message(error)}") from error
            if not _may_pass(error) or time.monotonic() >= deadline:
                raise LedgerUnavailable(f"the ledger's database refused: {_message(error)}") from error
        except (DatabaseError, sqlite3.DatabaseError) as error:
            if not sqlite_file.is_damaged(_cause(error)):
                raise LedgerUnavailable(f"the ledger's database refused: {_message(error)}") from error
            raise LedgerDamaged(_message(error)) from error
        time.sleep(random.uniform(0.02, 0.2))


def _may_pass(error: Exception) -> bool:
    lost = isinstance(error, OperationalError) and error.connection_invalidated
    return lost or any(word in _message(error).lower() for word in _TRANSIENT_ERRORS)


def _is_full(error: Exception) -> bool:
    return any(word in _message(error).lower() for word in _DISK_FULL_ERRORS)


def _message(error: Exception) -> str:
    return str(_cause(error))


def _cause(error: Exception) -> BaseException | None:
    return error.orig if isinstance(error, DatabaseError) else error


def _create(path: Path) -> None:
    try:
        sqlite_file.create_private(path)
    except OSError as error:
        raise InputError.of(
            "ledger_url",
            f"the ledger cannot be written at {path}: {error.strerror}",
            key="ledger.url",
            fix="use a file in an existing folder that you can write to",
        ) from error


def _engine(target: URL, begin: str) -> Engine:
    options: dict[str, Any] = {"json_serializer": partial(json.dumps, allow_nan=False)}
    if target.get_backend_name() == "sqlite":
        path = Path(target.database or "")
        engine = create_engine(target, creator=partial(sqlite_file.connect, path), **options)
        sqlalchemy.event.listen(engine, "connect", partial(_set_up_sqlite, path))
        sqlalchemy.event.listen(engine, "checkout", partial(_require_same_file, path))
        # Python's sqlite3 would begin late and without the lock, so that two writers could collide.
        sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        return engine
    isolation = "REPEATABLE READ" if begin == "BEGIN" else "READ COMMITTED"
    try:
        return create_engine(target, isolation_level=isolation, pool_pre_ping=True, **options)
    except ModuleNotFoundError as error:
        raise InputError.of(
            "ledger_url",
            f"the database driver {error.name} is not installed",
            key="ledger.url",
            fix="pip install 'parlay[postgres]'",
        ) from error


def _set_up_sqlite(path: Path, connection: Any, record: Any) -> None:
    record.info["file"] = sqlite_file.identity(path)
    connection.isolation_level = None
    for pragma in (f"busy_timeout = {_BUSY_TIMEOUT_MS}", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _require_same_file(path: Path, _connection: Any, record: Any, _proxy: Any) -> None:
    """Refuse a connection to a ledger that was put aside: a process that has it open would go on writing to it."""
    if record.info["file"] != sqlite_file.identity(path):
        raise InvalidatePoolError("another file lies at the ledger's path by now")


def _prepare(engine: Engine, may_rebuild: bool) -> None:
    with _locked(engine) as connection:
        found = _schema(connection)
        if found is None:
            _create_tables(connection)
    if found is not None and found != SCHEMA:
        _rebuild(engine, found, may_rebuild)
    if engine.dialect.name == "sqlite":  # only now, so that a rejected database stays unchanged
        with closing(engine.raw_connection()) as raw:
            raw.cursor().execute("PRAGMA journal_mode = WAL")


@contextmanager
def _locked(engine: Engine) -> Iterator[Connection]:
    """A transaction in which no other process prepares the ledger."""
    with engine.begin() as connection:
        if engine.dialect.name != "sqlite":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _ADVISORY_LOCK})
        yield connection


def _schema(connection: Connection) -> str | None:
    """The schema found, None without one; InputError for tables with a ledger's names but no schema."""
    tables = inspect(connection)
    if tables.has_table(VERSION_TABLE):
        return str(connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar())
    if taken := [name for name in METADATA.tables if tables.has_table(name)]:
        words = f"the database has a table {taken[0]}, but no table with the schema's version"
        raise _refused(words, "move it away, or name another ledger")
    return None


def _refused(words: str, fix: str) -> InputError:
    rule = "a ledger of another schema is rebuilt from the journals in the searches' folders"
    return InputError.of("ledger_schema", words, key="ledger.url", rule=rule, fix=f"{fix}; {_REBUILD_HINT}")


def _create_tables(connection: Connection) -> None:
    METADATA.create_all(connection, checkfirst=False)
    connection.execute(text(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)"))
    connection.execute(text(f"INSERT INTO {VERSION_TABLE} VALUES (:schema)"), {"schema": SCHEMA})


def _rebuild(engine: Engine, found: str, may_rebuild: bool) -> None:
    """Replace the tables by those of this schema, with the same searches, in one transaction.

    Journals may be many, on a slow file system: they are read before the transaction, for whose lock others wait.
    """
    from trials.ledger.outdated import carry_over, read_journals, read_outdated, specs_of  # seldom needed

    words = f"the ledger has schema {found}, this Parlay reads schema {SCHEMA}"
    is_file = engine.dialect.name == "sqlite"
    if not is_file and not may_rebuild:
        raise _refused(words, "let nobody use it with another version of Parlay meanwhile")
    with engine.begin() as connection, _reading_outdated(words):
        specs = specs_of(connection)
    journals = read_journals(specs)
    with _locked(engine) as connection:
        if _schema(connection) != found:
            return  # rebuilt by another process meanwhile
        with _reading_outdated(words):
            before = read_outdated(connection, journals)
        kept = f": it is kept as {_back_up(Path(engine.url.database or ''), found)}" if is_file else ""
        METADATA.drop_all(connection)
        connection.execute(text(f"DROP TABLE {VERSION_TABLE}"))
        _create_tables(connection)
        carry_over(connection, before)
    _log.warning(f"{words}{kept}, and rebuilt: {before.words}")


@contextmanager
def _reading_outdated(words: str) -> Iterator[None]:
    """Within this block tables of another schema are read; InputError where no Parlay known to this one made them."""
    try:
        yield
    except SQLAlchemyError as error:
        raise _refused(words, "use the Parlay that wrote it, or name another ledger") from error


def _back_up(path: Path, schema: str) -> Path:
    """A copy of the ledger as it is, under a name of its own."""
    aside = sqlite_file.aside_path(path, f"schema-{schema}")
    sqlite_file.copy(path, aside)
    return aside
