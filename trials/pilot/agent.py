"""Agent of a pilot (an allocation): starts the steps it is asked for, ends them in time, and reports how they ended.

It decides nothing: which step runs where, and which trial comes next, is up to the driver. It goes on without a driver
until its steps are over, and ends when it is drained, or after a while without work: no node is held idle. Failed reads
and writes are retried.
"""

from __future__ import annotations

import signal
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from trials.fork_server.owner import ForkServers
from trials.pilot.files import (
    COULD_NOT_START,
    FORK_SERVER_SCRIPT,
    PilotFolder,
    PilotPlan,
    PlainStarts,
    StepEnd,
    StepEndReason,
    StepFileKind,
    StepRequest,
    write,
)
from trials.pilot.step import Step, number_script

TURN_S = 0.25
HEARTBEAT_S = 5.0

_SETTLE_S = 1.0
"""Seconds for which the report on a failed step is held back: where Slurm ends the whole job, a step's end may precede
the agent's own signal."""


class Agent:
    """Agent of one pilot. `run` returns when the pilot is over; `terminate` may be called from a signal handler."""

    def __init__(self, folder: PilotFolder, plan: PilotPlan):
        self._folder = folder
        self._plan = plan
        self._idle_since = time.monotonic()
        self._last_beat = -HEARTBEAT_S
        self._known_steps: set[str] = set()
        self._steps: dict[str, Step] = {}
        self._servers = ForkServers(self._note_plain_starts)
        self._started: set[str] = set()
        self._ends: dict[str, StepEnd] = {}
        self._terminated = False

    def run(self) -> None:
        while not (self._terminated or self._is_done):
            with suppress(OSError):
                self._turn()
            time.sleep(TURN_S)
        self._close()

    def terminate(self, *_: object) -> None:
        """End at Slurm's signal: the job ends with all its steps."""
        self._terminated = True

    @property
    def _is_done(self) -> bool:
        if self._steps or self._ends:
            return False
        return time.monotonic() - self._idle_since >= self._plan.idle_s or self._folder.drain.exists()

    def _turn(self) -> None:
        for step in self._steps.values():
            step.poll()  # first, so that limits hold even if files cannot be read or written
        self._beat()
        for name, seen in sorted(self._folder.step_files().items()):
            if StepFileKind.REQUESTED in seen and self._folder.take(name, StepFileKind.CLAIMED):
                seen.add(StepFileKind.CLAIMED)
            if StepFileKind.CLAIMED in seen and name not in self._known_steps:
                self._begin(name)
            if StepFileKind.CANCEL in seen and name in self._steps:
                self._steps[name].stop(StepEndReason.CANCELLED)
        for name, step in list(self._steps.items()):
            if step.start is not None and name not in self._started:
                write(self._folder.step_file(name, StepFileKind.STARTED), step.start)
                self._started.add(name)
            if step.is_settled(_SETTLE_S):
                self._end(name)
        self._write_ends()

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat >= HEARTBEAT_S:
            self._folder.heartbeat.touch()
            self._last_beat = time.monotonic()

    def _begin(self, name: str) -> None:
        """Start a step, once; if that fails, the step has ended with the error."""
        self._idle_since = time.monotonic()
        began_at = time.time()
        try:
            request = self._folder.request(name, StepFileKind.CLAIMED)
            self._known_steps.add(name)
            servers = self._fork_servers(request)
            self._steps[name] = Step(request, self._folder.steps / f"{name}.number", servers)
        except (OSError, ValueError) as error:
            self._known_steps.add(name)
            self._ends[name] = StepEnd(StepEndReason.EXITED, began_at, time.time(), COULD_NOT_START, 0)
            print(f"{name} could not be started: {error}", file=sys.stderr, flush=True)

    def _fork_servers(self, request: StepRequest) -> Path | None:
        """Folder of the servers that may fork the step's ranks; they are a step of their own on all nodes."""
        if request.fork_servers is None:
            return None
        folder = self._folder.fork_servers(request.fork_servers).absolute()
        serves = self._servers.serve(str(folder), ["bash", FORK_SERVER_SCRIPT])
        return folder if serves else None

    def _note_plain_starts(self, reason: str) -> None:
        print(f"ranks start plain: {reason}", file=sys.stderr, flush=True)
        with suppress(OSError):
            write(self._folder.plain_starts, PlainStarts(reason))

    def _end(self, name: str) -> None:
        step = self._steps.pop(name)
        self._ends[name] = step.end()
        self._idle_since = time.monotonic()

    def _write_ends(self) -> None:
        for name, end in list(self._ends.items()):
            write(self._folder.step_file(name, StepFileKind.ENDED), end)
            del self._ends[name]

    def _close(self) -> None:
        """End the remaining steps, which end with the job."""
        for name, step in list(self._steps.items()):
            step.stop(StepEndReason.INTERRUPTED)
            self._end(name)
        with suppress(OSError):
            self._write_ends()
            write(self._folder.closed, self._plan)
        self._servers.close()


def number_script_path(folder: PilotFolder) -> Path:
    """Path of the script that each step's srun runs as `--prolog`."""
    return folder.path / "step-number.sh"


def run_agent(path: Path) -> None:
    """Run the agent in the batch script's process. After a requeue it exits: its steps are gone, and the driver asks
    for another pilot."""
    folder = PilotFolder(path)
    plan = folder.read_plan()
    if plan is None or folder.heartbeat.exists():
        sys.exit(f"{folder.plan}: not there, or served before")
    script = number_script_path(folder)
    script.write_text(number_script())
    script.chmod(stat.S_IRWXU)
    agent = Agent(folder, plan)
    signal.signal(signal.SIGTERM, agent.terminate)
    agent.run()
