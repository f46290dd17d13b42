"""Processes that outlive the command that starts them: forked from it where that is safe, else started anew.

A fork has imported and validated what a new interpreter would have to import and validate again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from orchestrator.cli.endings import ending, is_whole_process
from orchestrator.cli.output import Exit
from orchestrator.lifecycle.exit_codes import ExitCode

_HAVE_THREADS = frozenset({"mlflow", "ray", "grpc", "torch", "psycopg", "pyarrow"})
"""Packages whose threads and connections a fork would lack. OpenBLAS, which numpy loads, handles forks itself."""


def can_fork() -> bool:
    """True if a fork of this process has all that the process has: one thread, and no package with others.

    False, too, if this process imports from its working directory (`python -m` without -P): a driver does not.
    """
    is_alone = threading.active_count() == 1 and not _HAVE_THREADS & sys.modules.keys()
    return is_whole_process.get() and is_alone and (sys.flags.safe_path or sys.path[0] not in ("", os.getcwd()))


def start_detached(command: Sequence[str], log: Path) -> DetachedProcess:
    """Start the command in a session of its own, with its output in `log`. Raises OSError."""
    output = _opened(log)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    finally:
        os.close(output)


def fork_detached(command: Callable[[], None], log: Path) -> DetachedProcess:
    """Run the command in a copy of this process, as `start_detached` does; only where `can_fork`. Raises OSError.

    The copy ends with the command: this function raises Exit in it. No connection to a database may be open.
    """
    output, nothing = _opened(log), os.open(os.devnull, os.O_RDONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()  # else both processes would write what is left
    if (pid := os.fork()) == 0:
        _run_copy(command, output, nothing)
    os.close(output)
    os.close(nothing)
    return _Fork(pid)


class _Fork:
    """As subprocess.Popen."""

    def __init__(self, pid: int):
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Exit status; None while it runs."""
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


DetachedProcess = subprocess.Popen[bytes] | _Fork


def _run_copy(command: Callable[[], None], output: int, nothing: int) -> NoReturn:
    """Leave terminal, session and files of the original process, and run the command to its end."""
    with ending(as_json=False) as end:
        os.setsid()
        for stream, file in enumerate((nothing, output, output)):
            os.dup2(file, stream)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        command()
    raise Exit(ExitCode(end.code))


def _opened(log: Path) -> int:
    return os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
