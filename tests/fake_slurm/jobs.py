"""Jobs of a simulated cluster: how they will run, and the controller's record of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobRequest

_CANCELLATION_CAUSES = {
    JobState.TIMEOUT: " DUE TO TIME LIMIT",
    JobState.CANCELLED: "",
    JobState.PREEMPTED: " DUE TO PREEMPTION",
    JobState.NODE_FAIL: " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
    JobState.REQUEUED: " DUE TO JOB REQUEUE",
}


@dataclass(frozen=True)
class StartedJob:
    """A started job as its script sees it: `restart` is SLURM_RESTART_COUNT, `started_at` on the simulated clock."""

    job_id: str
    name: str
    user: str
    directory: Path
    nodes: tuple[str, ...]
    restart: int
    started_at: float


@dataclass(frozen=True)
class JobPlan:
    """Course of one start of a job: its processes end after `duration_s` (None: never), then call `on_end`.

    `on_end` is not called when they are killed before. The state follows from exit code and signal unless `ends_as` is
    given; OUT_OF_MEMORY comes with signal 125. A job that does not heed SIGTERM is killed KillWait later. Its nodes are
    cleaned up for `completing_s`.
    """

    duration_s: float | None = None
    exit_code: int = 0
    signal: int = 0
    ends_as: JobState | None = None
    on_end: Callable[[], None] = lambda: None
    heeds_term: bool = True
    completing_s: float = 0.0


@dataclass
class Run:
    """Processes of one start, on the simulated clock; `killed` if they do not end by themselves."""

    job: FakeJob
    plan: JobPlan
    nodes: tuple[str, ...]
    started: float
    ends: float
    killed: bool = False
    over: bool = False

    @property
    def is_orphan(self) -> bool:
        """True if Slurm no longer knows of the processes."""
        return self.job.run is not self

    def node_s(self, until: float) -> float:
        """Return the node-seconds from the start until then."""
        return len(self.nodes) * (until - self.started)


@dataclass(frozen=True)
class JobEnding:
    """Final state of a job once its processes are gone and its nodes clean; `requeue` queues it again instead."""

    state: JobState
    reason: str | None = None
    exit_code: int = 0
    signal: int = 0
    requeue: bool = False
    hold: str | None = None


@dataclass
class FakeJob:
    """The controller's record of a job. `*_at` are by the cluster's clock, other times by the simulated one."""

    job_id: str
    user: str
    request: JobRequest
    submitted_at: float
    submitted: float
    begins: float
    state: JobState = JobState.PENDING
    reason: str | None = None
    held: bool = False
    nodes: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    run: Run | None = None
    ending: JobEnding | None = None
    clean: float = 0.0
    released: float | None = None
    billing_per_node: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.user, self.request.name

    @property
    def limit_s(self) -> float:
        return self.request.time_limit_min * 60.0

    def snapshot(self) -> JobSnapshot:
        """Return the job as scontrol reports it."""
        return JobSnapshot(
            job_id=self.job_id,
            name=self.request.name,
            user=self.user,
            state=self.state,
            state_text=self.state.value,
            reason=self.reason,
            nodes=self.nodes,
            submitted_at=self.submitted_at,
            started_at=self.started_at,
            ended_at=self.ended_at if self.state.has_end_time else None,
            exit_code=self.exit_code,
            signal=self.signal,
            restarts=self.restarts,
            billing=None if self.billing_per_node is None else self.billing_per_node * self.request.num_nodes,
            qos=self.request.options.qos or "normal",
        )

    def log_cancellation(self, state: JobState, at: float) -> None:
        """Append the lines of slurmstepd and srun for a job that is ended from outside at this time."""
        moment = datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        node = self.nodes[0]
        cancelled = f"*** JOB {self.job_id} ON {node} CANCELLED AT {moment}{_CANCELLATION_CAUSES[state]} ***"
        self.append_to_log(f"slurmstepd-{node}: error: {cancelled}\nsrun: error: {node}: task 0: Terminated\n")

    def append_to_log(self, text: str) -> None:
        """Append to job.log, which appears when the job starts: output of the script, slurmd and srun."""
        if self.request.directory.is_dir():
            with self.request.log.open("a") as log:
                log.write(text)


def natural_ending(plan: JobPlan) -> JobEnding:
    if plan.ends_as is JobState.OUT_OF_MEMORY:
        return JobEnding(plan.ends_as, "OutOfMemory", 0, 125)
    if plan.ends_as in (JobState.NODE_FAIL, JobState.BOOT_FAIL):
        return JobEnding(plan.ends_as, "NodeDown")
    if plan.ends_as is JobState.DEADLINE:
        return JobEnding(plan.ends_as, "DeadLine", 0, 1)
    if plan.ends_as is not None:
        return JobEnding(plan.ends_as, None, plan.exit_code, plan.signal)
    if plan.signal:
        return JobEnding(JobState.FAILED, "JobLaunchFailure", 0, plan.signal)
    if plan.exit_code:
        return JobEnding(JobState.FAILED, "NonZeroExitCode", plan.exit_code)
    return JobEnding(JobState.COMPLETED)
