"""State directory of the service in Parlay's home: lock, address, token, searches."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.config.answer import Answer
from orchestrator.launchers.private_tmp import make_private_folder, remove_abandoned
from orchestrator.launchers.process_identity import boot_id, start_ticks
from search_spaces.decoding import decode_value
from search_spaces.errors import ExternalError
from search_spaces.plain_file import read_plain
from trials.files.folders import read_json, write_text

SEARCHES_SCHEMA = "parlay.service_searches/1"
MAX_SOCKET_PATH_BYTES = 107
"""Maximum length in bytes of a unix socket's path."""
_KEY_BYTES = 32


class ServiceAnswer(Answer):
    """Printed by serve once it listens; also `service/service.json` in Parlay's home."""

    schema_: Literal["parlay.service/1"] = "parlay.service/1"
    pid: int
    pid_started: int | None
    """Start time of the process in clock ticks since boot."""
    boot_id: str | None
    socket: str | None
    port: int | None
    executor: str
    """process or ray."""


class PageAnswer(Answer):
    """Printed by serve --page and dashboard --page: an address that opens once, within ten minutes."""

    schema_: Literal["parlay.page/1"] = "parlay.page/1"
    address: str


class DashboardAnswer(Answer):
    """Printed by dashboard, once it has ended."""

    schema_: Literal["parlay.dashboard/1"] = "parlay.dashboard/1"
    uri: str


class ServiceAlreadyRunning(Exception):
    """Another service of this home runs; `pid` is its process, None if unknown."""

    def __init__(self, pid: int | None):
        super().__init__(f"a service of this home is already running: process {pid or 'unknown'}")
        self.pid = pid


@dataclass(frozen=True)
class ServiceSearch:
    """A search that the service drives until it has ended."""

    search_id: str
    folder: Path
    ledger_url: str


@dataclass(frozen=True)
class ServiceStateDir:
    """`service/` (0700) in Parlay's home; its files are 0600."""

    folder: Path

    @classmethod
    def of(cls, home: Path) -> ServiceStateDir:
        return cls(home / "service")

    @property
    def about(self) -> Path:
        """Address of a running service, a ServiceAnswer."""
        return self.folder / "service.json"

    @property
    def token(self) -> Path:
        """Token of clients on a port; new at every start."""
        return self.folder / "token"

    def read_token(self) -> str:
        return read_plain(self.token).decode()

    @property
    def searches(self) -> Path:
        return self.folder / "searches.json"

    @property
    def log(self) -> Path:
        """The service's messages, with time and level."""
        return self.folder / "service.log"

    @property
    def quota(self) -> Path:
        return self.folder / "quota.json"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Within this block no other service of this home can start. Raises ServiceAlreadyRunning."""
        from filelock import FileLock, Timeout  # with asyncio: `status`, which looks for a service, needs neither

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        lock = FileLock(self.folder / "lock", mode=0o600, thread_local=False, blocking=False, fallback_to_soft=False)
        try:
            lock.acquire()
        except Timeout:
            raise ServiceAlreadyRunning((read_json(self.about) or {}).get("pid")) from None
        try:
            yield
        finally:
            for file in (self.about, self.token):
                file.unlink(missing_ok=True)
            lock.release()

    def write_about(self, socket_path: Path | None, port: int | None, executor: str) -> ServiceAnswer:
        """Write the service's address, once it listens."""
        about = ServiceAnswer(
            pid=os.getpid(),
            pid_started=start_ticks(os.getpid()),
            boot_id=boot_id(),
            socket=None if socket_path is None else str(socket_path),
            port=port,
            executor=executor,
        )
        write_text(self.about, json.dumps(about.plain()))
        return about

    def new_token(self) -> str:
        token = secrets.token_urlsafe(_KEY_BYTES)
        write_text(self.token, token)
        return token

    def page_key(self) -> str:
        """Signing key of browsers' cookies. It survives a restart; removing the file logs all browsers out."""
        path = self.folder / "page_key"
        key = read_plain(path).decode(errors="replace").strip() if path.exists() else ""
        if len(key) < _KEY_BYTES:  # emptied or truncated, and so guessable
            key = secrets.token_urlsafe(_KEY_BYTES)
            write_text(path, key)
        return key

    def read_searches(self) -> dict[str, ServiceSearch]:
        """Searches to drive, by id. Raises ExternalError for a damaged file."""
        try:
            data = read_json(self.searches) or {"searches": []}
            rows = decode_value(tuple[dict[str, str], ...], data.get("searches"), "searches")
            return {r["search_id"]: ServiceSearch(r["search_id"], Path(r["folder"]), r["ledger_url"]) for r in rows}
        except (ValueError, KeyError) as error:
            fix = "remove it; parlay status --all lists the searches, parlay resume ID continues one"
            raise ExternalError(f"{self.searches} is damaged: {error!r}", fix) from error

    def write_searches(self, searches: dict[str, ServiceSearch]) -> None:
        rows = [
            {"search_id": s.search_id, "folder": str(s.folder), "ledger_url": s.ledger_url} for s in searches.values()
        ]
        write_text(self.searches, json.dumps({"schema": SEARCHES_SCHEMA, "searches": rows}))


@contextmanager
def unix_socket(state_dir: ServiceStateDir) -> Iterator[tuple[socket.socket, Path]]:
    """Listening socket (0600) in the state directory, or in a private folder of /tmp if the path is too long."""
    path = state_dir.folder / "parlay.sock"
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        remove_abandoned()
        path = make_private_folder() / "parlay.sock"
    path.unlink(missing_ok=True)  # we hold the lock, so its owner has gone
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(128)
        try:
            yield listening, path
        finally:
            with suppress(OSError):
                path.unlink()


@contextmanager
def loopback_socket(port: int) -> Iterator[tuple[socket.socket, int]]:
    """Listening socket on this port of 127.0.0.1, 0 for a free one. Raises ExternalError."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError as error:
            fix = "name another port; 0 takes a free one" if error.errno == errno.EADDRINUSE else None
            raise ExternalError(f"port {port} of 127.0.0.1: {error.strerror}", fix) from error
        listening.listen(128)
        yield listening, listening.getsockname()[1]
