"""Token for MLflow's pages, in a 0600 file while they are served."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path

from dashboards.access.ports import is_own_listener
from search_spaces.errors import ExternalError
from search_spaces.plain_file import open_plain, read_plain

PORT_VARIABLE = "PARLAY_DASHBOARD_PORT"
TOKEN_VARIABLE = "PARLAY_DASHBOARD_TOKEN"
"""Environment variables of the server's process, readable by its user only."""
_NAME = "dashboard-{}.token"


class MlflowTokenFile:
    """New token for the pages on a port. Its file is locked while they are served, so that the file of a killed command
    is recognised."""

    def __init__(self, home: Path):
        self.text = secrets.token_urlsafe(32)
        self._home = home
        self._descriptor: int | None = None
        self.path: Path | None = None

    def write(self, port: int) -> None:
        self.path = self._home / _NAME.format(port)
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.write(self._descriptor, self.text.encode())

    def remove(self) -> None:
        if self._descriptor is not None and self.path is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None


def served_token(home: Path, port: int | None) -> tuple[int, str]:
    """Port and token of the pages on `port`, else of those started last.

    Raises ExternalError without a running dashboard.
    """
    served = [path for path in home.glob(_NAME.format("*" if port is None else port)) if _is_served(path)]
    if not served:
        raise ExternalError("no dashboard runs" + (f" on port {port}" if port else ""), "parlay dashboard starts one")
    newest = max(served, key=lambda path: path.stat().st_mtime_ns)
    return _port_of(newest), read_plain(newest).decode()


def _is_served(path: Path) -> bool:
    """True if the command that wrote the file is running and the port is ours."""
    return _is_held(path) and is_own_listener(_port_of(path))


def _is_held(path: Path) -> bool:
    with suppress(OSError, ValueError), open_plain(path) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _port_of(path: Path) -> int:
    return int(path.stem.removeprefix("dashboard-"))
