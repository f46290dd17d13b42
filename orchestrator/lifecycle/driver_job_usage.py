"""Node-hours of the Slurm jobs that drive a search: its own job, and those that earlier drivers ran in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from orchestrator.search.own_job import OwnJob
from slurm.billing import billing_with_factor
from slurm.driver_script import DRIVER_SUFFIX
from slurm.interface import Slurm, SlurmUnreachable
from slurm.job_state import JobSnapshot
from trials.ledger.events import DriverJobUsage, SearchRecord

_log = logging.getLogger(__name__)

WHOLE_NODE = 1.0
"""Share that is booked where Slurm does not report the CPUs."""


def job_name(search_id: str) -> str:
    """Name of every job that drives the search."""
    return f"{search_id}{DRIVER_SUFFIX}"


def own_job(slurm: Slurm, job_id: str, environ: Mapping[str, str]) -> OwnJob:
    """The job that this process runs in; it counts from now on where Slurm does not answer."""
    found, billing, now = None, None, slurm.now()
    with suppress(SlurmUnreachable):
        found = slurm.describe(job_id)
        billing = None if found is None else billing_with_factor(found, slurm.association_limits())
    started_at = None if found is None else found.started_at
    return OwnJob(job_id, now if started_at is None else started_at, _node_share(slurm, environ), billing)


def _node_share(slurm: Slurm, environ: Mapping[str, str]) -> float:
    """Fraction of its node that the job holds: its CPUs of those of the node."""
    cpus = environ.get("SLURM_CPUS_ON_NODE", "")
    try:
        of_node = next(node.cpus for node in slurm.nodes() if node.name == environ.get("SLURMD_NODENAME"))
    except (SlurmUnreachable, StopIteration):
        return WHOLE_NODE
    return min(WHOLE_NODE, int(cpus) / of_node) if cpus.isdecimal() and of_node > 0 else WHOLE_NODE


def usage_of_ended_jobs(slurm: Slurm, search: SearchRecord, own: OwnJob | None) -> dict[str, DriverJobUsage]:
    """Usage of the search's driver's jobs that have ended, by id, where it differs from the record.

    A job that ended before its driver recorded anything, such as one that waited for the lease, held as much of a node
    as the others. Jobs that Slurm does not know any more keep what their drivers recorded.
    """
    name = job_name(search.search_id)
    try:
        accounted = slurm.accounted_jobs([name], search.created_at) or ()
        jobs = [*accounted, *slurm.jobs()]
        limits = slurm.association_limits()
    except SlurmUnreachable as error:
        _log.warning(f"node-hours of earlier drivers' jobs are counted as far as they recorded them: {error}")
        return {}
    known = search.driver_jobs
    share = own.node_share if own else max((job.node_share for job in known.values()), default=WHOLE_NODE)
    billing = {job.job_id: billing_with_factor(job, limits) for job in accounted}
    found: dict[str, DriverJobUsage] = {}
    for job in jobs:
        if (job.name, job.user) == (name, slurm.user) and (held_s := _held_s(job)) is not None:
            node_share = known[job.job_id].node_share if job.job_id in known else share
            units = billing.get(job.job_id) or _recorded_billing(known.get(job.job_id))
            billed_hours = None if units is None else units * held_s / 3600
            found[job.job_id] = DriverJobUsage(node_share, node_share * held_s / 3600, billed_hours)
    return {job_id: usage for job_id, usage in found.items() if known.get(job_id) != usage}


def _recorded_billing(usage: DriverJobUsage | None) -> float | None:
    """Billing units of the job, by the record of its driver."""
    if usage is None or usage.billed_hours is None or not usage.node_hours:
        return None
    return usage.billed_hours / (usage.node_hours / usage.node_share)


def _held_s(job: JobSnapshot) -> float | None:
    """Seconds that an ended job held its CPUs; None for one that never started, or has not ended."""
    if job.started_at is None or job.ended_at is None or not job.nodes:
        return None
    return max(0.0, job.ended_at - job.started_at)
