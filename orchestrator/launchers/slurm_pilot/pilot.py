"""State of one pilot: its job, and the files in its folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.launchers.local.rank_groups import program_environment
from orchestrator.launchers.slurm.job_files import may_exist
from orchestrator.launchers.slurm_pilot.sizing import STARTUP_S
from search_spaces.decoding import T
from slurm.request import JobOptions, JobRequest
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder, SearchFolder
from trials.files.text import plural
from trials.pilot.files import PilotFolder, PilotJob, PilotPlan, PlainStarts, StepFileKind, read

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PilotRequest:
    """One pilot to submit, used in place of an attempt's LaunchRequest."""

    key: str
    folder: AttemptFolder
    plan: PilotPlan
    job_id: str | None = None
    restart: int = 0
    is_first: bool = False

    @property
    def label(self) -> str:
        return self.folder.path.name

    @property
    def submitted_at(self) -> float:
        return self.plan.submitted_at


@dataclass(eq=False)
class Pilot:
    """State of one pilot.

    `status` is its job's; `nodes` and `started_at` are the last known ones. `step_files` are the files of its steps, as
    last listed. `heartbeat_at` is the time of the agent's last heartbeat (`Slurm.monotonic`), None before the first,
    and `cancelled_at` that of the last cancellation. `hints` counts how often its folder was ahead of Slurm.
    `startup_timed_out` is set when its agent did not start in time; `ended_restart` is the requeue after which it was
    cancelled.
    """

    folder: PilotFolder
    plan: PilotPlan
    key: str
    job_id: str | None = None
    status: LaunchStatus = field(default_factory=lambda: LaunchStatus(Liveness.ALIVE))
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    step_files: dict[str, set[StepFileKind]] = field(default_factory=dict)
    is_draining: bool = False
    heartbeat_at: float | None = None
    heartbeat: float | None = None
    cancelled_at: float = -math.inf
    ended_restart: int = 0
    hints: int = 0
    startup_timed_out: bool = False
    plain_starts: PlainStarts | None = None

    @property
    def is_ended(self) -> bool:
        return self.status.liveness is Liveness.ENDED

    @property
    def status_with_start(self) -> LaunchStatus:
        """Its status; where Slurm does not tell when it started, with the start that was seen."""
        status = self.status
        is_seen_alone = status.started and status.started_at is None and status.restart == 0
        return replace(status, started_at=self.started_at) if is_seen_alone else status

    @property
    def may_accept(self) -> bool:
        """True unless it takes no more steps."""
        return not (self.is_draining or self.is_ended)

    @property
    def accepts_steps(self) -> bool:
        """True if, as far as is known, its agent accepts steps."""
        return bool(self.nodes) and self.heartbeat_at is not None and self.may_accept

    @property
    def ran_nothing(self) -> bool:
        """True if no step started in it."""
        return not any(StepFileKind.CLAIMED in step_files for step_files in self.step_files.values())

    @property
    def agent_never_started(self) -> bool:
        """True if it ended before its agent started, without having been drained."""
        return self.is_ended and self.heartbeat_at is None and not self.is_draining

    @property
    def ended_steps(self) -> set[str]:
        """Steps whose end the agent reported."""
        return {name for name, step_files in self.step_files.items() if StepFileKind.ENDED in step_files}

    @property
    def live_steps(self) -> set[str]:
        """Steps that were requested and have not ended."""
        done = (StepFileKind.ENDED, StepFileKind.WITHDRAWN)
        return {name for name, step_files in self.step_files.items() if not step_files.intersection(done)}


def pilot_job(request: PilotRequest, options: JobOptions) -> JobRequest:
    """Return the pilot's job: one process, its agent, which starts the ranks in steps."""
    plan, path = request.plan, request.folder.path.absolute()
    return JobRequest(
        name=request.key,
        directory=path,
        num_nodes=plan.num_nodes,
        tasks_per_node=plan.tasks_per_node,
        time_limit_s=plan.time_limit_s,
        argv=(plan.python, "-m", "trials.pilot", str(path)),
        environment=program_environment(plan.code),
        options=options,
        exclude=plan.exclude,
        is_first=request.is_first,
        is_repeat=True,  # repeats are among its steps
    )


def startup_timeout_reason(pilot: Pilot) -> str:
    """Say that the agent did not start in time, and where its log is."""
    log = pilot.folder.path / "job.log"
    return f"its agent did not start within {plural(round(STARTUP_S / 60), 'minute')}: see {log}"


def pilot_request(pilot: Pilot, is_first: bool = False) -> PilotRequest:
    folder = AttemptFolder(pilot.folder.path)
    return PilotRequest(pilot.key, folder, pilot.plan, job_id=pilot.job_id, is_first=is_first)


def read_pilot(search: SearchFolder, folder: PilotFolder, recorded: Collection[str]) -> Pilot | None:
    """Return the pilot in this folder; None if it was neither recorded nor submitted, or its plan is damaged. Other
    files that are damaged are taken as not written: Slurm knows its job by name."""
    plan = _read_whole(PilotPlan, folder.plan)
    if plan is None or not (folder.name in recorded or may_exist(folder.path / "job.sh")):
        return None
    job, end = _read_whole(PilotJob, folder.job), _read_whole(LaunchStatus, folder.job_end)
    pilot = Pilot(folder, plan, f"{search.search_id}.{folder.name}", None if job is None else job.job_id)
    pilot.is_draining = folder.drain.exists()
    pilot.status = end or pilot.status
    return pilot


def _read_whole(kind: type[T], path: Path) -> T | None:
    """The dataclass in this file of a pilot; None without one, and where it is damaged."""
    try:
        return read(kind, path)
    except ValueError as error:
        _log.warning(f"{error}")
        return None


def read_pilot_folder(folder: PilotFolder) -> tuple[dict[str, set[StepFileKind]], float | None, bool]:
    """Return the steps' files, the agent's last heartbeat (file system's clock), and whether it is closed to steps."""
    try:
        heartbeat = folder.heartbeat.stat().st_mtime
    except FileNotFoundError:
        heartbeat = None
    return folder.step_files(), heartbeat, folder.closed.exists()
