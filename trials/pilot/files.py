"""A pilot's folder: what its driver wants of it and what its agent says, each a file renamed into place.

Whoever renames a step's request has it: the agent to claim it, the driver to withdraw it. So each step is started once
at most, and one that was never claimed never runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trials.files.folders import read_json, write_json
from trials.trial import LowerStrEnum, require_schema

PILOT_SCHEMA = "parlay.pilot/1"

COULD_NOT_START = 127
"""The exit code of a step whose script, or whose srun, is not to be found: bash's own for that."""


class StepFileKind(LowerStrEnum):
    """What a step's files are called after its name, in the order they come; `cancel` and `withdrawn` are the driver's
    wishes."""

    REQUESTED = "requested.json"
    WITHDRAWN = "withdrawn.json"
    CLAIMED = "claimed.json"
    STARTED = "started.json"
    CANCEL = "cancel"
    ENDED = "ended.json"


class StepEndReason(LowerStrEnum):
    """How a step's srun came to its end: by itself, at its limit, on the driver's wish, or with its pilot."""

    EXITED = "exited"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StepRequest:
    """One step: `script` is run by bash in `directory`, which is srun's step on `num_nodes` of the pilot's nodes.

    It is ended `time_limit_s` after its start. `pilot_started_at` is when the pilot's nodes were first held, as Slurm
    says it (UTC seconds).
    """

    directory: str
    script: str
    num_nodes: int
    time_limit_s: float
    nodes: tuple[str, ...]
    pilot_started_at: float | None = None


@dataclass(frozen=True)
class StepStart:
    """The step has its nodes; `step` is its number in the job."""

    started_at: float
    step: str


@dataclass(frozen=True)
class StepEnd:
    """The step is over. It held its nodes from `started_at`, since when nothing else was put there. `exit_code` and
    `signal` are its script's; `node_s` is its share of what all nodes of the pilot cost so far, in seconds times nodes.
    `step` is None where it never got its nodes."""

    reason: StepEndReason
    started_at: float
    ended_at: float
    exit_code: int
    signal: int
    node_s: float
    step: str | None = None


@dataclass(frozen=True)
class PilotPlan:
    """pilot.json: what the driver asked Slurm for, written before it asked, and what the agent keeps to.

    `python` runs the agent, with `code` on its PYTHONPATH. It ends after `idle_s` seconds without a step.
    """

    num_nodes: int
    tasks_per_node: int
    time_limit_s: float
    python: str
    code: str
    idle_s: float
    submitted_at: float
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class PilotFolder:
    """`pilots/p0001/` of a search; the steps' files lie in `steps/`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "pilot.json"

    @property
    def job(self) -> Path:
        """The id that Slurm gave it."""
        return self.path / "job.json"

    @property
    def job_end(self) -> Path:
        """How its job ended, as the driver saw it."""
        return self.path / "job_end.json"

    @property
    def shares(self) -> Path:
        """What attempts pay of it that waited for it in vain, as the driver settled it."""
        return self.path / "shares.json"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat"

    @property
    def drain(self) -> Path:
        """No more steps are coming: written by the driver."""
        return self.path / "drain"

    @property
    def closed(self) -> Path:
        """No more steps are claimed: written by the agent, last of all."""
        return self.path / "closed.json"

    @property
    def steps(self) -> Path:
        return self.path / "steps"

    def step_file(self, name: str, kind: StepFileKind) -> Path:
        """The file of a step, which is named as its attempt: `t0001.a1`."""
        return self.steps / f"{name}.{kind}"

    def step_files(self) -> dict[str, set[StepFileKind]]:
        """Which files each step has. Listing the folder makes a network file system look again. Raises OSError."""
        found: dict[str, set[StepFileKind]] = {}
        with os.scandir(self.steps) as entries:
            names = [entry.name for entry in entries]
        for kind in StepFileKind:
            ending = f".{kind}"
            for name in names:
                if name.endswith(ending) and not name.startswith("."):
                    found.setdefault(name.removesuffix(ending), set()).add(kind)
        return found

    def take(self, name: str, kind: StepFileKind) -> bool:
        """Turn a step's request into `kind`; False where the other side was first.

        A rename whose answer was lost on the network is told as failed and has been done: then the file is there.
        """
        taken = self.step_file(name, kind)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.step_file(name, StepFileKind.REQUESTED), taken)
        return taken.exists()

    def read_plan(self) -> PilotPlan | None:
        """None where there is none; ValueError, TypeError for what is none."""
        data = read(self.plan)
        return None if data is None else PilotPlan(**_tupled(data, "exclude"))

    def request(self, name: str, kind: StepFileKind) -> StepRequest:
        """What was asked for. Raises OSError, ValueError, TypeError."""
        return StepRequest(**_tupled(_there(self.step_file(name, kind)), "nodes"))

    def start(self, name: str) -> StepStart:
        return StepStart(**_there(self.step_file(name, StepFileKind.STARTED)))

    def end(self, name: str) -> StepEnd:
        data = _there(self.step_file(name, StepFileKind.ENDED))
        return StepEnd(**data | {"reason": StepEndReason(data["reason"])})


def write(path: Path, what: Any) -> None:
    """Swap a dataclass in as JSON."""
    write_json(path, {"schema": PILOT_SCHEMA, **asdict(what)})


def read(path: Path) -> dict[str, Any] | None:
    """What `write` left, without its schema; None where there is nothing. ValueError for something else."""
    data = read_json(path)
    if data is None:
        return None
    require_schema(data, PILOT_SCHEMA)
    return {name: value for name, value in data.items() if name != "schema"}


def _there(path: Path) -> dict[str, Any]:
    data = read(path)
    if data is None:
        raise FileNotFoundError(f"{path} is not there")
    return data


def _tupled(data: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {**data, **{name: tuple(data[name]) for name in names}}
