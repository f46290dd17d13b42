"""Preemption of jobs: which others may take their nodes, and what then happens to them. Pure.

Rules: slurm.conf(5), PreemptType and PreemptMode, and https://slurm.schedmd.com/preempt.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm.association_limits import AssociationLimits
from slurm.interface import PreemptsBy, SlurmSettings
from slurm.partitions import PartitionSnapshot, named_partitions
from slurm.request import JobRequest

_OFF = "OFF"
_OF_CLUSTER = "cluster"


@dataclass(frozen=True)
class Preemption:
    """Preemption that a job may suffer from jobs of the partitions or QOS `preemptors`.

    `mode` is Slurm's word for what happens to it, `grace_time_s` after the decision: CANCEL, REQUEUE (which cancels a
    job with --no-requeue) or SUSPEND.
    """

    by: PreemptsBy
    preemptors: tuple[str, ...]
    mode: str
    grace_time_s: float

    @property
    def suspends(self) -> bool:
        """True if a preempted job stays on its nodes and goes on later."""
        return "SUSPEND" in self.mode


def preemption_of(
    request: JobRequest,
    settings: SlurmSettings,
    partitions: Sequence[PartitionSnapshot],
    limits: AssociationLimits | None,
) -> Preemption | None:
    """Return the preemption that the job may suffer; None for none, or where its QOS is not known.

    Of several partitions that the job names, the first that is preempted counts.
    """
    if settings.preempts_by is PreemptsBy.QOS:
        return _by_qos(request, settings, limits)
    if settings.preempts_by is PreemptsBy.PARTITION:
        named = named_partitions(request, partitions)
        return next((found for each in named if (found := _by_partition(each, partitions)) is not None), None)
    return None


def _by_partition(partition: PartitionSnapshot, partitions: Sequence[PartitionSnapshot]) -> Preemption | None:
    shared = set(partition.nodes)
    higher = (other for other in partitions if other.priority_tier > partition.priority_tier)
    names = tuple(other.name for other in higher if shared.intersection(other.nodes))
    if not names or partition.preempt_mode == _OFF:
        return None
    return Preemption(PreemptsBy.PARTITION, names, partition.preempt_mode, partition.grace_time_s)


def _by_qos(request: JobRequest, settings: SlurmSettings, limits: AssociationLimits | None) -> Preemption | None:
    qos = None if limits is None else limits.qos_for(request.options)
    if limits is None or qos is None:
        return None
    names = tuple(other.name for other in limits.all_qos if qos.name in other.preempts)
    mode = settings.preempt_mode if qos.preempt_mode == _OF_CLUSTER else qos.preempt_mode.upper()
    return None if not names or mode == _OFF else Preemption(PreemptsBy.QOS, names, mode, qos.grace_time_s)
