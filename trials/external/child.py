"""The process of one rank's third-party trainer, with all its descendants: started, read, and reliably ended. Linux
only."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trials.ranks.tied_start import tied_to_us

KILL_TIMEOUT_S = 5.0
"""Time limit for killed processes to disappear."""
_LAST_OUTPUT_S = 1.0
"""Time limit for output of processes that an ended trainer left running."""
_CHUNK = 64 * 1024
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """A process whose output comes through a pipe. It stays in its supervisor's process group, which a launcher kills
    as one; its descendants are found even in sessions of their own.

    Start it from the main thread: the kernel ties its life to the thread that started it.
    """

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]):
        adopt_orphans()
        self._process = subprocess.Popen(
            tied_to_us(command),
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,  # select does not see what a buffer holds
        )
        self._has_ended_since: float | None = None

    def output(self, tick_s: float) -> Iterator[bytes]:
        """The output of the process and its children, as it comes; b"" at least every `tick_s` seconds without any.

        Ends once the process has ended and its output is read; processes that it left running are not waited for.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while not self._is_past_its_end():
            if not select.select([pipe], [], [], tick_s)[0]:
                yield b""
            elif data := os.read(pipe, _CHUNK):
                yield data
            else:
                return

    def _is_past_its_end(self) -> bool:
        """True if the process ended a while ago, and only others hold the pipe."""
        if self._has_ended_since is None and self._process.poll() is not None:
            self._has_ended_since = time.monotonic()
        return self._has_ended_since is not None and time.monotonic() - self._has_ended_since > _LAST_OUTPUT_S

    def exit_code(self) -> int:
        """Exit status, or minus the signal's number; waits for the end."""
        return self._process.wait()


def adopt_orphans() -> None:
    """Make this process the subreaper of its descendants, so that none escapes."""
    with suppress(ImportError, AttributeError, OSError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(timeout_s: float = KILL_TIMEOUT_S) -> list[int]:
    """Kill all descendants of this process; returns those that still run after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (alive := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _reap()
        time.sleep(0.01)
    return alive


def descendants(ancestor: int) -> list[int]:
    """Running descendants of a process, by /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _living():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [ancestor]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _living() -> Iterator[tuple[int, int]]:
    """(process, parent) of all running processes; proc(5), stat fields 3 and 4 after the command's name."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    yield int(entry), int(parent)


def _reap() -> None:
    """Reap ended children; `Popen` notices by waitpid that its child is gone."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
