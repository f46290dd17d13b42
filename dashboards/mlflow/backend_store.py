"""Address of MLflow's backend store, and checks of a database before MLflow would retry it for minutes."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dashboards.text import mask_credentials
from search_spaces.errors import InputError
from search_spaces.plain_file import read_named
from trials.files import sqlite_file

SQLITE_FILE = "sqlite:///"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_OTHER_FILE = "name another file, or move the existing one away"
MARK, MARK_VALUE = "parlay", "search"
"""Tag of an experiment that Parlay writes to."""
WRITABLE = "parlay.writable"
"""Tag by which MLflow need not be asked again whether the experiment can be written."""


def tracking_uri(given: str | None, home: Path) -> str:
    """Tracking address: the given one, with an absolute file path, or an SQLite file in Parlay's home directory."""
    if given is None:
        return f"{SQLITE_FILE}{home.resolve()}/mlflow.db"
    if given.startswith(SQLITE_FILE):
        return SQLITE_FILE + str(Path(given.removeprefix(SQLITE_FILE)).expanduser().resolve())
    return given


def is_database_address(uri: str) -> bool:
    """True for the address of a database, false for a tracking server."""
    return uri.startswith(_DATABASES)


def require_usable_store(uri: str) -> None:
    """InputError for a database whose driver or file is unusable; nothing is asked of a server."""
    if not is_database_address(uri):
        return
    url = _parse(uri)
    try:
        url.get_dialect().import_dbapi()
    except NoSuchModuleError:
        raise _bad(uri, f"has an unknown driver {url.drivername!r}", "remove the part after +") from None
    except ImportError as error:
        raise _bad(uri, f"needs a driver that cannot be loaded: {error}", _driver_fix(error)) from error
    if url.get_backend_name() == "sqlite":
        _require_sqlite_file(uri, url)


def is_known_to_be_writable(uri: str, experiment: str) -> bool:
    """True for an SQLite file with this experiment, active, that the installed MLflow has found writable, and whose
    schema is that of then.

    MLflow has no reason to refuse such a store, and importing it takes longer than all else that a submission does.
    False wherever that is not known for sure: then MLflow itself is asked. The store has passed `require_usable_store`.
    """
    if (mark := writable_mark(uri)) is None:
        return False
    return sqlite_file.rows(Path(uri.removeprefix(SQLITE_FILE)), _MARKED, (experiment, WRITABLE, mark)) == [(1,)]


_MARKED = (
    "SELECT 1 FROM experiments JOIN experiment_tags USING (experiment_id)"
    " WHERE name = ? AND lifecycle_stage = 'active' AND key = ? AND value = ?"
)


def writable_mark(uri: str) -> str | None:
    """Value of the tag `WRITABLE`: the installed MLflow, and the schema of this SQLite file; None for another store."""
    if not uri.startswith(SQLITE_FILE):
        return None
    found = sqlite_file.rows(Path(uri.removeprefix(SQLITE_FILE)), "SELECT version_num FROM alembic_version")
    version = _installed_version()
    return f"{version}, schema {found[0][0]}" if found and version else None


def _installed_version() -> str | None:
    """Version that the installed module states, whatever its distribution (mlflow or mlflow-skinny); None for unknown.

    It is read without an import, which takes longer than all else that a submission does.
    """
    module = find_spec("mlflow")
    if module is None or module.origin is None:
        return None
    text = read_named(Path(module.origin).with_name("version.py")).decode()
    stated = re.search(r'^VERSION = "([^"]+)"', text, re.MULTILINE)
    return stated[1] if stated else None


def _parse(uri: str) -> URL:
    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        raise _bad(uri, "is not a database address", "for example sqlite:////home/me/mlflow.db") from None


def _driver_fix(error: ImportError) -> str:
    if error.name == "psycopg":
        return "pip install 'parlay[postgres]'"
    return "install the driver's package for this Python, or name another driver (postgresql+psycopg:)"


def _require_sqlite_file(uri: str, url: URL) -> None:
    if not url.database or url.database == ":memory:":
        raise _bad(uri, "is not a file", "for example sqlite:////home/me/mlflow.db")
    path = Path(url.database)
    try:
        nearest = next(p for p in (path, *path.absolute().parents) if p.exists())
        if nearest != path:
            _require_writable_folder(uri, nearest)
        elif not os.access(path, os.R_OK | os.W_OK):
            raise _bad(uri, "is not readable and writable for you", f"chmod u+rw {path}")
        elif not path.is_file():
            raise _bad(uri, "is not a regular file", _OTHER_FILE)
        elif not sqlite_file.is_database(path):
            raise _bad(uri, "is not an SQLite database", _OTHER_FILE)
    except OSError as error:
        raise _bad(uri, f"cannot be used: {error.strerror or error}", _OTHER_FILE) from error


def _require_writable_folder(uri: str, nearest: Path) -> None:
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise _bad(uri, f"cannot be created: {nearest} is not a folder that you may write to", "name another file")


def _bad(uri: str, what: str, fix: str) -> InputError:
    shown = mask_credentials(uri)
    return InputError.of(
        "mlflow_store",
        f"MLflow's store {shown} {what}",
        value=shown,
        rule="MLflow keeps runs in an SQLite file, in a database whose driver is installed, or behind a server",
        fix=fix,
    )
