"""Accounts, QOS and their limits as sacctmgr prints them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from slurm.field_parsers import clock_s, limit
from slurm.job_state import JobSnapshot
from slurm.request import JobOptions

ASSOCIATION_FORMAT = "Cluster,Account,Partition,QOS,DefaultQOS,MaxJobs,MaxSubmit,MaxWall"
QOS_FORMAT = "Name,Flags,MaxWall,MaxJobsPU,MaxSubmitPU,MaxTRES,UsageFactor"


@dataclass(frozen=True)
class Association:
    """A user's limits under one account, in one partition or, where that is None, in all.

    A missing limit is infinite. `max_submit` counts pending and running jobs, `max_jobs` running ones.
    """

    account: str
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None
    max_jobs: float = math.inf
    max_submit: float = math.inf
    max_wall_s: float = math.inf


@dataclass(frozen=True)
class Qos:
    """A quality of service (QOS) and its limits.

    A QOS that overrides a limit of the partition (MaxTime, MaxNodes, MinNodes) puts its own in its place. The limits of
    the partition's QOS come before those of the job's, unless the latter `overrides_partition_qos`. `max_nodes` and
    `max_gpus` are per job. Usage is counted `usage_factor` times.
    """

    name: str
    overrides_max_time: bool = False
    overrides_max_nodes: bool = False
    overrides_min_nodes: bool = False
    overrides_partition_qos: bool = False
    max_wall_s: float = math.inf
    max_jobs: float = math.inf
    max_submit: float = math.inf
    max_nodes: float = math.inf
    max_gpus: float = math.inf
    usage_factor: float = 1.0


@dataclass(frozen=True)
class AssociationLimits:
    """The user's associations with the cluster, () where accounting has none, and all QOS of the cluster."""

    associations: tuple[Association, ...] = ()
    all_qos: tuple[Qos, ...] = ()

    def associations_for(self, options: JobOptions) -> tuple[Association, ...]:
        """Return the associations under which a job with these options would run, of every account if none is named."""
        account, named = normalized_name(options.account or ""), (options.partition or "").split(",")
        return tuple(
            association
            for association in self.associations
            if (not account or association.account == account)
            and (association.partition is None or association.partition in named)
        )

    def qos(self, name: str | None) -> Qos | None:
        """Return the QOS of this name, or None."""
        return next((quality for quality in self.all_qos if quality.name == normalized_name(name or "")), None)

    def qos_for(self, options: JobOptions) -> Qos | None:
        """Return the QOS that the options name, else the account's default where all associations agree on one."""
        defaults = {association.default_qos for association in self.associations_for(options)}
        default = defaults.pop() if len(defaults) == 1 else None
        return self.qos(options.qos or default)


def billing_with_factor(job: JobSnapshot, limits: AssociationLimits | None) -> float | None:
    """Return what the job is billed in an hour: its billing units, times the usage factor of its QOS.

    `limits` is None without accounting, where there are no QOS. None where the units or the QOS are not known.
    """
    if job.billing is None or limits is None:
        return job.billing
    qos = limits.qos(job.qos)
    return None if qos is None else qos.usage_factor * job.billing


def normalized_name(name: str) -> str:
    """Return an account or QOS in lower case, as accounting stores it: Slurm ignores case."""
    return name.lower()


def parse_associations(stdout: str, cluster: str) -> tuple[Association, ...]:
    """Parse rows of ASSOCIATION_FORMAT of this cluster; other lines are skipped."""
    return tuple(
        Association(
            account=account,
            partition=partition or None,
            qos=tuple(name for name in qos.split(",") if name),
            default_qos=default or None,
            max_jobs=limit(jobs),
            max_submit=limit(submit),
            max_wall_s=clock_s(wall),
        )
        for of, account, partition, qos, default, jobs, submit, wall in _rows(stdout, ASSOCIATION_FORMAT)
        if of == cluster and account
    )


def parse_qos(stdout: str) -> tuple[Qos, ...]:
    """Parse rows of QOS_FORMAT."""
    return tuple(
        Qos(
            name=name,
            overrides_max_time="PartitionTimeLimit" in flags.split(","),
            overrides_max_nodes="PartitionMaxNodes" in flags.split(","),
            overrides_min_nodes="PartitionMinNodes" in flags.split(","),
            overrides_partition_qos="OverPartQOS" in flags.split(","),
            max_wall_s=clock_s(wall),
            max_jobs=limit(jobs),
            max_submit=limit(submit),
            max_nodes=_resource(resources, "node"),
            max_gpus=_resource(resources, "gres/gpu"),
            usage_factor=_factor(usage),
        )
        for name, flags, wall, jobs, submit, resources, usage in _rows(stdout, QOS_FORMAT)
        if name
    )


def _rows(stdout: str, format: str) -> Iterator[list[str]]:
    rows = (line.split("|") for line in stdout.split("\n"))
    return (row for row in rows if len(row) == format.count(",") + 1)


def _factor(text: str) -> float:
    """Parse a usage factor; 1, which is Slurm's default, where it is no number."""
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 1.0


def _resource(text: str, name: str) -> float:
    """Return the count of a trackable resource in `cpu=4,gres/gpu=2,node=1`."""
    counts = dict(resource.partition("=")[::2] for resource in text.split(","))
    return limit(counts.get(name, ""))
