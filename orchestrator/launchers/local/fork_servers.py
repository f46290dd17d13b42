"""Fork servers of a node and their stubs, for ranks that start in a tenth of a second (trials/fork_server).

Standard library only and independent of other modules of Parlay but processes: pickled by value to the nodes of a Ray
cluster, as processes is. Linux only.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.launchers.local.processes import GroupPlan, rank_environment

MOST_SERVERS = 2
"""Servers of an owner: a search has an engine or two."""
MOST_DEATHS = 2
"""Deaths of a server, as by the kernel for memory, after which its ranks start plain."""
PRELOAD_VARIABLE = "PARLAY_PRELOAD"  # of trials/fork_server/equality.py
_STUB = Path("trials", "fork_server", "stub.py")
_MODULE = "trials.fork_server"
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServerKind:
    """All in which ranks of one server are alike, as far as their plan shows. The server itself compares the rest."""

    python: str
    code: str
    preload: str
    settings: tuple[tuple[str, str | None], ...] = ()

    @property
    def stub(self) -> Path:
        return Path(self.code) / _STUB


def kind_of(plan: GroupPlan) -> ServerKind | None:
    """The server that may fork this plan's ranks; None where they have to be started plain.

    The code of an older search has no stub.
    """
    preload, code = plan.environment.get(PRELOAD_VARIABLE), plan.environment.get("PYTHONPATH")
    if not preload or not code:
        return None
    kind = ServerKind(plan.argv[0], code, preload, tuple(sorted(plan.settings.items())))
    return kind if kind.stub.is_file() else None


class ForkServer:
    """A server of one kind, owned by this process: it ends with it, and with `close`.

    A thread of its own starts it: the kernel ends it with that thread. `refused` is the reason why it cannot fork, once
    it has said so.
    """

    def __init__(self, kind: ServerKind, environment: Mapping[str, str], socket_path: Path):
        self.kind = kind
        self.socket_path = socket_path
        self.refused: str | None = None
        self._environment = environment
        self._listener = _listen(socket_path)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="fork server", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        """End it with the ranks that it still has."""
        self._is_closed = True
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        self._thread.join(_END_TIMEOUT_S)
        if process is not None and process.poll() is None:
            process.kill()
            self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        number = self._listener.fileno()
        arguments = ["--listener", str(number), "--preload", self.kind.preload, "--parent", str(os.getpid())]
        try:
            with self._listener, open(self.socket_path.with_suffix(".log"), "ab") as log:
                self._process = subprocess.Popen(
                    [self.kind.python, "-m", _MODULE, *arguments],
                    cwd=self.socket_path.parent,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(number,),
                )
            self._hear(self._process)
        except OSError as error:
            self.refused = str(error)

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if reason := _answer(line).get("refused"):
                self.refused = str(reason)
        code = process.wait()
        if code > 0 and self.refused is None and not self._is_closed:
            self.refused = (
                f"the fork server exited with code {code}: {_last_line(self.socket_path.with_suffix('.log'))}"
            )


class ForkServers:
    """The servers of one owner, which start when a plan first needs them. Used by one thread.

    `make_folder` makes the private folder (0700) of their sockets. `on_refused` is told once per kind why its ranks
    start plain. `node_environment` is this process's own unless given, as that of the ranks.
    """

    def __init__(
        self,
        make_folder: Callable[[], Path],
        on_refused: Callable[[str], None],
        node_environment: Mapping[str, str] | None = None,
    ):
        self._node_environment = os.environ if node_environment is None else node_environment
        self._make_folder = make_folder
        self._on_refused = on_refused
        self._folder: Path | None = None
        self._servers: list[ForkServer] = []
        self._busy: dict[str, ServerKind] = {}
        self._deaths: dict[ServerKind, int] = {}
        self._refused: set[ServerKind] = set()
        self._count = 0

    def stub_for(self, name: str, plan: GroupPlan) -> tuple[str, ...]:
        """The stub of a server of the plan's kind; empty where its ranks have to be started plain.

        Until `release`, the server of `name` is kept.
        """
        kind = kind_of(plan)
        server = None if kind is None else self._server(kind, plan)
        if kind is None or server is None:
            return ()
        self._busy[name] = kind
        return stub_command(kind, server.socket_path)

    def release(self, name: str) -> None:
        """Note that the ranks of this plan have ended."""
        self._busy.pop(name, None)

    def note_ended(self) -> None:
        """Note servers that have ended or cannot be forked, and tell why."""
        for server in [server for server in self._servers if server.has_ended or server.refused is not None]:
            if server.refused is None:
                self._deaths[server.kind] = self._deaths.get(server.kind, 0) + 1
            else:
                self._refused.add(server.kind)
                self._on_refused(server.refused)
            self._servers.remove(server)
            server.close()

    def close(self) -> None:
        """End all servers."""
        self.note_ended()
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _server(self, kind: ServerKind, plan: GroupPlan) -> ForkServer | None:
        self.note_ended()
        if kind in self._refused or self._deaths.get(kind, 0) >= MOST_DEATHS:
            return None
        server = next((server for server in self._servers if server.kind == kind), None)
        if server is None and self._make_room():
            server = self._start(kind, plan)
        return server

    def _make_room(self) -> bool:
        """End the oldest idle server where there are as many as may be; False where none is idle."""
        if len(self._servers) < MOST_SERVERS:
            return True
        idle = [server for server in self._servers if server.kind not in self._busy.values()]
        for server in idle[:1]:  # in the order of their start
            self._servers.remove(server)
            server.close()
        return bool(idle)

    def _start(self, kind: ServerKind, plan: GroupPlan) -> ForkServer | None:
        self._count += 1
        try:
            if self._folder is None:
                self._folder = self._make_folder()
            environment = rank_environment(self._node_environment, plan)
            server = ForkServer(kind, environment, self._folder / f"{self._count}.socket")
        except OSError as error:
            self._refused.add(kind)
            self._on_refused(str(error))
            return None
        self._servers.append(server)
        return server


def _listen(path: Path) -> socket.socket:
    """Listen for stubs before the server has started. The folder is private."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def stub_command(kind: ServerKind, socket_path: Path) -> tuple[str, ...]:
    """The command before a rank's own: the stub, by the interpreter that starts the ranks here."""
    return sys.executable, "-I", "-S", str(kind.stub), str(socket_path)


def _answer(line: bytes) -> Mapping[str, object]:
    try:
        answer = json.loads(line)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _last_line(log: Path) -> str:
    try:
        lines = log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
