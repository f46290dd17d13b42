"""Compares the smallest and the largest job of a search with limits of partitions, nodes, accounts and QOS.

`sbatch --test-only` is used too, but it accepts a job of two hours on a partition of one hour if limits are not
enforced, and does not name the limit that applies. So every limit that can be compared is compared here.
"""

from __future__ import annotations

import grp
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter

from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.diagnostics.doctor.finding import Finding, Severity, error, note, ok, warning
from orchestrator.diagnostics.doctor.slurm import site_findings
from orchestrator.diagnostics.preflight.slurm_site import (
    describe_option,
    describe_request,
    refusal_problem,
    smallest_and_largest,
    tested_job,
)
from search_spaces.errors import InputError
from search_spaces.search_space import SearchSpace
from slurm.association_limits import Association, AssociationLimits, Qos, normalized_name
from slurm.hostlist import compress
from slurm.interface import Slurm, SlurmUnreachable, SubmitStatus
from slurm.nodes import (
    NodeSnapshot,
    Resource,
    cpus_requested,
    gpus_requested,
    shortages,
    usable_nodes,
    wait_reason,
)
from slurm.option_checks import option_warnings
from slurm.partitions import NO_OVERRIDES, PartitionSnapshot, beyond_limits, named_partitions
from slurm.request import JobOptions, JobRequest

_FIXES = {
    Resource.NODES: "lower constraints.max_nodes or space.num_nodes, or name another partition",
    Resource.CPUS: "lower launcher.slurm.cpus_per_task or cluster.gpus_per_node, or name another partition",
    Resource.MEMORY: "lower launcher.slurm.mem; 0 is all that a node has",
    Resource.GPUS: "see what sinfo --format=%G shows: cluster.gpus_per_node, launcher.slurm.gres, another partition",
}
_FAMILIES = (
    *("v100", "t4", "a40", "a100", "h100", "h200", "gh200", "b200", "b300", "gb200", "gb300"),
    *("mi250", "mi300x", "mi325x", "mi350x", "mi355x"),
)
"""Accelerator families, which also occur in sites' GPU names."""


_WALL, _NODES, _GPUS = attrgetter("max_wall_s"), attrgetter("max_nodes"), attrgetter("max_gpus")
_SUBMIT, _RUNNING = attrgetter("max_submit"), attrgetter("max_jobs")
"""Limits of a Qos."""


@dataclass(frozen=True)
class _QosLimit:
    """A limit, and the QOS that sets it."""

    value: float = math.inf
    qos: str = ""


@dataclass(frozen=True)
class SlurmSnapshot:
    """Slurm's answers, each queried once. `association_limits` is None without accounting."""

    partitions: tuple[PartitionSnapshot, ...]
    nodes: tuple[NodeSnapshot, ...]
    association_limits: AssociationLimits | None

    @classmethod
    def query(cls, slurm: Slurm) -> SlurmSnapshot:
        """Query Slurm. Raises SlurmUnreachable if the controller does not answer."""
        association_limits = None
        with suppress(SlurmUnreachable):
            association_limits = slurm.association_limits()
        return cls(slurm.partitions(), slurm.nodes(), association_limits)


def check_jobs(slurm: Slurm, spec: SearchSpec, space: SearchSpace) -> Iterator[Finding]:
    """Check the search's jobs against everything that Slurm reports."""
    cluster, requests = SlurmSnapshot.query(slurm), list(smallest_and_largest(spec, space))
    options, section, jobs = requests[0].options, spec.launcher.slurm, spec.search.parallel_trials
    partitions = list(partition_findings(options, requests[0], cluster))
    yield from partitions
    entered = named_partitions(_in_open_partitions(requests[0], cluster), cluster.partitions)
    yield from account_findings(options, cluster)
    yield from gpu_kind_findings(spec.cluster.accelerator.name, requests[0], cluster)
    if not any(finding.level is Severity.ERROR for finding in partitions):  # Slurm would only repeat them
        for request in requests:
            may_run = _in_open_partitions(request, cluster)
            yield from job_findings(may_run, cluster, is_smallest=request is requests[0])
            faults = list(_limit_errors(may_run, cluster))
            yield from faults or test_findings(slurm, request, spec)
    yield from sharing_findings(requests[0], cluster)
    if spec.launcher.kind == "slurm":  # a pilot's trials are not jobs
        yield from parallel_findings(jobs, options, entered, cluster)
    for risk in option_warnings(options):
        yield warning("environment", describe_option(risk), risk.fix)
    found = named_partitions(requests[-1], cluster.partitions)
    yield from site_findings(section, requests[-1], jobs, found, cluster.nodes)


def partition_findings(options: JobOptions, request: JobRequest, cluster: SlurmSnapshot) -> Iterator[Finding]:
    """Check that the partitions exist, are up and admit the user."""
    known = ", ".join(partition.name for partition in cluster.partitions) or "none"
    found = named_partitions(request, cluster.partitions)
    fix = f"set launcher.slurm.partition to one of: {known}"
    missing = set((options.partition or "").split(",")) - {partition.name for partition in found} - {""}
    if missing:
        yield error("partition", f"there is no partition {', '.join(sorted(missing))}", fix)
    elif not found:
        yield error("partition", "no partition is set, and Slurm has no default partition", fix)
    yield from _closed_findings(found, options, fix)
    if found and not missing:
        yield ok("partition", f"{', '.join(map(_format_partition, found))}")


def account_findings(options: JobOptions, cluster: SlurmSnapshot) -> Iterator[Finding]:
    """Check the account and the QOS of the jobs against the user's associations."""
    association_limits = cluster.association_limits
    if association_limits is None:
        return
    accounts = list(dict.fromkeys(association.account for association in association_limits.associations))
    fix = "name one of yours as launcher.slurm.account: sacctmgr show associations user=$USER"
    if not accounts:
        yield note(
            "account", "accounting has no association of yours", "ask the site for an account, if it requires one"
        )
    elif options.account is not None and normalized_name(options.account) not in accounts:
        yield warning("account", f"{options.account} is not one of your accounts ({', '.join(accounts)})", fix)
    elif options.account is None and len(accounts) > 1:
        yield note("account", f"no account is set, so your default account of {', '.join(accounts)} is charged", fix)
    else:
        yield ok("account", f"{options.account or accounts[0]} is charged")
    if options.qos is not None:
        yield _qos_finding(
            options.qos, association_limits.associations_for(replace(options, partition=None)), association_limits
        )


def gpu_kind_findings(accelerator: str, request: JobRequest, cluster: SlurmSnapshot) -> Iterator[Finding]:
    """Compare the GPU types of the nodes with cluster.accelerator, if their names show one."""
    partitions = {partition.name for partition in named_partitions(request, cluster.partitions)}
    kinds = {kind for node in cluster.nodes if node.partition in partitions for kind in node.gpu_kinds}
    wanted, found = (
        _accelerator_family(accelerator),
        {family for kind in kinds if (family := _accelerator_family(kind)) is not None},
    )
    if wanted is None or not found:
        return
    if wanted in found:
        yield ok("accelerator", f"the nodes' GPUs are {', '.join(sorted(kinds))}")
    else:
        words = f"cluster.accelerator is {accelerator}, the nodes' GPUs are {', '.join(sorted(kinds))}"
        yield error("accelerator", words, "set cluster.accelerator to what the nodes have, or name another partition")


def job_findings(request: JobRequest, cluster: SlurmSnapshot, is_smallest: bool) -> Iterator[Finding]:
    """Check that enough nodes that fit this job are up."""
    if shortages(request, cluster.nodes):
        return
    if (words := wait_reason(request, cluster.nodes)) is None:
        yield ok("nodes_up", f"{describe_request(request)}: enough nodes are up")
        return
    found = f"{describe_request(request)} waits for {words}"
    fix = "ask the site when they are back (sinfo --list-reasons), or search on fewer nodes: constraints.max_nodes"
    yield error("nodes_up", f"{found}; no trial can start", fix) if is_smallest else warning("nodes_up", found, fix)


def test_findings(slurm: Slurm, request: JobRequest, spec: SearchSpec) -> Iterator[Finding]:
    """Result of sbatch --test-only for a job without known errors."""
    request, tested = tested_job(request, slurm)
    if tested.status is SubmitStatus.REFUSED:
        problem = with_locations(InputError(refusal_problem(request, tested.message, spec)), spec).problems[0]
        where = f"{problem.key}: " if problem.key else ""
        yield error("sbatch", f"{where}{problem.message}", problem.fix or "ask for what sinfo shows")
    elif tested.status is SubmitStatus.ACCEPTED:
        yield ok("sbatch", f"{describe_request(request)}: sbatch --test-only takes it")


def sharing_findings(request: JobRequest, cluster: SlurmSnapshot) -> Iterator[Finding]:
    """Warn where Slurm may start a second job like this one on the same node."""
    shared = {each.name for each in named_partitions(request, cluster.partitions) if not each.has_whole_nodes}
    cpus, gpus = cpus_requested(request), gpus_requested(request)
    nodes = [node for node in usable_nodes(request, cluster.nodes) if node.partition in shared]
    roomy = {node.name for node in nodes if node.cpus >= 2 * cpus and node.gpus >= 2 * gpus}
    if roomy and request.options.exclusive is not True:
        words = f"another job of this search, or of another one, may share a node with a trial ({compress(roomy)})"
        fix = "set launcher.slurm.exclusive: true; a trial that had company is flagged shared_node"
        yield warning("exclusive", f"{describe_request(request)}: {words}", fix)


def parallel_findings(
    parallel_trials: int, options: JobOptions, partitions: Sequence[PartitionSnapshot], cluster: SlurmSnapshot
) -> Iterator[Finding]:
    """Compare search.parallel_trials with the user's limits on jobs."""
    submit, running = _most_jobs(options, partitions, cluster)
    if parallel_trials > submit:
        words = f"search.parallel_trials is {parallel_trials}, your limit is {submit:g} queued jobs"
        yield warning("parallel_trials", words, f"set search.parallel_trials to {submit:g}: further jobs are rejected")
    elif parallel_trials > running:
        words = f"search.parallel_trials is {parallel_trials}, your limit is {running:g} running jobs"
        yield note("parallel_trials", words, f"set search.parallel_trials to {running:g}: further jobs wait")
    elif cluster.association_limits is not None:
        yield ok("parallel_trials", f"{parallel_trials} at once are within your account's limits")


def _limit_errors(request: JobRequest, cluster: SlurmSnapshot) -> Iterator[Finding]:
    """Limits that would keep this job from ever starting."""
    partitions = named_partitions(request, cluster.partitions)
    qos = None if cluster.association_limits is None else cluster.association_limits.qos_for(request.options)
    if (words := beyond_limits(request, partitions, qos or NO_OVERRIDES)) is not None:
        time = words.startswith("PartitionTimeLimit")
        fix = (
            "lower measure.time_limit (30 s are added, for a pilot 6 minutes more, rounded up to minutes),"
            " or name another partition"
            if time
            else _FIXES[Resource.NODES]
        )
        yield error("time_limit" if time else "nodes", f"{describe_request(request)}: {words}", fix)
    for shortage in shortages(request, cluster.nodes) if partitions else ():
        yield error(
            shortage.resource.name.lower(),
            f"{describe_request(request)}: {shortage.message}",
            _FIXES[shortage.resource],
        )
    yield from _accounting_errors(request, partitions, cluster)


def _accounting_errors(
    request: JobRequest, partitions: Sequence[PartitionSnapshot], cluster: SlurmSnapshot
) -> Iterator[Finding]:
    """Limits of the QOS and the account on a single job."""
    options, other = request.options, "name another launcher.slurm.qos or partition"
    walls_s = [association.max_wall_s for association in _associations(options, cluster)]
    wall_s = _first_limit(_qos_limit(_WALL, options, partitions, cluster).value, walls_s)
    if request.time_limit_min * 60 > wall_s:
        words = f"{describe_request(request)}: your account and QOS allow {wall_s / 60:g} minutes (MaxWall)"
        yield error("time_limit", words, f"lower measure.time_limit, or {other}")
    nodes = _qos_limit(_NODES, options, partitions, cluster)
    if request.num_nodes > nodes.value:
        words = f"{describe_request(request)}: QOS {nodes.qos} allows {nodes.value:g} nodes (MaxTRES)"
        yield error("nodes", words, f"lower constraints.max_nodes, or {other}")
    asked, gpus = request.num_nodes * gpus_requested(request), _qos_limit(_GPUS, options, partitions, cluster)
    if asked > gpus.value:
        words = (
            f"{describe_request(request)}: QOS {gpus.qos} allows {gpus.value:g} GPUs (MaxTRES), {asked} are asked for"
        )
        yield error("gpus", words, f"lower constraints.max_nodes, or {other}")


def _closed_findings(found: Sequence[PartitionSnapshot], options: JobOptions, fix: str) -> Iterator[Finding]:
    """Findings for partitions that are down or not open to the user; notes if another named partition takes the
    jobs."""
    entered = [partition for partition in found if not list(_access_findings(partition, options, fix))]
    is_open = any(partition.state_text == "UP" for partition in entered)
    for partition in found:
        for finding in _down_findings(partition, fix):
            yield _as_note(finding, partition) if is_open else finding
        for finding in _access_findings(partition, options, fix):
            yield _as_note(finding, partition) if entered else finding


def _as_note(finding: Finding, partition: PartitionSnapshot) -> Finding:
    words = f"{finding.message}; other partitions of the search accept its jobs"
    return note(finding.name, words, f"nothing, or leave {partition.name} out of launcher.slurm.partition")


def _in_open_partitions(request: JobRequest, cluster: SlurmSnapshot) -> JobRequest:
    """Return the request without those of its partitions that do not admit the user."""
    named = named_partitions(request, cluster.partitions)
    entered = [partition.name for partition in named if not list(_access_findings(partition, request.options, ""))]
    if request.options.partition is None or not entered:
        return request
    return replace(request, options=replace(request.options, partition=",".join(entered)))


def _down_findings(partition: PartitionSnapshot, fix: str) -> Iterator[Finding]:
    if partition.state_text != "UP":
        words = f"partition {partition.name} is {partition.state_text}: no job starts in it"
        yield warning("partition", words, f"wait until the site opens it, or {fix}")


def _access_findings(partition: PartitionSnapshot, options: JobOptions, fix: str) -> Iterator[Finding]:
    name = partition.name
    if options.account is not None and not partition.allows_account(options.account):
        yield error("partition", f"partition {name} does not admit account {options.account}", fix)
    if options.qos is not None and not partition.allows_qos(options.qos):
        yield error("partition", f"partition {name} does not admit QOS {options.qos}", fix)
    if partition.allowed_groups is not None and not set(partition.allowed_groups) & _own_groups():
        yield error("partition", f"partition {name} is for groups {', '.join(partition.allowed_groups)}", fix)


def _qos_finding(name: str, associations: Sequence[Association], association_limits: AssociationLimits) -> Finding:
    fix = "name one that your account has: sacctmgr show associations user=$USER format=Account,QOS"
    if association_limits.qos(name) is None:
        known = ", ".join(quality.name for quality in association_limits.all_qos)
        return error("qos", f"there is no QOS {name}; there are {known}", fix)
    if associations and not any(normalized_name(name) in association.qos for association in associations):
        return warning("qos", f"none of your accounts has QOS {name}", fix)
    return ok("qos", name)


def _most_jobs(
    options: JobOptions, partitions: Sequence[PartitionSnapshot], cluster: SlurmSnapshot
) -> tuple[float, float]:
    """Limits on queued and running jobs; infinite if unlimited."""
    associations = _associations(options, cluster)
    submit, running = (_qos_limit(limit, options, partitions, cluster).value for limit in (_SUBMIT, _RUNNING))
    return (
        _first_limit(submit, [association.max_submit for association in associations]),
        _first_limit(running, [association.max_jobs for association in associations]),
    )


def _first_limit(of_qos: float, of_accounts: Sequence[float]) -> float:
    """Slurm applies the account's limit only if the QOS sets none. Of several accounts the most lenient counts."""
    return of_qos if of_qos < math.inf else max(of_accounts, default=math.inf)


def _associations(options: JobOptions, cluster: SlurmSnapshot) -> tuple[Association, ...]:
    return () if cluster.association_limits is None else cluster.association_limits.associations_for(options)


def _qos_limit(
    limit: Callable[[Qos], float], options: JobOptions, partitions: Sequence[PartitionSnapshot], cluster: SlurmSnapshot
) -> _QosLimit:
    """Limit by QOS: the first QOS that sets it counts; of several partitions the most lenient."""
    orders = [_qos_by_precedence(partition.qos, options, cluster) for partition in partitions]
    limits = [
        next((_QosLimit(limit(q), q.name) for q in order if limit(q) < math.inf), _QosLimit()) for order in orders
    ]
    return max(limits, key=lambda most: most.value, default=_QosLimit())


def _qos_by_precedence(of_partition: str | None, options: JobOptions, cluster: SlurmSnapshot) -> list[Qos]:
    """QOS of a job in a partition with this QOS, in Slurm's order of precedence."""
    if cluster.association_limits is None:
        return []
    of_job, own = cluster.association_limits.qos_for(options), cluster.association_limits.qos(of_partition)
    order = (of_job, own) if of_job is not None and of_job.overrides_partition_qos else (own, of_job)
    return [qos for qos in order if qos is not None]


def _format_partition(partition: PartitionSnapshot) -> str:
    nodes = "" if partition.num_nodes is None else f", {partition.num_nodes} nodes"
    longest = "no limit" if partition.max_time_s == math.inf else f"{partition.max_time_s / 60:g} minutes at most"
    return f"{partition.name} ({partition.state_text}{nodes}, {longest})"


def _accelerator_family(name: str) -> str | None:
    """Accelerator family in the name, matched as a word: `nvidia_a100_80gb` is an a100, not an a10."""
    lowered = name.lower()
    return next((f for f in _FAMILIES if re.search(rf"(?<![a-z0-9]){f}(?![0-9])", lowered)), None)


def _own_groups() -> set[str]:
    names = set()
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):
            names.add(grp.getgrgid(number).gr_name)
    return names
