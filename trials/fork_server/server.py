"""Loop of a fork server: takes requests from stubs, forks ranks, and reports how they ended. One thread.

Every connection is a stub, and with it a rank: when a stub's connection ends, its rank is killed; when a rank has
ended, what it left behind is killed before its stub is told. The kernel kills all ranks with the server.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from search_spaces.decoding import parse_json
from trials.fork_server.child import become_rank
from trials.fork_server.equality import difference
from trials.fork_server.stub import KILLED_FOR_MEMORY, in_step, peer_of, state_of
from trials.ranks.kernel_oom import count_oom_kills

MAX_REQUEST_BYTES = 8 * 2**20
"""The kernel's limit on arguments and environment together is a quarter of the stack's, 2 MiB by default."""
_REQUEST_TIMEOUT_S = 5.0
_SESSION_ENDS_TIMEOUT_S = 1.0
_POLL_S = 0.05


class Forked(Exception):
    """Ends the server's loop in a forked process, which is a rank now."""


class Server:
    """Server of ranks that equal `description`, this process before its imports.

    It listens on construction: `name` is the socket's, in the working directory. OSError where it cannot.
    """

    def __init__(self, name: str, preload: str, description: Mapping[str, Any]):
        self._name = name
        self._preload = preload
        self._description = description
        self._stubs: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._refused: str | None = None
        self._oom_kills = count_oom_kills()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(FileNotFoundError):
            os.unlink(name)  # of a server before
        self._listener.bind(name)
        self._listener.listen(1024)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> str:
        """Serve until a rank differs and no other runs; return in what. Raises Forked in each rank."""
        while self._refused is None or self._stubs:
            for key, _ in self._selector.select(_POLL_S if self._stubs else None):
                key.data()
            for pid in list(self._stubs):
                self._tend(pid)
        return self._refused

    def _accept(self) -> None:
        """Fork a rank for the stub that has connected, or refuse it. Raises Forked."""
        try:
            stub, _ = self._listener.accept()
            stub_pid, uid = peer_of(stub)
        except OSError:  # it is gone, or this process has too many descriptors
            return
        stub.settimeout(_REQUEST_TIMEOUT_S)
        descriptors: list[int] = []
        try:
            if uid != os.geteuid():
                raise ValueError("it is another user's")
            request = _receive(stub, descriptors)
            if (refused := difference(request, self._description, self._preload)) is not None:
                self._give_up(refused)
            else:
                self._fork(stub, stub_pid, request, descriptors)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            refused = f"it cannot serve the request: {error!r:.200}"
        for descriptor in descriptors:
            os.close(descriptor)
        if refused is not None:
            with suppress(OSError):
                stub.sendall(f"refused {' '.join(refused.split()):.1000}\n".encode())
            stub.close()

    def _give_up(self, reason: str) -> None:
        """Take no more ranks: others will differ in the same. Those that run are kept."""
        if self._refused is None:
            self._refused = reason
            os.unlink(self._name)

    def _fork(self, stub: socket.socket, stub_pid: int, request: Mapping[str, Any], descriptors: list[int]) -> None:
        server_pid, launched = os.getpid(), state_of(stub_pid)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid > 0:
            self._stubs[pid] = stub
            self._selector.register(stub, selectors.EVENT_READ, lambda: self._lose_stub(pid))
            return
        for key in list(self._selector.get_map().values()):  # a rank that held them would keep peers from seeing an end
            os.close(key.fd)
        self._selector.close()
        try:
            become_rank(request, stub, descriptors, launched[19] if launched else None, server_pid)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        raise Forked

    def _lose_stub(self, pid: int) -> None:
        """End the rank of a stub that is gone: stubs send nothing."""
        self._selector.unregister(self._stubs[pid])
        self._stubs[pid].close()
        _kill_session(pid)

    def _tend(self, pid: int) -> None:
        """Take a rank that has ended, and tell its stub once nothing of its session is left."""
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        deadline = time.monotonic() + _SESSION_ENDS_TIMEOUT_S
        while _kill_session(pid) and time.monotonic() < deadline:
            time.sleep(0.005)
        os.waitpid(pid, 0)  # from here on its number may be given again
        stub = self._stubs.pop(pid)
        if stub.fileno() >= 0:
            self._selector.unregister(stub)
            with suppress(OSError):
                stub.sendall(f"{self._exit_status(ended)}\n".encode())
            stub.close()

    def _exit_status(self, ended: os.waitid_result) -> int:
        """Exit status of a rank, minus the number of a signal that killed it.

        In a step of Slurm an exit code tells a kill for memory, which is one of this process's control group.
        """
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status
        before, self._oom_kills = self._oom_kills, count_oom_kills()
        is_for_memory = ended.si_status == signal.SIGKILL and in_step() and self._oom_kills > before
        return KILLED_FOR_MEMORY if is_for_memory else -ended.si_status


def _receive(stub: socket.socket, descriptors: list[int]) -> Any:
    """Read a request: a byte with the rank's descriptors, which are added, then a line of JSON.

    Raises OSError, ValueError.
    """
    descriptors.extend(socket.recv_fds(stub, 1, 4)[1])
    if len(descriptors) < 3:
        raise ValueError(f"{len(descriptors)} descriptors")
    with stub.makefile("rb") as lines:
        return parse_json(lines.readline(MAX_REQUEST_BYTES))


def _kill_session(pid: int) -> bool:
    """Kill the rank and all processes of its session; True if any was alive. A child that has not begun has none."""
    states = {int(name): state_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    alive = [each for each, fields in states.items() if fields and fields[0] not in "ZX"]
    of_rank = [each for each in alive if each == pid or states[each][3] == str(pid)]
    for each in of_rank:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(each, signal.SIGKILL)
    return bool(of_rank)
