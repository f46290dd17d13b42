"""Loop of a fork server: takes requests from stubs, forks ranks, and reports how they ended. One thread.

Every connection is a stub, and with it a rank: when a stub's connection ends, its rank is killed with its session; when
a rank has ended, what it left behind is killed before its stub is told.
"""

from __future__ import annotations

import array
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from search_spaces.decoding import parse_json
from trials.fork_server.child import become_rank
from trials.fork_server.equality import Identity, Request, difference
from trials.fork_server.stub import FORWARDED, node_name, peer_of
from trials.ranks.kernel_oom import count_oom_kills

MAX_REQUEST_BYTES = 8 * 2**20
"""The kernel's limit on arguments and environment together is a quarter of the stack's, 2 MiB by default."""
_LENGTH = struct.Struct("!I")
_MOST_DESCRIPTORS = 4
_SESSION_ENDS_TIMEOUT_S = 1.0
_SESSION_POLL_S = 0.005


@dataclass
class _Stub:
    """A connection. `done` is the pipe of the stub's supervisor, closed once the rank and its session are gone.

    `oom_kills` is the kernel's count of its kills for memory before the rank began.
    """

    connection: socket.socket
    stub_pid: int
    received: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)
    done: int | None = None
    pid: int | None = None
    code: int | None = None
    clear_by: float | None = None
    is_gone: bool = False
    oom_kills: int = 0


class Server:
    """Server on a bound socket. `added` are the variables that Python's start added to this process's environment."""

    def __init__(self, listener: socket.socket, owner: int | None, idle_s: float | None):
        self._listener = listener
        self._owner = owner
        self._idle_s = idle_s
        self._selector = selectors.DefaultSelector()
        self._stubs: list[_Stub] = []
        self._wakeup: tuple[int, int] | None = None
        self._idle_since = time.monotonic()
        self._has_differed = False

    def refuse_all(self, reason: str) -> None:
        """Answer all that have connected so far."""
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                with suppress(OSError):
                    connection.sendall(f"refused {_one_line(reason)}\n".encode())
                connection.close()

    def serve(self, identity: Identity, added: dict[bytes, bytes]) -> None:
        """Serve until the owner closes its pipe, or nothing has run for `idle_s`; then end all ranks."""
        self._identity, self._added = identity, added
        self._wakeup = os.pipe()
        for descriptor in self._wakeup:
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, _note)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup[0], selectors.EVENT_READ, self._drain_wakeup)
        if self._owner is not None:
            self._selector.register(self._owner, selectors.EVENT_READ, self._hear_owner)
        self._is_ending = False
        while not self._is_ending:
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            for stub in list(self._stubs):
                self._look_after(stub)
            self._is_ending |= self._was_idle_too_long()
        self._kill_all()

    def _timeout_s(self) -> float | None:
        if any(stub.clear_by is not None for stub in self._stubs):
            return _SESSION_POLL_S
        if self._idle_s is None or self._stubs:
            return None
        return max(0.0, self._idle_since + self._idle_s - time.monotonic())

    def _was_idle_too_long(self) -> bool:
        if self._stubs:
            self._idle_since = time.monotonic()
        return self._idle_s is not None and time.monotonic() >= self._idle_since + self._idle_s

    def _hear_owner(self) -> None:
        self._is_ending = True  # the owner writes nothing: this is the end of its pipe

    def _drain_wakeup(self) -> None:
        assert self._wakeup is not None
        with suppress(BlockingIOError):
            self._is_ending |= signal.SIGTERM in os.read(self._wakeup[0], 4096)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        stub_pid, uid = peer_of(connection)
        if uid != os.geteuid():
            connection.close()
            return
        connection.setblocking(False)
        stub = _Stub(connection, stub_pid)
        self._stubs.append(stub)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(stub))

    def _read(self, stub: _Stub) -> None:
        try:
            data, ancillary, *_ = stub.connection.recvmsg(2**16, socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                stub.descriptors.extend(numbers)
        if not data:
            self._lose(stub)
            return
        stub.received += data
        if stub.pid is None:
            self._take(stub)
        else:
            self._forward(stub)

    def _take(self, stub: _Stub) -> None:
        """Fork the rank once its request is complete, or refuse it."""
        if len(stub.received) < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(stub.received)
        if length > MAX_REQUEST_BYTES:
            self._refuse(stub, f"a request of {length} bytes")
        elif len(stub.received) >= _LENGTH.size + length:
            body = bytes(stub.received[_LENGTH.size : _LENGTH.size + length])
            del stub.received[: _LENGTH.size + length]
            try:
                request = Request.from_json(parse_json(body))
                if not 3 <= len(stub.descriptors) <= _MOST_DESCRIPTORS:
                    raise ValueError(f"{len(stub.descriptors)} descriptors")
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._refuse(stub, f"it does not understand the request: {error!r:.200}")
                return
            why = difference(request, self._identity)
            if why is None:
                self._fork(stub, request)
            else:
                self._tell_difference(why)
                self._refuse(stub, why)

    def _tell_difference(self, why: str) -> None:
        """Tell the first one to whoever has started the server: others of its ranks will be refused for the same."""
        if not self._has_differed:
            self._has_differed = True
            tell(differs=_one_line(why), node=node_name())

    def _refuse(self, stub: _Stub, reason: str) -> None:
        with suppress(OSError):
            stub.connection.sendall(f"refused {_one_line(reason)}\n".encode())
        self._drop(stub)

    def _fork(self, stub: _Stub, request: Request) -> None:
        """Fork the rank. It begins once its stub was told, so that it never runs beside a plain start."""
        server_pid, ticks = os.getpid(), _start_ticks(stub.stub_pid)
        stub.oom_kills = count_oom_kills()
        go_read, go_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(go_read)
            os.close(go_write)
            self._refuse(stub, f"it cannot fork: {error.strerror}")
            return
        if pid == 0:
            self._run_child(stub, request, ticks, server_pid, go_read, go_write)
        os.close(go_read)
        stub.pid = pid
        self._close(stub.descriptors[:3])
        stub.done = stub.descriptors[3] if len(stub.descriptors) > 3 else None
        stub.descriptors = []
        if stub.done is not None:
            with suppress(OSError):
                os.write(stub.done, f"{pid} {_start_ticks(pid) or 0}\n".encode())
        try:
            stub.connection.sendall(b"started\n")
        except OSError:
            os.close(go_write)  # it ends without having begun
            self._lose(stub)
            return
        os.write(go_write, b"g")
        os.close(go_write)

    def _run_child(
        self, stub: _Stub, request: Request, ticks: int | None, server_pid: int, go_read: int, go_write: int
    ) -> NoReturn:
        try:
            os.close(go_write)
            rank_descriptors, supervisor = stub.descriptors[:3], stub.descriptors[3:]
            stub.descriptors = []
            self._close_own(supervisor)
            is_wanted = os.read(go_read, 1) == b"g"
            os.close(go_read)
        except BaseException:
            is_wanted = False
        if not is_wanted:
            os._exit(1)
        become_rank(request, rank_descriptors, ticks, server_pid, self._added)

    def _close_own(self, others: list[int]) -> None:
        """Close the server's descriptors in a child: a rank that held them would keep peers from seeing an end."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._listener.close()
        own = [*others, *(self._wakeup or ()), *([] if self._owner is None else [self._owner])]
        for stub in self._stubs:
            stub.connection.close()
            own += [*stub.descriptors, *([] if stub.done is None else [stub.done])]
        self._close([descriptor for descriptor in own if descriptor > 2])

    def _forward(self, stub: _Stub) -> None:
        """Send the rank's group the signals that its stub was sent."""
        *lines, rest = bytes(stub.received).split(b"\n")
        stub.received = bytearray(rest[-16:])
        for line in lines:
            if line.isdigit() and int(line) in FORWARDED and stub.code is None and stub.pid is not None:
                _signal_group(stub.pid, int(line))

    def _lose(self, stub: _Stub) -> None:
        """End the rank of a stub that is gone."""
        stub.is_gone = True
        self._selector.unregister(stub.connection)
        stub.connection.close()
        if stub.pid is None:
            self._forget(stub)
        elif stub.code is None:
            _kill_session(stub.pid)

    def _look_after(self, stub: _Stub) -> None:
        """Reap a rank that has ended, and tell its stub once nothing of it is left."""
        if stub.pid is None or stub not in self._stubs:
            return
        if stub.code is None:
            ended = os.waitid(os.P_PID, stub.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            _kill_session(stub.pid)  # before it is reaped: until then its number is not given again
            os.waitpid(stub.pid, 0)
            stub.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            stub.clear_by = time.monotonic() + _SESSION_ENDS_TIMEOUT_S
            if stub.code == -signal.SIGKILL and count_oom_kills() > stub.oom_kills:
                tell(oom_kill=1, node=node_name())
        if stub.clear_by is None or (_has_group(stub.pid) and time.monotonic() < stub.clear_by):
            return
        if not stub.is_gone:
            with suppress(OSError):
                stub.connection.sendall(f"{stub.code}\n".encode())
        self._drop(stub)

    def _drop(self, stub: _Stub) -> None:
        if not stub.is_gone:
            self._selector.unregister(stub.connection)
            stub.connection.close()
        self._forget(stub)

    def _forget(self, stub: _Stub) -> None:
        self._close([*stub.descriptors, *([] if stub.done is None else [stub.done])])
        stub.descriptors, stub.done = [], None
        self._stubs.remove(stub)

    def _kill_all(self) -> None:
        """End all ranks, and wait for them: their stubs die when this process does."""
        for stub in self._stubs:
            if stub.pid is not None and stub.code is None:
                _kill_session(stub.pid)
        for stub in self._stubs:
            if stub.pid is not None and stub.code is None:
                with suppress(ChildProcessError):
                    os.waitpid(stub.pid, 0)

    @staticmethod
    def _close(descriptors: list[int]) -> None:
        for descriptor in descriptors:
            with suppress(OSError):
                os.close(descriptor)


def leave_signals_to_ranks() -> None:
    """Survive what is sent to all steps of a job, also during the imports; SIGTERM still ends this process."""
    for number in FORWARDED:
        if number != signal.SIGTERM:
            signal.signal(number, _note)


def tell(**words: Any) -> None:
    """Print a line of JSON, at once, for whoever has started the server."""
    with suppress(OSError):
        os.write(1, f"{json.dumps(words)}\n".encode())  # whole: srun merges what servers of several nodes write


def _note(number: int, frame: object) -> None:
    """A handler, without which the kernel would not report the signal."""


def _one_line(text: str) -> str:
    return " ".join(text.split())[:1000]


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _has_group(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kill_session(pid: int) -> None:
    """Kill the rank's process group, and the others of its session. A child that has not begun is in none."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    if os.getpgrp() != pid:
        _signal_group(pid, signal.SIGKILL)
    for member in _session_members(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(member, signal.SIGKILL)


def _session_members(session: int) -> Iterator[int]:
    """Processes of this session, by proc(5): stat has state, parent, group and session after the command's name."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if len(fields) > 3 and int(fields[3]) == session and fields[0] not in "ZX":
                yield int(entry.name)


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
