"""Stub of a rank that is forked by the node's fork server: `PYTHON -I -S stub.py FOLDER ARGV...` in place of ARGV.

FOLDER has the socket of each node's server; `-` is the one that PARLAY_FORK_SERVERS names. The stub hands over all that
the rank would have inherited, forwards signals, and ends as the rank ends. So what supervises a rank (its launcher,
Slurm) supervises the stub: the server kills a rank whose stub has died, and a stub whose server has died kills itself.
Without a server that takes the rank, the stub becomes the rank by execvpe, with a line that says why. One file of the
standard library, which imports nothing of ours: it runs without a search path.
"""

from __future__ import annotations

import glob
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

DONE_VARIABLE = "PARLAY_DONE_DESCRIPTOR"
"""Environment variable: number of the pipe in which the server names the rank's process before it begins."""
FOLDER_VARIABLE = "PARLAY_FORK_SERVERS"
"""Environment variable: folder of the sockets of one fork server per node, of this user alone."""
KILLED_FOR_MEMORY = 76
"""Exit code of a stub in a step of Slurm whose rank or server the kernel killed for memory: Slurm accounts both to the
step of the servers."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
PATIENCE_S = 10.0
"""Longest silence of a server that has a rank to fork, or whose rank has ended. One that is silent for longer hangs."""
MESSAGE_S = 2.0
"""Longest time from the end of a server to the message of slurmstepd that says why."""
NAMESPACES = ("mnt", "pid", "net", "ipc", "user", "uts")
DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*")
LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_")))


class NoServer(Exception):
    """The rank was not forked; the message is the reason."""


def main(folder: str | None, argv: list[str]) -> NoReturn:
    """Have ARGV forked and end as it ends, or become it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    done = os.environ.pop(DONE_VARIABLE, None)
    descriptors = [0, 1, 2, *([] if done is None else [int(done)])]
    if done is not None:
        os.set_inheritable(int(done), False)  # a plain rank has none
    if folder is None:
        _become(argv, blocked)
    path = socket_of_this_node(folder)
    try:
        connection, pid = _hand_over(path, describe(argv, blocked), descriptors)
    except (NoServer, OSError) as error:
        print(f"parlay: this rank starts without a fork server: {error}", file=sys.stderr, flush=True)
        _become(argv, blocked)
    for descriptor in descriptors[3:]:
        os.close(descriptor)
    for number in FORWARDED:  # also ignored ones, for which the rank may have set a handler
        signal.signal(number, lambda number, _: _signal_group(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    _end_as(_follow(connection, pid, path))


def socket_of_this_node(folder: str) -> str:
    """Path of the socket of this node's server."""
    return os.path.join(folder, f"{node_name()}.socket")


def node_name() -> str:
    """Slurm's name of this node, else the host's: several nodes of Slurm may share a host."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def describe(argv: list[str], blocked: set[Any]) -> dict[str, Any]:
    """All that a child of this process would inherit, but for descriptors; text of the operating system as latin-1."""
    umask = os.umask(0o077)
    os.umask(umask)
    root = os.stat("/")
    return {
        "argv": [_text(os.fsencode(word)) for word in argv],
        "directory": _text(os.getcwdb()),
        "environment": {_text(name): _text(value) for name, value in os.environb.items()},
        "umask": umask,
        "affinity": sorted(os.sched_getaffinity(0)),
        "ignored": [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": [int(number) for number in blocked],
        "limits": {name: list(resource.getrlimit(getattr(resource, name))) for name in LIMITS},
        "namespaces": {name: _link(f"/proc/self/ns/{name}") for name in NAMESPACES},
        "root": [root.st_dev, root.st_ino],
        "user": [*os.getresuid(), *os.getresgid(), *sorted(os.getgroups())],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "devices": _accessible_devices(),
    }


def _accessible_devices() -> list[str]:
    """Device files of accelerators that this process may open: a step's control group may hide some."""
    found = (path for pattern in DEVICE_FILES for path in glob.glob(pattern))
    return sorted(path for path in found if os.access(path, os.R_OK | os.W_OK))


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process id and the user id of the other side, by the kernel."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def state_of(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command's name: state, parent, ..., exit status; none without the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _hand_over(path: str, request: dict[str, Any], descriptors: list[int]) -> tuple[socket.socket, int]:
    """Return the connection to a server that has forked the rank, and the rank's pid.

    Raises NoServer or OSError, and then it has not. Removes the socket of a server that is dead or hangs: others need
    not wait for it.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        with _short_path(path) as address:
            connection.connect(address)
        if peer_of(connection)[1] != os.geteuid():
            raise NoServer("another user's process listens in the place of the fork server")
        with suppress(BrokenPipeError):  # refused before it was sent: the answer says why
            socket.send_fds(connection, [b"\n"], descriptors)
            connection.sendall(json.dumps(request).encode() + b"\n")
        word, _, rest = _line(connection).partition(" ")
    except (TimeoutError, ConnectionRefusedError) as error:
        _remove(path)
        raise NoServer(f"the fork server does not answer: {error}") from None
    except FileNotFoundError:
        raise NoServer("none serves on this node, or it still imports") from None
    if word != "started":
        raise NoServer(rest or "the fork server ended before it had forked it")
    return connection, int(rest)


@contextmanager
def _short_path(path: str) -> Iterator[str]:
    """A path that fits into a socket's address, whatever its folder."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _become(argv: list[str], blocked: set[Any]) -> NoReturn:
    """Replace this process by ARGV; signals that came meanwhile have the effect they would have had on it."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and ignored ones survive execve
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        os.execvpe(argv[0], argv, os.environ)
    except OSError as error:
        print(f"parlay: {argv[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


def _follow(connection: socket.socket, pid: int, path: str) -> int:
    """Wait for the rank's end; return its exit status, minus the number of a signal that killed it.

    Of a server that hangs it is read from the rank's own entry, which stays until the server takes it.
    """
    had_ended = False
    while True:
        try:
            if code := _line(connection):
                return int(code)
            break
        except TimeoutError:
            state = state_of(pid)
            if had_ended and state:
                _remove(path)
                _signal_group(pid, signal.SIGKILL)
                return os.waitstatus_to_exitcode(int(state[-1]))
            had_ended = bool(state) and state[0] in "ZX"
        except OSError:
            break
    _remove(path)  # the server is gone, and with it the rank
    return KILLED_FOR_MEMORY if in_step() and _tells_kill_for_memory(os.path.dirname(path)) else -signal.SIGKILL


def in_step() -> bool:
    """True in a step of Slurm, which does not account a kill of the servers' step to the ranks' own."""
    return "SLURM_STEP_ID" in os.environ


def _tells_kill_for_memory(folder: str) -> bool:
    """Wait a little for slurmstepd's message of a kill for memory in the log of the servers' step."""
    deadline = time.monotonic() + MESSAGE_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            if re.search(rb"oom.kill", Path(folder, "servers.log").read_bytes()):
                return True
        time.sleep(0.1)
    return False


def _line(connection: socket.socket) -> str:
    """The next line of the server; empty where it has closed the connection."""
    line = b""
    while not line.endswith(b"\n"):
        if not (part := connection.recv(1)):
            return ""
        line += part
    return line.decode(errors="replace").strip()


def _end_as(code: int) -> NoReturn:
    if code >= 0:
        os._exit(code)
    with suppress(ImportError, AttributeError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: the rank has left its core
    if code not in (-signal.SIGKILL, -signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # for a signal that does not end a process by default


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


if __name__ == "__main__":
    main(os.environ.get(FOLDER_VARIABLE) if sys.argv[1] == "-" else sys.argv[1], sys.argv[2:])
