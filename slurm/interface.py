"""Slurm interface: queries, submissions and cancellation, implemented by SlurmClient and FakeSlurm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from slurm.association_limits import AssociationLimits
from slurm.job_state import JobSnapshot
from slurm.nodes import NodeSnapshot
from slurm.partitions import PartitionSnapshot, beyond_limits
from slurm.request import JobRequest


class SlurmUnreachable(Exception):
    """Slurm, or one part of it, did not answer: its state is unknown, and as far as can be told nothing was changed."""


class SubmitStatus(str, Enum):
    """Outcome of a submission.

    ACCEPTED: there is a job id. BUSY: nothing was submitted, try again later (a queue limit, a controller that is known
    to be down). REFUSED: it will never be accepted as it is. UNCONFIRMED: it may have been accepted; look for the job
    by its name.
    """

    __str__ = str.__str__

    ACCEPTED = "accepted"
    BUSY = "busy"
    REFUSED = "refused"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True)
class Submission:
    """Result of a submission. `message` is Slurm's own text, "" where it printed nothing."""

    status: SubmitStatus
    job_id: str | None = None
    message: str = ""


CHECK_INTERVAL_S = 60.0
"""Delay of Slurm's limit checks: they run about every half minute, and jobs were seen to end up to a minute late."""

_NEVER_ENDED_S = 365 * 86400.0  # for OverTimeLimit=UNLIMITED: a journal cannot store infinity


@dataclass(frozen=True)
class SlurmSettings:
    """Time limits and defaults from the cluster's configuration, in seconds. Defaults are Slurm's own (slurm.conf(5)).

    A job may run `over_time_limit_s` beyond its limit, or its partition's value instead. Slurm checks limits once a
    minute and waits `kill_wait_s` between SIGTERM and SIGKILL. squeue and scontrol forget a job `min_job_age_s` after
    its end. Without `enforces_limits` a job beyond its partition's limits is accepted and stays pending for ever.
    """

    cluster_name: str = ""
    version: str = ""
    min_job_age_s: float = 300.0
    kill_wait_s: float = 30.0
    over_time_limit_s: float = 0.0
    message_timeout_s: float = 10.0
    has_accounting: bool = False
    enforces_limits: bool = False
    default_partition: str = ""
    partition_over_times_s: Mapping[str, float] = field(default_factory=dict)

    def over_time_s(self, partition: str | None) -> float:
        """Return the most seconds beyond its limit that a job may run in this partition, or any of several with
        commas."""
        names = (partition or self.default_partition).split(",")
        return max(self.partition_over_times_s.get(name, self.over_time_limit_s) for name in names)

    def ending_s(self, partition: str | None) -> float:
        """Return the most seconds that Slurm may add to a job's limit: OverTimeLimit, its next check, and KillWait."""
        return min(self.over_time_s(partition), _NEVER_ENDED_S) + CHECK_INTERVAL_S + self.kill_wait_s


class Slurm(ABC):
    """One cluster, seen by one user. Each method has its own time limit; all raise SlurmUnreachable."""

    user: str

    @abstractmethod
    def now(self) -> float:
        """Return UTC seconds since the epoch by the cluster's clock."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds of a monotonic clock, for measuring durations."""

    @abstractmethod
    def settings(self) -> SlurmSettings:
        """Return the cluster's configuration."""

    @abstractmethod
    def partitions(self) -> tuple[PartitionSnapshot, ...]:
        """Return the current state of all partitions, hidden ones included (scontrol)."""

    @abstractmethod
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """Return the current state of all nodes, once for each partition of a node (sinfo)."""

    @abstractmethod
    def blocks(self) -> tuple[int, ...]:
        """Return the number of nodes of each block of topology/block; empty for another topology (scontrol)."""

    @abstractmethod
    def leaves(self) -> Mapping[str, str]:
        """Return the leaf switch of topology/tree, or the block of topology/block, of each node that has one
        (scontrol)."""

    @abstractmethod
    def association_limits(self) -> AssociationLimits | None:
        """Return the user's accounts, QOS and their limits (sacctmgr); None without accounting."""

    def beyond_limits(self, request: JobRequest, partitions: Sequence[PartitionSnapshot]) -> str | None:
        """Return the reason why none of these partitions would ever start the job, or None.

        Limits that the job's QOS, named or default, overrides do not count. An unknown QOS is left to Slurm's own
        message.
        """
        if (message := beyond_limits(request, partitions)) is None:
            return None
        qos = None
        with suppress(SlurmUnreachable):
            association_limits = self.association_limits()
            qos = None if association_limits is None else association_limits.qos_for(request.options)
        if qos is None:
            return message if request.options.qos is None else None
        return beyond_limits(request, partitions, qos)

    @abstractmethod
    def test(self, request: JobRequest) -> Submission:
        """Test a request without submitting it; the result has Slurm's own message and no job id.

        REFUSED: it would never run. BUSY: it would wait for an administrator (a partition that is closed, nodes that
        are down or drained). ACCEPTED otherwise, also on a full cluster. The request's directory may be empty.
        """

    @abstractmethod
    def submit(self, request: JobRequest) -> Submission:
        """Submit the script at `request.script`. Never raises: the result reports failures."""

    @abstractmethod
    def jobs(self) -> tuple[JobSnapshot, ...]:
        """Return all of the user's jobs that the controller knows, ended ones included, with one squeue."""

    @abstractmethod
    def jobs_on(self, nodes: Sequence[str]) -> tuple[JobSnapshot, ...]:
        """Return all users' jobs that hold one of these nodes, or have held it and are not yet forgotten, as `jobs`
        does (squeue). A site may hide other users' jobs."""

    @abstractmethod
    def describe(self, job_id: str) -> JobSnapshot | None:
        """Return one job with exit code and restarts (scontrol), or None if the controller does not know the id."""

    @abstractmethod
    def accounted_jobs(self, names: Iterable[str], since: float) -> tuple[JobSnapshot, ...] | None:
        """Return the accounting records of jobs of these names submitted since `since` (sacct); None without
        accounting.

        Only the final record of a job has `ended_at`; a record without it is still being written.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        """Cancel these jobs, each only if id, name and user still match. Return the ids of those that may still run.

        A job that has already ended is not an error.
        """
