"""A driver in a process of its own, seen from whoever supervises it. An actor imports this module, so it is small."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, BinaryIO

from orchestrator.lifecycle.exit_codes import ExitCode


class ExecutorKind(StrEnum):
    """What starts drivers: this process, or a Ray actor each."""

    PROCESS = "process"
    RAY = "ray"


@dataclass(frozen=True)
class DriverExit:
    """End of a driver: its exit code, below 0 for a signal, None where its actor died; and what it said with --json."""

    code: int | None
    said: Mapping[str, Any]

    @property
    def has_finished(self) -> bool:
        """True if the search has ended, with a best layout or without."""
        ended = (ExitCode.SUCCESS, ExitCode.NO_MEASUREMENT, ExitCode.REFUSED)
        return self.code in ended and self.problem is None and bool(self.said)

    @property
    def was_held(self) -> bool:
        return self.code == ExitCode.HELD_BY_ANOTHER

    @property
    def is_refused(self) -> bool:
        """True if another driver would be refused, too: its input or its files are at fault."""
        return self.code in (ExitCode.BAD_INPUT, ExitCode.UNKNOWN_ID)

    @property
    def problem(self) -> Mapping[str, Any] | None:
        """The error that ended it; None for a driver that said none."""
        return self.said.get("error")

    @property
    def detail(self) -> str:
        """The reason in words."""
        if self.problem is not None:
            return "; ".join(each["message"] for each in (self.problem, *self.problem.get("others", ())))
        if self.code is not None and self.code < 0:
            return f"its process died: signal {-self.code}"
        return f"its process ended with status {self.code}"


class DriverProcess:
    """A process that drives a search by this command, and ends with the thread that started it. Pickled, not started
    yet, for a Ray actor."""

    def __init__(self, command: Sequence[str]):
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._said: BinaryIO | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Start the process. OSError where there is no room for it."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        command = (*self._command, "--supervisor", str(os.getpid()))
        quiet = subprocess.DEVNULL  # what it logs goes to the search's driver.log
        self._process = subprocess.Popen(command, stdin=quiet, stdout=self._said, stderr=quiet, start_new_session=True)

    def result(self) -> DriverExit | None:
        """Its end; None while it runs."""
        assert self._process is not None
        assert self._said is not None
        if (code := self._process.poll()) is None:
            return None
        self._said.seek(0)
        try:
            said = json.loads(self._said.read())
        except ValueError:
            said = {}
        return DriverExit(code, said)

    def run(self) -> DriverExit | None:
        """Start the process, and wait for its end: what its Ray actor does."""
        self.start()
        assert self._process is not None
        if self._is_stopped:
            self.stop()
        self._process.wait()
        return self.result()

    def stop(self) -> None:
        """Let it leave at its next safe point; returns at once."""
        self._is_stopped = True
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once. What it leaves is for the next driver."""
        if self._process is not None:
            self._process.kill()
