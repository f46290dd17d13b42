"""Daemons: started in sessions of their own, found again by a record on disk, and ended reliably.

Linux only. A daemon outlives the process that started it, so a file records its pid and its start time, which tells it
from a later process with the same pid. A zombie counts as ended: where PID 1 does not reap, it stays for a long time.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LOG_LINES = 8
_POLL_S = 0.02

_children: list[subprocess.Popen[bytes]] = []  # daemons that this process started and has to reap


class SandboxFailed(Exception):
    """The sandbox could not be started or queried; where a daemon did not start, the message has the end of its log."""


@dataclass(frozen=True)
class Daemon:
    """The daemon `name` of a sandbox, with its record in `folder`/run and its output in `folder`/log."""

    name: str
    folder: Path

    @property
    def record(self) -> Path:
        """One line, "PID START_TICKS", present while the daemon is meant to run."""
        return self.folder / "run" / f"{self.name}.process"

    @property
    def output(self) -> Path:
        """Output of the daemon, with errors before it opens its own log."""
        return self.folder / "log" / f"{self.name}.out"

    @property
    def pid(self) -> int | None:
        """The pid while the daemon is alive, else None."""
        try:
            pid, ticks = map(int, self.record.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _start_ticks(pid) == ticks else None

    def start(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the daemon; `wait_until_ready` waits until it answers."""
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                argv,
                cwd=self.record.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # not ended by Ctrl-C on the terminal
                umask=0o022,
            )
        _children.append(process)
        self.record.write_text(f"{process.pid} {_start_ticks(process.pid) or 0}\n")

    def wait_until_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Return once `is_ready`; SandboxFailed if the daemon ends before that or takes longer."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self.pid is None:
                raise SandboxFailed(f"{self.name} has ended: {self.log_tail()}")
            if time.monotonic() >= deadline:
                raise SandboxFailed(f"{self.name} did not answer within {timeout_s:.0f} s: {self.log_tail()}")
            time.sleep(_POLL_S)

    def log_tail(self) -> str:
        """Return the end of its output."""
        try:
            lines = self.output.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n  ".join(["", *lines[-_LOG_LINES:]]) if lines else "it printed nothing"

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; no effect on a daemon that has ended."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s`; return when it has ended."""
        self.send_signal(signal.SIGTERM)
        if not self.wait_for_end(grace_s):
            self.send_signal(signal.SIGKILL)
            self.wait_for_end(grace_s)
        self.record.unlink(missing_ok=True)

    def wait_for_end(self, timeout_s: float) -> bool:
        """Return True if it has ended within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.pid is not None:
            _reap_children()
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        _reap_children()
        return True


def recorded_daemons(folder: Path) -> list[Daemon]:
    """Return every daemon that has a record in `folder`, alive or not."""
    return [Daemon(path.stem, folder) for path in sorted((folder / "run").glob("*.process"))]


def port_answers(port: int) -> bool:
    """True if a process listens on this loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def socket_answers(path: Path) -> bool:
    """True if a process listens on this Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def port_is_free(port: int) -> bool:
    """True if this loopback port can be bound now."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def running_pids() -> Iterator[int]:
    """Return the pids of all processes that are not zombies."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _start_ticks(int(entry.name)) is not None:
            yield int(entry.name)


def _reap_children() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def _start_ticks(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot; None if it has ended or is a zombie."""
    try:
        # The command is in parentheses and may contain any character: count fields after the last parenthesis.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])
