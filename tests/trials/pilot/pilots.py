"""A pilot whose agent is a real process, and whose steps are scripts that need no Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trials.pilot.files import PilotFolder, PilotPlan, StepEnd, StepFileKind, StepRequest, write

WITHIN_S = 60.0
AGENT = ("-m", "trials.pilot")
NUMBERED = 'echo 4 > "$PARLAY_STEP_FILE"\n'
"""The prolog's part of srun."""


class Pilot:
    """A pilot of two nodes and its agent."""

    def __init__(self, path: Path):
        self.folder = PilotFolder(path / "p0001")
        self.path = path
        self.agent: subprocess.Popen[bytes] | None = None

    def start(self, idle_s: float = 60.0, program: Sequence[str] = AGENT) -> None:
        self.folder.steps.mkdir(parents=True, exist_ok=True)
        write(self.folder.plan, PilotPlan(2, 2, 3600.0, sys.executable, "", idle_s, time.time()))
        argv = [sys.executable, *program, str(self.folder.path)]
        self.agent = subprocess.Popen(argv, env={**os.environ, "SLURM_JOB_ID": "7"}, stderr=subprocess.DEVNULL)

    def ask(self, name: str, script: str, limit_s: float = 60.0, **details: object) -> Path:
        """Ask for a step on one node; returns its folder."""
        place = self.path / name
        place.mkdir()
        (place / "job.sh").write_text(script)
        self.folder.steps.mkdir(parents=True, exist_ok=True)
        asked = StepRequest(**{"nodes": ("n1",), **details}, **_script(place, limit_s))
        write(self.folder.step_file(name, StepFileKind.REQUESTED), asked)
        return place

    def end_of(self, name: str) -> StepEnd:
        until(self.folder.step_file(name, StepFileKind.ENDED).exists)
        return self.folder.end(name)

    def ends(self) -> int:
        assert self.agent is not None
        return self.agent.wait(WITHIN_S)

    def kill(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.kill()
            self.agent.wait()


def _script(place: Path, limit_s: float) -> dict[str, object]:
    return {"directory": str(place), "script": "job.sh", "num_nodes": 1, "time_limit_s": limit_s}


def until(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)
