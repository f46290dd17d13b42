"""One pilot: what is known of it, the job that it is submitted as, and what lies of it in its folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.launchers.local.rank_groups import program_environment
from orchestrator.launchers.slurm.job_files import write_setup_copy
from orchestrator.launchers.slurm_pilot.sizing import STARTUP_S, TAIL_S
from slurm.request import JobOptions, JobRequest
from slurm.script import render_pilot_script
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder, write_text
from trials.files.text import plural
from trials.pilot.files import PilotFolder, PilotPlan, StepEnd, StepFileKind
from trials.trial import FailureReason


@dataclass(frozen=True)
class PilotRequest:
    """One pilot to submit, in the place that a LaunchRequest has for an attempt."""

    key: str
    folder: AttemptFolder
    plan: PilotPlan
    job_id: str | None = None
    restart: int = 0

    @property
    def label(self) -> str:
        return self.folder.path.name

    @property
    def submitted_at(self) -> float:
        return self.plan.submitted_at


@dataclass(eq=False)
class Pilot:
    """What is known of one. `status` is what Slurm says of its job, `nodes` and `started_at` what it last said of one
    that ran; `step_files` are the files of its steps, as last listed. `heartbeat_at` is when its agent last lived
    (`Slurm.monotonic`), None before it ever was; `hints` is how often its folder told more than Slurm had. `shares` is
    what attempts pay of it that waited for it in vain, in seconds times nodes by their labels. `startup_timed_out`
    is set when its agent did not start in time."""

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
    hints: int = 0
    shares: dict[str, float] = field(default_factory=dict)
    startup_timed_out: bool = False

    @property
    def is_over(self) -> bool:
        return self.status.liveness is Liveness.ENDED

    @property
    def accepts_steps(self) -> bool:
        """Whether its agent takes steps, as far as is known."""
        return bool(self.nodes) and self.heartbeat_at is not None and not (self.is_draining or self.is_over)

    @property
    def ran_nothing(self) -> bool:
        """Whether no step was begun in it: then none pays for it, and those do that wait for it."""
        return not any(StepFileKind.CLAIMED in step_files for step_files in self.step_files.values())

    @property
    def agent_never_started(self) -> bool:
        """Whether it is over before its agent came to life, and not because nobody wanted it any more."""
        return self.is_over and self.heartbeat_at is None and not self.is_draining

    @property
    def ends(self) -> set[str]:
        """Steps whose end the agent told."""
        return {name for name, step_files in self.step_files.items() if StepFileKind.ENDED in step_files}

    @property
    def live(self) -> set[str]:
        """Steps that have been asked for and are not over."""
        done = (StepFileKind.ENDED, StepFileKind.WITHDRAWN)
        return {name for name, step_files in self.step_files.items() if not step_files.intersection(done)}

    @property
    def lost(self) -> set[str]:
        """Steps that were begun and whose end nobody told."""
        return {name for name in self.live if StepFileKind.CLAIMED in self.step_files[name]}

    @property
    def tail_node_s(self) -> float:
        """What it may hold after its last step, in seconds times nodes."""
        return self.plan.num_nodes * TAIL_S

    @property
    def held_node_s(self) -> float | None:
        """What one that is over held by Slurm's own clock, in seconds times nodes; None where that does not tell, or
        only of its last run."""
        status = self.status
        if not (status.started and status.is_metered) or status.restart > 0:
            return None if status.started else 0.0
        assert status.started_at is not None, "what is metered has a start"
        assert status.ended_at is not None, "and an end"
        return self.plan.num_nodes * max(0.0, status.ended_at - status.started_at)

    def rest_node_s(self, ends: Iterable[StepEnd]) -> float:
        """What it held and none of these steps paid, nor those that waited for it; 0.0 where nobody knows what it
        held."""
        paid = sum(end.node_s for end in ends) + sum(self.shares.values())
        return max(0.0, (self.held_node_s or 0.0) - paid)


def pilot_job(request: PilotRequest, options: JobOptions) -> JobRequest:
    """The pilot's own job: its agent is one process, the ranks come in steps."""
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
    )


def write_pilot_files(job: JobRequest) -> None:
    """The pilot's script, and the setup file that it sources; ExternalError as `write_job_files`."""
    write_setup_copy(job)
    write_text(job.script, render_pilot_script(job))


def startup_timeout_reason(pilot: Pilot) -> str:
    log = pilot.folder.path / "job.log"
    return f"its agent did not come to life within {plural(round(STARTUP_S / 60), 'minute')}: see {log}"


def pilot_request(pilot: Pilot) -> PilotRequest:
    return PilotRequest(pilot.key, AttemptFolder(pilot.folder.path), pilot.plan, job_id=pilot.job_id)


def read_pilot_folder(folder: PilotFolder) -> tuple[dict[str, set[StepFileKind]], float | None, bool]:
    """The steps' files, when the agent last gave a sign of life (its file system's clock), whether it takes no more."""
    try:
        heartbeat = folder.heartbeat.stat().st_mtime
    except FileNotFoundError:
        heartbeat = None
    return folder.step_files(), heartbeat, folder.closed.exists()


def status_to_json(status: LaunchStatus) -> dict[str, Any]:
    times = ("started_at", "ended_at", "is_metered", "restart", "nodes_were_silent")
    kept = ("started", "failed", "detail", "nodes", "job_id", *times)
    return {name: getattr(status, name) for name in kept} | {"reason": status.reason}


def status_from_json(data: dict[str, Any]) -> LaunchStatus:
    reason = None if data["reason"] is None else FailureReason(data["reason"])
    return LaunchStatus(Liveness.ENDED, **{**data, "nodes": tuple(data["nodes"]), "reason": reason})
