"""Files of a pilot's folder: the driver's requests and the agent's reports, each renamed into place.

The process that renames a step's request owns it: the agent to claim it, the driver to withdraw it. So each step is
started at most once, and a withdrawn one never runs.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from search_spaces.decoding import T
from trials.files.folders import File, read_as, write_json
from trials.trial import LowerStrEnum

PILOT_SCHEMA = "parlay.pilot/1"

COULD_NOT_START = 127
"""Exit code of a step whose script or srun was not found, as bash has it."""

FORK_SERVER_SCRIPT = "job.sh"
"""Script of the step of one kind's fork servers, in their folder."""


class StepFileKind(LowerStrEnum):
    """Kinds of a step's files, by their suffixes, in the order they appear; the driver writes `cancel` and
    `withdrawn`."""

    REQUESTED = "requested.json"
    WITHDRAWN = "withdrawn.json"
    CLAIMED = "claimed.json"
    STARTED = "started.json"
    CANCEL = "cancel"
    ENDED = "ended.json"


class StepEndReason(LowerStrEnum):
    """Reason why a step's srun ended: by itself, at its limit, cancelled by the driver, or with its pilot."""

    EXITED = "exited"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class StepRequest:
    """Request for a step: bash runs `script` in `directory`, as an srun step on `num_nodes` of the pilot's nodes.

    It is ended `time_limit_s` after its start. `fork_servers` names the folder of the fork servers of its ranks;
    without it they are started plain.
    """

    directory: str
    script: str
    num_nodes: int
    time_limit_s: float
    nodes: tuple[str, ...]
    fork_servers: str | None = None


@dataclass(frozen=True)
class StepStart:
    """Start of a step on its nodes; `step` is its number in the job."""

    started_at: float
    step: str


@dataclass(frozen=True)
class StepEnd:
    """End of a step. It held its nodes exclusively from `started_at` on. `exit_code` and `signal` are its script's.
    `step` is None where it never got its nodes."""

    reason: StepEndReason
    started_at: float
    ended_at: float
    exit_code: int
    signal: int
    step: str | None = None


@dataclass(frozen=True)
class PlainStarts:
    """plain_starts.json: the reason why ranks that could be forked are started plain."""

    reason: str


@dataclass(frozen=True)
class PilotPlan:
    """pilot.json: the allocation that the driver asks Slurm for, written before the submission, and the agent's
    parameters.

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
class PilotJob:
    """job.json: the id of its Slurm job."""

    job_id: str


@dataclass(frozen=True)
class PilotFolder:
    """`pilots/p0001/` of a search; the steps' files are in `steps/`."""

    path: Path

    plan = File("pilot.json")
    """PilotPlan."""
    job = File("job.json")
    """PilotJob."""
    job_end = File("job_end.json")
    """LaunchStatus: the end of its job, as the driver saw it."""
    heartbeat = File("heartbeat")
    """Rewritten by the agent while it runs."""
    drain = File("drain")
    """Written by the driver: no more steps will be requested."""
    closed = File("closed.json")
    """Written by the agent at its end: no more steps will be claimed."""
    plain_starts = File("plain_starts.json")
    """PlainStarts, by the agent."""
    steps = File("steps")
    """Files of the steps."""

    @property
    def name(self) -> str:
        return self.path.name

    def fork_servers(self, name: str) -> Path:
        """Folder of one kind of fork servers: the script of their step, its log, and a socket for each node."""
        return self.path / "fork_servers" / name

    def read_plain_starts(self) -> PlainStarts | None:
        """None where all ranks are forked that can be. Raises OSError, ValueError."""
        return read(PlainStarts, self.plain_starts)

    def step_file(self, name: str, kind: StepFileKind) -> Path:
        """A file of a step, which is named as its attempt: `t0001.a1`."""
        return self.steps / f"{name}.{kind}"

    def step_files(self) -> dict[str, set[StepFileKind]]:
        """The kinds of files that each step has. Listing the folder refreshes a network file system's cache. Raises
        OSError."""
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
        """Rename a step's request to `kind`; False where the other side was first.

        A rename whose reply was lost on the network is reported as failed though done: then the file exists.
        """
        taken = self.step_file(name, kind)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.step_file(name, StepFileKind.REQUESTED), taken)
        return taken.exists()

    def read_plan(self) -> PilotPlan | None:
        """None without a plan. Raises OSError, ValueError."""
        return read(PilotPlan, self.plan)

    def request(self, name: str, kind: StepFileKind) -> StepRequest:
        """The request in this file. Raises OSError, ValueError, as `start` and `end`."""
        return _there(StepRequest, self.step_file(name, kind))

    def start(self, name: str) -> StepStart:
        return _there(StepStart, self.step_file(name, StepFileKind.STARTED))

    def end(self, name: str) -> StepEnd:
        return _there(StepEnd, self.step_file(name, StepFileKind.ENDED))


def write(path: Path, what: Any) -> None:
    """Write a dataclass as JSON, atomically, without fields that are None: the agent of an older search lacks some."""
    fields = {name: value for name, value in asdict(what).items() if value is not None}
    write_json(path, {"schema": PILOT_SCHEMA, **fields})


def read(kind: type[T], path: Path) -> T | None:
    """The dataclass that `write` wrote; None without a file. DamagedFile for anything else."""
    return read_as(kind, path, PILOT_SCHEMA)


def _there(kind: type[T], path: Path) -> T:
    found = read(kind, path)
    if found is None:
        raise FileNotFoundError(f"{path} is not there")
    return found
