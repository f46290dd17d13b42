"""Real Postgres for tests: one private server per session, on loopback, started on first use."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dashboards.access.ports import reserve_port

NO_POSTGRES = "no Postgres server installed"

_TIMEOUT_S = 120.0


class PostgresServer:
    """A cluster in `folder` that is thrown away: nothing of it is synced to disk. Call `start` and, at the end, `stop`.

    Postgres refuses to run as root; it then runs as `postgres`, or as `nobody` where there is no such user.
    """

    def __init__(self, programs: Path, folder: Path):
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._log = folder / "postgres.log"
        self._held = reserve_port()  # also between a kill and the next start
        self._port = int(self._held.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://parlay@127.0.0.1:{self._port}/postgres"

    def create(self) -> None:
        """Make the cluster's files."""
        user = _ordinary_user()
        if user:
            os.chown(self._folder, user["user"], user["group"])
        command = [self._programs / "initdb", "--no-sync", "--auth=trust", "--username=parlay", "--locale=C.UTF-8"]
        subprocess.run(
            [*command, f"--pgdata={self._data}"], cwd=self._folder, check=True, capture_output=True, **_ordinary_user()
        )

    def start(self) -> None:
        """Start the server and return when it answers. After `kill` the first tries may meet what the last one left."""
        deadline = time.monotonic() + _TIMEOUT_S
        self._launch()
        while not self.answers():
            if self._process.poll() is not None:
                self._launch()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.05)

    def answers(self) -> bool:
        """True if it accepts connections."""
        ready = [self._programs / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={self._port}"]
        return subprocess.run(ready).returncode == 0

    def kill(self) -> None:
        """End the server like a crash: no goodbye to anybody, and recovery at the next start."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server and every connection."""
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGINT)  # "fast": connections are closed, not waited for
        self._held.close()

    def _launch(self) -> None:
        settings = ("listen_addresses=127.0.0.1", f"port={self._port}", "unix_socket_directories=", "fsync=off")
        options = [word for setting in settings for word in ("-c", setting)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *options],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_ordinary_user(),
            )

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(_TIMEOUT_S)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's server. Whoever kills it starts it again."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of a database of that server; everybody's, so a test empties what it needs empty."""
    return postgres_server.url


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A server of its own, stopped and removed at the end; skips the test where Postgres is not installed."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip(NO_POSTGRES)
    with tempfile.TemporaryDirectory(prefix="parlay-postgres-", dir="/tmp") as folder:
        server = PostgresServer(programs, Path(folder))
        server.create()
        try:
            server.start()
            yield server
        finally:
            server.stop()


def postgres_programs() -> Path | None:
    """Folder of initdb and postgres; None without one. Debian keeps them by version and off the PATH."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()]
    if versions:
        return max(versions, key=lambda path: int(path.parent.name))
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def _ordinary_user() -> dict[str, Any]:
    """Arguments for subprocess to run a program as an ordinary user; {} for a user who is one."""
    if os.getuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
