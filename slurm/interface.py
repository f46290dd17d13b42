"""Slurm as Parlay sees it: its questions and its requests. Implemented by the real client and by FakeSlurm."""

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
    """Slurm, or one part of it, did not answer: nothing is known, and nothing was changed as far as can be told."""


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
    """The answer to a submission; `message` are Slurm's own, "" where it said nothing."""

    status: SubmitStatus
    job_id: str | None = None
    message: str = ""


@dataclass(frozen=True)
class SlurmSettings:
    """What the cluster's configuration says of time; seconds. Defaults are Slurm's own (slurm.conf(5)).

    A job may run `over_time_limit_s` beyond its limit, or as long as its partition says instead, is looked at once a
    minute, and has `kill_wait_s` between SIGTERM and SIGKILL. An ended job is forgotten by squeue and scontrol
    `min_job_age_s` after its end. Without `enforces_limits` a job beyond its partition's limits is accepted, and waits
    for ever.
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
        """Seconds for which a job may run beyond its limit at most, in the partition, or any of several with commas."""
        names = (partition or self.default_partition).split(",")
        return max(self.partition_over_times_s.get(name, self.over_time_limit_s) for name in names)


class Slurm(ABC):
    """One cluster, as one user. No method waits longer than its own time limit; all raise SlurmUnreachable."""

    user: str

    @abstractmethod
    def now(self) -> float:
        """UTC seconds since the epoch, on this cluster's clock."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds of a clock that nobody sets: what passes is measured with it."""

    @abstractmethod
    def settings(self) -> SlurmSettings:
        """The cluster's configuration."""

    @abstractmethod
    def partitions(self) -> tuple[PartitionSnapshot, ...]:
        """All partitions, hidden ones too, as they are now (scontrol)."""

    @abstractmethod
    def nodes(self) -> tuple[NodeSnapshot, ...]:
        """All nodes as they are now, one for each partition that a node is in (sinfo)."""

    @abstractmethod
    def association_limits(self) -> AssociationLimits | None:
        """What accounting lets the user have: accounts, QOS and their limits (sacctmgr); None without accounting."""

    def beyond_limits(self, request: JobRequest, partitions: Sequence[PartitionSnapshot]) -> str | None:
        """Why none of these partitions ever starts the job, unless the QOS that it would run under, a default one also,
        lifts that limit. Of one that is named and not known, Slurm itself tells what is wrong with it."""
        if (message := beyond_limits(request, partitions)) is None:
            return None
        qos = None
        with suppress(SlurmUnreachable):
            association_limits = self.association_limits()
            qos = None if association_limits is None else association_limits.qos_of(request.options)
        if qos is None:
            return message if request.options.qos is None else None
        return beyond_limits(request, partitions, qos)

    @abstractmethod
    def test(self, request: JobRequest) -> Submission:
        """What would become of this request, in Slurm's own words and without a job id.

        REFUSED for one that would never run; BUSY where it would wait for what only the site's people can end: a
        partition that is closed, nodes that are down or drained; ACCEPTED for all others, also on a full cluster.
        Nothing is submitted, and nothing has to lie in the request's directory.
        """

    @abstractmethod
    def submit(self, request: JobRequest) -> Submission:
        """Submit the script that lies at `request.script`. Never raises: what went wrong is in the answer."""

    @abstractmethod
    def jobs(self) -> tuple[JobSnapshot, ...]:
        """All of the user's jobs that the controller remembers, ended ones included: one question (squeue)."""

    @abstractmethod
    def describe(self, job_id: str) -> JobSnapshot | None:
        """One job in full, exit code and restarts included (scontrol); None for an id the controller does not know."""

    @abstractmethod
    def accounted_jobs(self, names: Iterable[str], since: float) -> tuple[JobSnapshot, ...] | None:
        """What accounting holds of jobs of these names submitted since then (sacct); None where there is no accounting.

        Only the final record of a job has `ended_at`: one without it is still being written.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[JobSnapshot]) -> set[str]:
        """Cancel these jobs, each only if id, name and user still match; returns the ids of those that may still run.

        A job that has already ended is no failure.
        """
