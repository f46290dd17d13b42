"""Job states and snapshots of jobs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEVER_SATISFIED = "DependencyNeverSatisfied"
"""Slurm's reason of a job that can never start, since one that it depends on did not end as required."""


class JobState(str, Enum):
    """Slurm's job states (squeue(1), "JOB STATE CODES"). UNKNOWN stands for any other word."""

    __str__ = str.__str__

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    STAGE_OUT = "STAGE_OUT"
    SIGNALING = "SIGNALING"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    RESIZING = "RESIZING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_ended(self) -> bool:
        """True if a job in this state runs nothing and never will."""
        return self in _ENDED

    @property
    def has_end_time(self) -> bool:
        """True if the end of a job in this state is known, and accounted: only its nodes may still be cleaned up."""
        return self.is_ended or self is JobState.COMPLETING

    @property
    def waits(self) -> bool:
        """True if a job in this state holds no node, not yet or no longer."""
        return self in _WAITING


_ENDED = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.DEADLINE,
        JobState.NODE_FAIL,
        JobState.BOOT_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.PREEMPTED,
        JobState.REVOKED,
    }
)
_WAITING = frozenset(
    {
        JobState.PENDING,
        JobState.REQUEUED,
        JobState.REQUEUE_HOLD,
        JobState.REQUEUE_FED,
        JobState.SPECIAL_EXIT,
        JobState.RESV_DEL_HOLD,
    }
)


@dataclass(frozen=True)
class JobSnapshot:
    """One job as reported by one of Slurm's commands. Times are UTC seconds since the epoch.

    `state_text` is Slurm's own word. `reason` is why the job waits or how it failed (None for Slurm's "None"). `nodes`
    are expanded names, () before there are any. `exit_code` and `signal` are the two halves of Slurm's ExitCode, None
    where the command does not report them. `restarts` counts requeues, `billing` is the job's billing units
    and `qos` its QOS, None likewise.
    """

    job_id: str
    name: str
    user: str
    state: JobState
    state_text: str
    reason: str | None = None
    nodes: tuple[str, ...] = ()
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
    billing: float | None = None
    qos: str | None = None
