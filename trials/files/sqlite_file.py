"""SQLite files: the only module that opens them.

SQLite guards a database by POSIX locks, and closing any descriptor of its file drops all locks of the process. So a
file that is or may become a database is opened by SQLite alone; other code uses `stat`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

_SIDE_FILES = ("-wal", "-shm", "-journal")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCK_PATIENCE_S = 10.0
"""Time limit for the folder's lock, which any process that can read the folder may hold."""
_PRIMARY_CODE = 0xFF  # of an extended result code


def create_private(path: Path) -> None:
    """Make an empty database of mode 0600 at `path`, whatever the umask; an existing one is left alone.

    SQLite's side files copy the mode. No descriptor of the file is open once it has its name. Raises OSError.
    """
    if path.exists():
        return
    descriptor, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        os.unlink(part)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to the database at `path`, for use by any thread. sqlite3.Error, also where it is missing."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, check_same_thread=False)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file at `path`; None without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def copy(path: Path, target: Path) -> None:
    """Copy the database as it is now, 0600. Raises OSError and sqlite3.Error."""
    create_private(target)
    with closing(connect(path)) as source, closing(connect(target)) as new:
        source.backup(new)


def is_database(path: Path) -> bool:
    """True if the plain file at `path` is a database, or empty, and so may become one."""
    try:
        with closing(connect(path)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:  # busy, so it is a database
        return True
    except sqlite3.DatabaseError as error:
        return not is_damaged(error)
    return True


def rows(path: Path, query: str, values: Sequence[str] = ()) -> list[tuple[Any, ...]] | None:
    """Rows of a query to an existing database; None where SQLite refuses it."""
    try:
        with closing(connect(path)) as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error:
        return None


def is_damaged(error: BaseException | None) -> bool:
    """True if SQLite's error means that a file is not a database, or a corrupt one."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY_CODE in _DAMAGED


def damage(path: Path) -> str | None:
    """The damage of the database, in SQLite's words; None for a sound or an empty one.

    sqlite3.OperationalError where it cannot be examined, as while it is locked.
    """
    try:
        with closing(connect(path)) as connection:
            found = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    except sqlite3.DatabaseError as error:
        if not is_damaged(error):
            raise
        return str(error)
    return None if found == ["ok"] else "; ".join(found)


def put_aside(path: Path, found: tuple[int, int] | None) -> Path | None:
    """Rename the database that was `found` at `path`, with its side files, and return its new path.

    None where another file lies there by now. Raises OSError. Processes that have it open go on with the renamed one.
    """
    with _locked(path.parent):
        if found is None or identity(path) != found:
            return None
        aside = aside_path(path, "damaged")
        # The log goes first: SQLite would replay a leftover one into the next database of that name.
        for end in (*_SIDE_FILES, ""):
            with suppress(FileNotFoundError):
                os.rename(f"{path}{end}", f"{aside}{end}")
        return aside


def aside_path(path: Path, why: str) -> Path:
    """A new name beside a database that is put aside."""
    return path.with_name(f"{path.name}.{why}-{datetime.now(timezone.utc):%Y%m%dT%H%M%S.%fZ}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    try:
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process", str(folder))
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
