"""Stub of a rank that is forked by the node's fork server: `PYTHON -I -S stub.py SOCKET ARGV...` in place of ARGV.

SOCKET `-` is that of this node in the folder that PARLAY_FORK_SERVERS names; without it the stub becomes ARGV.
It hands over all that the rank would have inherited, forwards signals, and ends as the rank ends. What supervises a
rank (its launcher, Slurm) supervises the stub: the server kills a rank whose stub has died, and a stub whose server has
died kills itself. Without a server that takes the rank, the stub becomes the rank by execvpe, with a line that says
why. One file of the standard library, which imports nothing of ours: it runs without a search path.
"""

from __future__ import annotations

import array
import glob
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

DONE_VARIABLE = "PARLAY_DONE_DESCRIPTOR"
"""Environment variable: number of the pipe in which the server names the rank's process, and which it closes once that
process and its session are gone. Set by a supervisor that has to know; a rank does not inherit it."""
FOLDER_VARIABLE = "PARLAY_FORK_SERVERS"
"""Environment variable: folder of the sockets of one fork server per node, of this user alone."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
PATIENCE_S = 300.0
"""Longest wait for the server's answer: until it has imported torch, from a slow file system."""
NAMESPACES = ("mnt", "pid", "net", "ipc", "user", "uts")
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*")
LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))

_LENGTH = struct.Struct("!I")


class NoServer(Exception):
    """The rank was not forked; the message is the reason."""


def main(socket_path: str | None, argv: list[str]) -> NoReturn:
    """Have ARGV forked and end as it ends, or become it."""
    done = os.environ.pop(DONE_VARIABLE, None)
    descriptors = [0, 1, 2, *([] if done is None else [int(done)])]
    for descriptor in descriptors[3:]:
        os.set_inheritable(descriptor, False)
    ignored = [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    signals, before = _catch_signals()
    if socket_path is None:
        _become(argv, signals, before)
    try:
        connection = _hand_over(socket_path, describe(argv, ignored), descriptors, signals)
    except (NoServer, OSError) as error:
        print(f"parlay: this rank starts without a fork server: {error}", file=sys.stderr, flush=True)
        _become(argv, signals, before)
    for descriptor in descriptors[3:]:
        os.close(descriptor)
    for number in FORWARDED:  # also ignored ones, for which the rank may have set a handler
        signal.signal(number, _note)
    _end_as(_follow(connection, signals))


def socket_of_this_node(folder: str) -> str:
    """Path of the socket of this node's server."""
    return os.path.join(folder, f"{node_name()}.socket")


def node_name() -> str:
    """Slurm's name of this node, else the host's: several nodes of Slurm may share a host."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A path that fits into a socket's address, whatever its folder."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def describe(argv: list[str], ignored: list[int]) -> dict[str, Any]:
    """All that a child of this process would inherit, but for descriptors."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        "argv": [bytes_text(os.fsencode(word)) for word in argv],
        "directory": bytes_text(os.getcwdb()),
        "environment": {bytes_text(name): bytes_text(value) for name, value in os.environb.items()},
        "umask": umask,
        "affinity": sorted(os.sched_getaffinity(0)),
        "ignored": sorted(ignored),
        "blocked": sorted(int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        **surroundings(),
    }


def surroundings() -> dict[str, Any]:
    """Traits that a process inherits from its node and container, and that a fork of another process lacks."""
    root = os.stat("/")
    return {
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in LIMITS},
        "namespaces": {name: _link(f"/proc/self/ns/{name}") for name in NAMESPACES},
        "root": [root.st_dev, root.st_ino],
        "user": [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "devices": accessible_devices(),
    }


def accessible_devices() -> list[str]:
    """Device files of accelerators that this process may open: a step's control group may hide some."""
    found = (path for pattern in DEVICE_FILES for path in glob.glob(pattern))
    return sorted(path for path in found if os.access(path, os.R_OK | os.W_OK))


def bytes_text(value: bytes) -> str:
    """These bytes as text of JSON, whatever they are an encoding of."""
    return value.decode("latin-1")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the other side, by the kernel."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def framed(request: dict[str, Any]) -> bytes:
    """The bytes of a request: their length, then JSON."""
    body = json.dumps(request).encode()
    return _LENGTH.pack(len(body)) + body


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _catch_signals() -> tuple[int, dict[int, Any]]:
    """Collect the signals that are forwarded in a pipe; return its end to read, and the handlers before."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    before = {int(number): signal.getsignal(number) for number in FORWARDED}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _note)
    return read_end, before


def _note(number: int, frame: object) -> None:
    """A handler, without which the kernel would not report the signal."""


def _hand_over(path: str, request: dict[str, Any], descriptors: list[int], signals: int) -> socket.socket:
    """Return the connection to a server that has forked the rank. Raises NoServer or OSError, and then it has not."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(path) as address:
        connection.connect(address)
    if peer_of(connection)[1] != os.geteuid():
        raise NoServer("another user's process listens in the place of the fork server")
    connection.settimeout(PATIENCE_S)
    data, rights = framed(request), array.array("i", descriptors).tobytes()
    try:
        sent = connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        while sent < len(data):
            sent += connection.send(data[sent:])
    except BrokenPipeError:
        pass  # refused before it was sent: the answer says why
    connection.settimeout(None)
    word, _, rest = _answer(connection, signals).partition(" ")
    if word != "started":
        raise NoServer(rest or "the fork server ended before it had forked it")
    return connection


def _answer(connection: socket.socket, signals: int) -> str:
    """The server's first line; empty when it ends without one. NoServer after too long, or for a signal to die of."""
    line = b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([connection.fileno(), signals], [], [], PATIENCE_S)
        if not ready:
            raise NoServer(f"the fork server did not answer within {PATIENCE_S:.0f} s")
        if connection.fileno() not in ready:
            raise NoServer("a signal came first")
        part = connection.recv(1)
        if not part:
            return ""
        line += part
    return line.decode(errors="replace").strip()


def _become(argv: list[str], signals: int, before: dict[int, Any]) -> NoReturn:
    """Replace this process by ARGV, with the signals that came meanwhile."""
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        # Python's own handler of SIGINT is the kernel's default for what is executed.
        signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
    for number in _came(signals):
        os.kill(os.getpid(), number)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and ignored ones survive execve
        signal.signal(number, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        print(f"parlay: {argv[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def _came(signals: int) -> list[int]:
    try:
        return list(os.read(signals, 512))
    except BlockingIOError:
        return []


def _follow(connection: socket.socket, signals: int) -> int:
    """Forward signals until the rank has ended; its exit status, minus the number of a signal that killed it."""
    heard = b""
    while b"\n" not in heard:
        ready, _, _ = select.select([connection.fileno(), signals], [], [])
        if signals in ready:
            numbers = "".join(f"{number}\n" for number in _came(signals) if number in FORWARDED)
            try:
                connection.sendall(numbers.encode())
            except OSError:
                _end_as(-signal.SIGKILL)
        if connection.fileno() in ready:
            try:
                part = connection.recv(64)
            except OSError:
                part = b""
            if not part:
                _end_as(-signal.SIGKILL)  # the server is gone, and with it the rank
            heard += part
    return int(heard)


def _end_as(code: int) -> NoReturn:
    if code >= 0:
        os._exit(code)
    number = -code
    _leave_no_core()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # for a signal that does not end a process by default


def _leave_no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: a program that is piped cores heeds no limit
    except (ImportError, AttributeError, OSError):
        return


def _named(word: str) -> str | None:
    if word != "-":
        return word
    folder = os.environ.get(FOLDER_VARIABLE)
    return socket_of_this_node(folder) if folder else None


if __name__ == "__main__":
    main(_named(sys.argv[1]), sys.argv[2:])
