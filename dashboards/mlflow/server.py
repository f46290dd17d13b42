"""MLflow's own pages over what was recorded: a server on loopback that lives as long as the command that shows it."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from dashboards.access.ports import held_port, is_own_listener
from dashboards.access.token import PORT_VARIABLE, TOKEN_VARIABLE, Token, page_address
from dashboards.mlflow.backend_store import require_usable_store
from dashboards.schema import require_tracking_uri
from trials.files.text import tail

_LOOPBACK = "127.0.0.1"
_FRONT = "dashboards.mlflow.front:FrontProtocol"
_START_S = 300.0
"""From a cold disk of many users MLflow alone takes a minute to load; one that ends is noticed at once."""
_LOG_LINES = 15
_POLL_S = 0.2

# Leads a session of its own with the server in it. Its standard input is a pipe from us, which ends when we do, however
# that happens; then, or when the server has ended by itself, nothing of the session is left.
_GUARD = """
import os, signal, subprocess, sys, threading
def end():
    os.killpg(0, signal.SIGKILL)
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
threading.Thread(target=lambda: (server.wait(), end()), daemon=True).start()
sys.stdin.buffer.read()
end()
"""


class ServerFailed(Exception):
    """MLflow's server ended or never answered; the message holds the end of its log."""


class MlflowServer:
    """MLflow's server over the store at `uri`, reachable from this machine only. A context manager.

    Nobody is let in but who has the token of a 0600 file in `home`, Parlay's home directory, which takes the log too; a
    browser by an address that opens once. `port` None takes a free one, which is known from the start on.
    """

    def __init__(self, uri: str, home: Path, port: int | None = None):
        self._uri = uri
        self._home = home
        self._held: socket.socket | None = None
        self.port = port or 0
        self._log = home / "dashboard.log"
        self.token = Token(home)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}"

    def __enter__(self) -> MlflowServer:
        """Start it and wait until it answers; ServerFailed if it does not."""
        if not self.port:
            self._held = held_port()
            self.port = self._held.getsockname()[1]
        try:
            self.token.write(self.port)
            self._process = self._start()
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()

    def wait(self) -> None:
        """Until the server ends by itself, which it does not, or the user interrupts."""
        # A signal that comes just before a wait without an end begins is heard only after it.
        while self._process is not None and self._process.poll() is None:
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the server and everything it started; returns when that is done."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self.token.remove()
        if self._held is not None:
            self._held.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD, *self._command()],
                cwd=self._home,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        artifacts = (self._home.resolve() / "mlflow-artifacts").as_uri()
        where = ["--host", _LOOPBACK, "--port", str(self.port), "--workers", "1"]
        return [sys.executable, "-m", "mlflow", "server", *where, "--artifacts-destination", artifacts, *self._front()]

    def _front(self) -> list[str]:
        """Has every connection read by our protocol; an upgrade to a web socket would pass it by. Strangers' requests
        leave no line in the log."""
        options = f"--http {_FRONT} --ws none --backlog 128 --no-access-log --log-level error"
        return ["--uvicorn-opts", options]

    def _environment(self) -> dict[str, str]:
        """The store's address may hold a password, so it stands here and not among the arguments.

        Without the jobs, which need nothing of ours, the server is two processes of 0.5 GB instead of ten of 1 GB.
        """
        return {
            **os.environ,
            "MLFLOW_BACKEND_STORE_URI": self._uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            PORT_VARIABLE: str(self.port),
            TOKEN_VARIABLE: self.token.text,
        }

    def _wait_until_it_answers(self) -> None:
        until = time.monotonic() + _START_S
        while not answers(self.port, self.token.text):
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                words = tail(self._log, _LOG_LINES)
                raise ServerFailed(f"MLflow's server does not run; the end of {self._log}:\n{words}")
            time.sleep(_POLL_S)


def show_dashboard(uri: str, home: Path, say: Callable[[str], None], port: int | None = None) -> None:
    """Say where the recorded runs can be seen, and serve them until interrupted; a store with a server needs none.

    Raises InputError for an address that MLflow cannot use, ServerFailed.
    """
    require_usable_store(require_tracking_uri(uri))
    if uri.startswith(("http:", "https:", "databricks")):
        say(f"MLflow: {uri}")
        return
    with MlflowServer(uri, home, port) as server:
        say(f"MLflow: {server.address} (Ctrl-C ends it)")
        say(f"from another machine, first: {tunnel_command(server.port)}")
        say(f"for a browser: {_describe_page_address(home, server.port)}")
        say(f"for a program: MLFLOW_TRACKING_TOKEN=$(cat {server.token.path})")
        server.wait()


def _describe_page_address(home: Path, port: int) -> str:
    """An address that opens the pages is printed where somebody reads it, and into no log."""
    if not sys.stderr.isatty():
        return "parlay dashboard --page prints an address"
    return f"{page_address(home, port, time.time())} (it opens once, within ten minutes; --page prints another)"


def tunnel_command(port: int) -> str:
    """The command that makes a port of this machine's loopback one of the user's own."""
    return f"ssh -N -L {port}:{_LOOPBACK}:{port} {getpass.getuser()}@{_host()}"


def _host() -> str:
    """This machine's name; the full one unless that is only what it calls its own loopback."""
    name = socket.getfqdn()
    return socket.gethostname() if "localhost" in name else name


def answers(port: int, token: str) -> bool:
    """Whether MLflow answers there. Whoever took the port before our server could is not shown the token."""
    if not is_own_listener(port):
        return False
    try:
        asked = urllib.request.Request(
            f"http://{_LOOPBACK}:{port}/health", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(asked, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
