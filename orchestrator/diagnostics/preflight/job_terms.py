"""Terms on which Slurm runs the jobs of a search: what a node-hour is billed, and whether others preempt them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.slurm_site import smallest_and_largest
from search_spaces.search_space import SearchSpace
from slurm.billing import BillingRules, job_billing
from slurm.client import SlurmClient
from slurm.interface import Slurm, SlurmSettings
from slurm.partitions import PartitionSnapshot, named_partitions
from slurm.preemption import Preemption, PreemptsBy, preemption_of
from trials.failure_policy import policy_of
from trials.trial import FailureReason

_TIMEOUT_S = 5.0
"""Longest wait for each of Slurm's commands: a plan also works without them."""


@dataclass(frozen=True)
class JobTerms:
    """Terms of the partitions that the search's largest jobs may run in.

    `billed_per_node_hour` are billing hours of a node-hour, the most of these partitions, with the QOS's
    `usage_factor`; None where the QOS is not known. `preemption` is None where no other job takes their nodes.
    """

    partitions: tuple[str, ...]
    billed_per_node_hour: float | None
    usage_factor: float | None
    preemption: Preemption | None

    def billed_hours(self, node_hours: float | None) -> float | None:
        """Billing hours of so many node-hours."""
        unknown = node_hours is None or self.billed_per_node_hour is None
        return None if unknown else self.billed_per_node_hour * node_hours  # type: ignore[operator]


def job_terms(spec: SearchSpec, space: SearchSpace, slurm: Slurm | None = None) -> JobTerms | None:
    """Return the terms; None for a launcher without Slurm. Raises SlurmUnreachable."""
    if not spec.launcher.uses_slurm:
        return None
    slurm = SlurmClient(timeout_s=_TIMEOUT_S) if slurm is None else slurm
    request = list(smallest_and_largest(spec, space))[-1]
    settings, partitions = slurm.settings(), slurm.partitions()
    named = named_partitions(request, partitions)
    if not named:
        return None
    limits, nodes = slurm.association_limits(), slurm.nodes()
    factor = 1.0 if limits is None else limits.usage_factor_for(request.options)
    whole = request.options.exclusive is True
    billed = [job_billing(request, nodes, _rules(each, settings), whole or each.has_whole_nodes) for each in named]
    return JobTerms(
        partitions=tuple(each.name for each in named),
        billed_per_node_hour=None if factor is None else factor * max(billed) / request.num_nodes,
        usage_factor=factor,
        preemption=preemption_of(request, settings, partitions, limits),
    )


def describe_preemption(preemption: Preemption, partitions: Sequence[str]) -> str:
    """Sentence on the jobs that may be preempted, by which others, and what follows."""
    by = f"{'partition' if preemption.by is PreemptsBy.PARTITION else 'QOS'} {', '.join(preemption.preemptors)}"
    retries = policy_of(FailureReason.PREEMPTED).retries
    follows = f"a trial has no checkpoint and starts again, at most {retries:g} times, and its lost runs count"
    if preemption.suspends:
        follows = "a suspended trial goes on later and measures the pause"
    return (
        f"jobs in {','.join(partitions)} may be preempted by those of {by} (PreemptMode {preemption.mode},"
        f" {preemption.grace_time_s:g} s of grace): {follows}"
    )


def _rules(partition: PartitionSnapshot, settings: SlurmSettings) -> BillingRules:
    return BillingRules(
        partition.billing_weights,
        takes_max="MAX_TRES" in settings.priority_flags,
        adds_gres="MAX_TRES_GRES" in settings.priority_flags,
        tracks_memory=settings.tracks_memory,
    )
