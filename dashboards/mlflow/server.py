"""MLflow server on loopback for `parlay dashboard`; it lives as long as the command."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from dashboards.access.browser_sessions import entry_address
from dashboards.access.mlflow_token import PORT_VARIABLE, TOKEN_VARIABLE, MlflowTokenFile, served_token
from dashboards.access.ports import is_own_listener, reserve_port
from dashboards.mlflow.backend_store import MARK, MARK_VALUE, require_usable_store
from dashboards.mlflow.links import searches_link
from dashboards.schema import require_tracking_uri
from trials.files.text import plural, tail

_LOOPBACK = "127.0.0.1"
_FRONT = "dashboards.mlflow.front:MlflowProtocol"
_START_S = 300.0
"""Time limit of the start: from a cold shared disk MLflow takes a minute to load. An exit is noticed at once."""
_LOG_LINES = 15
_MAX_EXPERIMENTS = 1000
_MOST_LINKS = 10
_POLL_S = 0.2

# Leads a session with the server in it, and kills the session when the server exits or when its standard input, a pipe
# from us, closes, which also happens when we are killed.
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
    """MLflow's server exited or did not answer; the message has the end of its log."""


class MlflowServer:
    """MLflow server for the store at `uri`, reachable from this machine only. A context manager.

    Requests need the token of a 0600 file in `home`, Parlay's home directory, which also has the log; browsers sign in
    by a single-use address. `port` None takes a free port.
    """

    def __init__(self, uri: str, home: Path, port: int | None = None):
        self._uri = uri
        self._home = home
        self._reserved: socket.socket | None = None
        self.port = port or 0
        self._log = home / "dashboard.log"
        self.token = MlflowTokenFile(home)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}"

    def __enter__(self) -> MlflowServer:
        """Start the server and wait until it answers; ServerFailed if it does not."""
        if not self.port:
            self._reserved = reserve_port()
            self.port = self._reserved.getsockname()[1]
        try:
            self.token.write(self.port)
            self._process = self._start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.stop()

    def wait(self) -> None:
        """Wait until the server exits or the user interrupts."""
        # Polls, since a signal just before a blocking wait would be handled only after it.
        while self._process is not None and self._process.poll() is None:
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the server and all its processes; return when they have exited."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self.token.remove()
        if self._reserved is not None:
            self._reserved.close()

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
        """Options that make uvicorn use our protocol for every connection.

        Web sockets would bypass it. Access logs are off, so that unauthorised requests cannot fill the log.
        """
        options = f"--http {_FRONT} --ws none --backlog 128 --no-access-log --log-level error"
        return ["--uvicorn-opts", options]

    def _environment(self) -> dict[str, str]:
        """Environment of the server, with the store's address, which may have a password, in place of an argument.

        Without MLflow's job execution the server has two processes with 0.5 GB instead of ten with 1 GB.
        """
        return {
            **os.environ,
            "MLFLOW_BACKEND_STORE_URI": self._uri,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            PORT_VARIABLE: str(self.port),
            TOKEN_VARIABLE: self.token.text,
        }

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _START_S
        while not is_answering(self.port, self.token.text):
            if self._process is None or self._process.poll() is not None or time.monotonic() > until:
                words = tail(self._log, _LOG_LINES)
                raise ServerFailed(f"MLflow's server failed to start; the end of {self._log}:\n{words}")
            time.sleep(_POLL_S)


def show_dashboard(uri: str, home: Path, say: Callable[[str], None], port: int | None = None) -> None:
    """Print the address of the recorded runs, and serve them until interrupted, unless the store has a server.

    Raises InputError for an address that MLflow cannot use, and ServerFailed.
    """
    require_usable_store(require_tracking_uri(uri))
    if uri.startswith(("http:", "https:", "databricks")):
        say(f"MLflow: {uri}")
        return
    with MlflowServer(uri, home, port) as server:
        say(f"MLflow: {server.address} (Ctrl-C stops it)")
        say(f"tunnel from another machine: {tunnel_command(server.port)}")
        say(f"for a browser: {_describe_page_address(home, server.port)}")
        for line in _links(server.address, experiments_with_searches(server.port, server.token.text)):
            say(line)
        say(f"for a program: MLFLOW_TRACKING_TOKEN=$(cat {server.token.path})")
        server.wait()


def page_address(home: Path, port: int | None, now: float) -> str:
    """Sign-in address of the pages on `port`, else of those started last. It lands on the newest experiment's searches.

    Raises ExternalError without a running dashboard.
    """
    port, token = served_token(home, port)
    newest = experiments_with_searches(port, token)[:1]
    return entry_address(port, token, now) + "".join(f"&experiment={experiment}" for _, experiment in newest)


def experiments_with_searches(port: int, token: str) -> list[tuple[str, str]]:
    """Name and number of each experiment with searches, the newest first; none where MLflow does not tell, since they
    are only for links."""
    wanted = json.dumps({"max_results": _MAX_EXPERIMENTS, "filter": f"tags.`{MARK}` = '{MARK_VALUE}'"}).encode()
    try:
        with _ask(port, token, "/api/2.0/mlflow/experiments/search", wanted, timeout_s=30) as reply:
            experiments = json.load(reply).get("experiments", [])
    except (OSError, ValueError):
        return []
    return [(found["name"], found["experiment_id"]) for found in experiments]


def _ask(port: int, token: str, path: str, body: bytes | None = None, timeout_s: float = 5) -> Any:
    """Reply of the server on this port."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(f"http://{_LOOPBACK}:{port}{path}", body, headers)
    return urllib.request.urlopen(asked, timeout=timeout_s)


def _links(address: str, experiments: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Links to the searches of the first experiments, and how many there are more."""
    for name, experiment in experiments[:_MOST_LINKS]:
        yield f"searches of {name}, once signed in: {address}/{searches_link(experiment)}"
    if (more := len(experiments) - _MOST_LINKS) > 0:
        yield f"{plural(more, 'older experiment')} with searches: MLflow's first page lists them"


def _describe_page_address(home: Path, port: int) -> str:
    """Sign-in address for a terminal; never printed into a log."""
    if not sys.stderr.isatty():
        return "parlay dashboard --page prints an address"
    return f"{page_address(home, port, time.time())} (valid once, within ten minutes; --page prints another)"


def tunnel_command(port: int) -> str:
    """Command that forwards a loopback port of this machine to the user's machine."""
    return f"ssh -N -L {port}:{_LOOPBACK}:{port} {getpass.getuser()}@{_host()}"


def _host() -> str:
    """Full name of this machine, or its short one where the full one is that of the loopback."""
    name = socket.getfqdn()
    return socket.gethostname() if "localhost" in name else name


def is_answering(port: int, token: str) -> bool:
    """True if our server answers on the port. The token is sent only to a listener of this user."""
    if not is_own_listener(port):
        return False
    try:
        with _ask(port, token, "/health") as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False
