"""One step of a pilot: a script that becomes srun, supervised until its end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from search_spaces.plain_file import read_plain
from trials.fork_server.stub import FOLDER_VARIABLE
from trials.pilot.files import StepEnd, StepEndReason, StepRequest, StepStart

NUMBER_FILE = "PARLAY_STEP_FILE"
"""Environment variable: the file into which `number_script` writes the step's number."""

CANCEL_AFTER_S = 10.0
"""Seconds that srun has to end its ranks before scancel is called, and between two calls."""


def number_script() -> str:
    """Script for `srun --prolog`, run before the ranks once the step has its nodes: it writes the step's number, which
    otherwise only a query to Slurm would give."""
    return f'#!/bin/sh\necho "$SLURM_STEP_ID" > "${NUMBER_FILE}.part" && mv "${NUMBER_FILE}.part" "${NUMBER_FILE}"\n'


class Step:
    """A step, started on construction. Times are time.monotonic's. OSError where its folder cannot be used.

    Its ranks are forked by the servers in the folder `fork_servers`, started plain without.
    """

    def __init__(self, request: StepRequest, number_file: Path, fork_servers: Path | None = None):
        self.request = request
        self.began = time.monotonic()
        self.began_at = time.time()
        self.start: StepStart | None = None
        self._number_file = number_file
        self._reason = StepEndReason.EXITED
        self._terminated_at: float | None = None
        self._over: float | None = None
        self._canceller: subprocess.Popen[bytes] | None = None
        servers = {} if fork_servers is None else {FOLDER_VARIABLE: str(fork_servers)}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                ["bash", request.script],
                cwd=request.directory,
                env={**os.environ, NUMBER_FILE: str(number_file), **servers},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return Path(self.request.directory, "job.log")

    def poll(self) -> None:
        """Check whether it has its nodes and whether it is over; end it at its limit, repeatedly if needed."""
        now = time.monotonic()
        if self.start is None and (number := self._number()) is not None:
            self.start = StepStart(time.time(), number)
        if self._process.poll() is not None:
            self._over = now if self._over is None else self._over
        elif self._terminated_at is None and now - self.began >= self.request.time_limit_s:
            self.stop(StepEndReason.TIME_LIMIT)
        elif self._terminated_at is not None and now - self._terminated_at >= CANCEL_AFTER_S:
            self._terminated_at = now
            self._cancel_in_slurm()

    def is_settled(self, seconds: float) -> bool:
        """True if it is over for certain by itself; a failed one only after `seconds`."""
        code = self._process.returncode
        return self._over is not None and (code == 0 or time.monotonic() - self._over >= seconds)

    def stop(self, reason: StepEndReason) -> None:
        """Begin to end it: srun kills the ranks on SIGTERM. The first reason counts."""
        if reason is StepEndReason.INTERRUPTED and self._process.returncode != 0 and self._terminated_at is None:
            self._reason = reason  # also for an ended one: the pilot's end has ended it
        if self._terminated_at is None and self._process.poll() is None:
            self._reason, self._terminated_at = reason, time.monotonic()
            self._signal(signal.SIGTERM)

    def end(self) -> StepEnd:
        """The report on the step, once it or its pilot is over."""
        code, over = self._process.poll(), self._over
        lasted_s = (time.monotonic() if over is None else over) - self.began
        return StepEnd(
            reason=StepEndReason.INTERRUPTED if code is None else self._reason,
            started_at=self.began_at,
            ended_at=self.began_at + lasted_s,
            exit_code=max(0, code or 0),
            signal=max(0, -(code or 0)),
            step=None if self.start is None else self.start.step,
        )

    def _number(self) -> str | None:
        try:
            return read_plain(self._number_file).decode(errors="replace").strip() or None
        except (OSError, ValueError):
            return None

    def _cancel_in_slurm(self) -> None:
        """Call scancel, again from time to time: srun could not end the step, whose node may be gone."""
        if self.start is None:
            self._signal(signal.SIGKILL)
        elif self._canceller is None or self._canceller.poll() is not None:
            name = f"{os.environ['SLURM_JOB_ID']}.{self.start.step}"
            with suppress(OSError):
                self._canceller = subprocess.Popen(["scancel", name], stdin=subprocess.DEVNULL)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the script's whole process group: it may still be loading modules."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
