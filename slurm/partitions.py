"""Partitions as scontrol shows them, and the limits that a request exceeds. Pure.

Where EnforcePartLimits is NO, sbatch and its test accept a job beyond its partition's limits, which then stays pending
for ever. Only these limits reveal it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm.association_limits import Qos, normalized_name
from slurm.field_parsers import clock_s, field_of, limit, whole_number
from slurm.request import JobRequest

NO_OVERRIDES = Qos("")

_EVERYBODY = {"", "ALL", "(null)", "NONE", "N/A"}


@dataclass(frozen=True)
class PartitionSnapshot:
    """One partition. `state_text` is Slurm's word: UP where jobs are accepted and started.

    A missing limit is infinite. `over_time_s` is how long a job may run beyond its limit, None for the cluster's
    default. `allowed_*` is None where everybody is allowed. `qos` is the partition's own, whose limits apply to all of
    its jobs.
    """

    name: str
    is_default: bool = False
    state_text: str = "UP"
    max_time_s: float = math.inf
    min_nodes: int = 0
    max_nodes: float = math.inf
    num_nodes: int | None = None
    over_time_s: float | None = None
    allowed_accounts: tuple[str, ...] | None = None
    denied_accounts: tuple[str, ...] = ()
    allowed_qos: tuple[str, ...] | None = None
    denied_qos: tuple[str, ...] = ()
    allowed_groups: tuple[str, ...] | None = None
    qos: str | None = None
    has_whole_nodes: bool = False

    def allows_account(self, name: str) -> bool:
        return _allows(name, self.allowed_accounts, self.denied_accounts)

    def allows_qos(self, name: str) -> bool:
        return _allows(name, self.allowed_qos, self.denied_qos)


def _allows(name: str, allowed: Sequence[str] | None, denied: Sequence[str]) -> bool:
    wanted = normalized_name(name)
    return wanted not in map(normalized_name, denied) and (allowed is None or wanted in map(normalized_name, allowed))


def parse_partitions(stdout: str) -> tuple[PartitionSnapshot, ...]:
    """Parse `scontrol --oneliner show partition`; other lines are skipped."""
    return tuple(partition for line in stdout.split("\n") if (partition := _partition(line)) is not None)


def default_partition(partitions: Iterable[PartitionSnapshot]) -> str:
    """Return the name of the default partition, or ""."""
    return next((partition.name for partition in partitions if partition.is_default), "")


def named_partitions(request: JobRequest, partitions: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
    """Return the partitions that the request names, else the default one; unknown names are skipped."""
    if request.options.partition is None:
        return [partition for partition in partitions if partition.is_default]
    names = request.options.partition.split(",")
    return [partition for partition in partitions if partition.name in names]


def beyond_limits(request: JobRequest, partitions: Sequence[PartitionSnapshot], qos: Qos = NO_OVERRIDES) -> str | None:
    """Return why none of these partitions would ever start the job, with Slurm's name of the reason; None where one
    may.

    `qos` is the job's.
    """
    found = [_beyond(request, partition, qos) for partition in partitions]
    faults = [fault for fault in found if fault is not None]
    if not faults or len(faults) < len(found):
        return None
    return f"{faults[0].reason}: the job would stay pending for ever; {', '.join(fault.message for fault in faults)}"


@dataclass(frozen=True)
class _Fault:
    reason: str
    message: str


def _beyond(request: JobRequest, partition: PartitionSnapshot, qos: Qos) -> _Fault | None:
    if request.time_limit_min * 60 > partition.max_time_s and not qos.overrides_max_time:
        longest = f"partition {partition.name} allows at most {partition.max_time_s / 60:g} minutes"
        return _Fault("PartitionTimeLimit", longest)
    if request.num_nodes > partition.max_nodes and not qos.overrides_max_nodes:
        most = f"partition {partition.name} allows at most {partition.max_nodes:g} nodes"
        return _Fault("PartitionNodeLimit", most)
    if request.num_nodes < partition.min_nodes and not qos.overrides_min_nodes:
        return _Fault("PartitionNodeLimit", f"partition {partition.name} needs at least {partition.min_nodes} nodes")
    return None


def _partition(line: str) -> PartitionSnapshot | None:
    name = re.match(r"PartitionName=(\S+)", line)
    if name is None:
        return None
    return PartitionSnapshot(
        name=name[1],
        is_default=field_of(line, "Default") == "YES",
        state_text=field_of(line, "State"),
        max_time_s=clock_s(field_of(line, "MaxTime")),
        min_nodes=int(limit(field_of(line, "MinNodes"), none=0)),
        max_nodes=limit(field_of(line, "MaxNodes")),
        num_nodes=whole_number(field_of(line, "TotalNodes")),
        over_time_s=_over_time_s(field_of(line, "OverTimeLimit")),
        allowed_accounts=_names(field_of(line, "AllowAccounts")),
        denied_accounts=_names(field_of(line, "DenyAccounts")) or (),
        allowed_qos=_names(field_of(line, "AllowQos")),
        denied_qos=_names(field_of(line, "DenyQos")) or (),
        allowed_groups=_names(field_of(line, "AllowGroups")),
        qos=(_names(field_of(line, "QoS")) or (None,))[0],
        has_whole_nodes=field_of(line, "OverSubscribe") == "EXCLUSIVE",
    )


def _names(text: str) -> tuple[str, ...] | None:
    return None if text in _EVERYBODY else tuple(text.split(","))


def _over_time_s(text: str) -> float | None:
    """Parse minutes or UNLIMITED; None for NONE, where the cluster's default applies."""
    if text == "UNLIMITED":
        return math.inf
    minutes = whole_number(text)
    return None if minutes is None else 60.0 * minutes
