"""Checks of Slurm: commands, configuration, controller, accounting, blocks, and what a site's profile says of it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from orchestrator.config.schema.slurm import SlurmSection
from orchestrator.config.site import PartitionLimits, load_profile, site_remarks
from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning
from orchestrator.diagnostics.preflight.slurm_site import slurm_unreachable_error
from orchestrator.launchers.factory import poll_interval_s
from search_spaces.hardware.cluster import Cluster
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable
from slurm.nodes import NodeSnapshot
from slurm.partitions import PartitionSnapshot
from slurm.request import JobRequest

COMMANDS = ("sbatch", "squeue", "scontrol", "sinfo", "scancel")
OLDEST_VERSION = (20, 11)
"""First version with srun --exact."""

_MUNGE = "munge"
_KEY = "launcher.slurm.segment"


def check_slurm(slurm: Slurm, environ: Mapping[str, str], wanted_poll_interval_s: float | None) -> Iterator[Finding]:
    """Check the Slurm of this environment; stops at the first failure. The interval is the search file's, None if
    unset."""
    missing = [command for command in COMMANDS if shutil.which(command, path=environ.get("PATH", os.defpath)) is None]
    if missing:
        yield no_commands(missing)
        return
    yield ok("commands", f"{', '.join(COMMANDS)} are on the PATH")
    if (fault := configuration_fault(environ)) is not None:
        yield fault
        return
    try:
        settings = slurm.settings()
    except SlurmUnreachable as unreachable:
        yield unreachable_finding(unreachable)
        return
    words = f"cluster {settings.cluster_name or 'without a name'}, Slurm {settings.version or 'of an unknown version'}"
    yield ok("controller", f"{words}, responds and authenticates you")
    yield from setting_findings(settings, poll_interval_s(wanted_poll_interval_s, settings)[0])
    yield accounting_finding(slurm)


def no_commands(missing: list[str]) -> Finding:
    words = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH: Slurm cannot be used from here"
    fix = (
        "run it on a login node; or start a Slurm here: parlay slurm-sandbox start; or search on this machine"
        " alone: --launcher local"
    )
    return error("commands", words, fix)


def configuration_fault(environ: Mapping[str, str]) -> Finding | None:
    """Error if SLURM_CONF names a file that cannot be read."""
    path = environ.get("SLURM_CONF")
    if path is None or os.access(path, os.R_OK):
        return None
    fix = "set SLURM_CONF to your cluster's slurm.conf, or unset it where the site needs none"
    return error("configuration", f"SLURM_CONF is {path}, which is not a file that you can read", fix)


def unreachable_finding(unreachable: SlurmUnreachable) -> Finding:
    """Finding for a controller that does not answer. Munge failures look the same but have another fix."""
    words = str(unreachable)
    if _MUNGE in words.lower() or "authentication" in words.lower():
        fix = "check that munged runs on this machine (munge -n | unmunge) with the cluster's key and a correct clock"
        return error("munge", f"Slurm rejects the authentication: {words}", fix)
    refused = slurm_unreachable_error(unreachable)
    return error("controller", str(refused), refused.fix or "try again when scontrol ping answers")


def setting_findings(settings: SlurmSettings, interval_s: float) -> Iterator[Finding]:
    """Settings of the cluster that affect a search."""
    yield from _version_findings(settings.version)
    yield _min_job_age_finding(settings, interval_s)
    if settings.enforces_limits:
        yield ok("partition_limits", "sbatch rejects jobs beyond their partition's limits")
    else:
        words = "EnforcePartLimits is NO: sbatch accepts jobs beyond their partition's limits, which then wait forever"
        yield note("partition_limits", words, "nothing: Parlay checks the limits itself")


def accounting_finding(slurm: Slurm) -> Finding:
    """Check that sacct and sacctmgr answer."""
    try:
        association_limits = slurm.association_limits()
    except SlurmUnreachable as unreachable:
        fix = "searches work without it; report it to the site if it persists"
        return warning("accounting", f"accounting does not answer: {unreachable}", fix)
    if association_limits is None:
        fix = "nothing: outcome files and the controller show how jobs ended"
        return note("accounting", "Slurm has no accounting here, so limits of accounts are unknown", fix)
    return ok("accounting", "sacct and sacctmgr answer")


def _version_findings(text: str) -> Iterator[Finding]:
    found = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if found and found < OLDEST_VERSION:
        oldest = ".".join(f"{part:02d}" for part in OLDEST_VERSION)
        words = f"Slurm {text} is older than {oldest}, and untested with Parlay"
        yield warning(
            "version",
            words,
            "launcher.kind slurm may work; slurm_pilot needs srun --exact, which is missing",
        )


def _min_job_age_finding(settings: SlurmSettings, interval_s: float) -> Finding:
    """Compare MinJobAge with the polling interval. If the controller forgets a job between two polls, its end is known
    only from its outcome file or from sacct."""
    age_s, name = settings.min_job_age_s, "min_job_age"
    if age_s == 0:
        return ok(
            name, f"the controller never forgets an ended job (MinJobAge is 0); jobs are polled every {interval_s:g} s"
        )
    if age_s >= 2 * interval_s:
        return ok(name, f"the controller keeps an ended job for {age_s:g} s; jobs are polled every {interval_s:g} s")
    words = f"the controller forgets an ended job after {age_s:g} s (MinJobAge); jobs are polled every {interval_s:g} s"
    fix = f"lower launcher.slurm.poll_interval below {age_s / 2:g} s"
    if settings.has_accounting:
        return note(name, words, f"nothing while sacct works; else {fix}")
    return warning(name, f"{words}; without accounting its end may remain unknown", fix)


def check_blocks(slurm: Slurm, cluster: Cluster, segment: int | None) -> Iterator[Finding]:
    """Findings on the blocks that keep jobs in link domains of several nodes; none for a cluster without these.

    `segment` is that of the search file.
    """
    nodes = cluster.domain_nodes
    if nodes == 1:
        return
    blocks = slurm.blocks()
    if not blocks:
        words = f"Slurm shows no blocks (topology/block), but link domains have {nodes} nodes"
        if segment == 0:
            yield note(
                "blocks", f"{words}: a job may lie in several", f"nothing where all nodes are in one; {_KEY} is 0"
            )
            return
        fix = f"set {_KEY} to 0 where all nodes are in one link domain; else ask the site for topology/block"
        yield warning("blocks", f"{words}: it may refuse --segment, or spread jobs", fix)
    elif max(blocks) < nodes:
        words = f"the largest of {len(blocks)} blocks has {max(blocks)} nodes, but link domains have {nodes}"
        fix = f"set {_KEY} to {max(blocks)}, or num_ranks of the last of cluster.links.domains to what it has"
        yield warning("blocks", f"{words}: a job of as many nodes never starts", fix)
    else:
        size = f"{min(blocks)} to {max(blocks)}" if min(blocks) < max(blocks) else str(max(blocks))
        yield ok("blocks", f"{len(blocks)} of {size} nodes; link domains have {nodes}")


def site_findings(
    section: SlurmSection,
    request: JobRequest,
    parallel_trials: int,
    partitions: Sequence[PartitionSnapshot],
    nodes: Sequence[NodeSnapshot],
) -> Iterator[Finding]:
    """Differences between the profile of launcher.slurm.site, contributed by users, and the cluster, and remarks of the
    profile; nothing without a site.

    `request` is the largest job; `partitions` are those it may use.
    """
    if section.site is None:
        return
    profile, site = load_profile(section.site), Path(section.site).stem
    differences = [
        *(words for p in partitions if p.name in profile.limits for words in _differences(p, profile.limits[p.name])),
        *_missing_cpus(section, [node for node in nodes if node.partition in {p.name for p in partitions}]),
    ]
    fix = f"follow Slurm: set it in launcher.slurm, or in your own profile next to {site}.toml (docs/sites.md)"
    yield from (warning("site", f"site {site}: {words}", fix) for words in differences)
    if partitions and not differences:
        yield ok("site", f"limits and CPUs of profile {site} match Slurm's")
    for words in site_remarks(section, request.num_nodes, request.time_limit_s, parallel_trials):
        yield note("site", words, "follow it unless Slurm says otherwise; docs/sites.md has the source")


def _differences(partition: PartitionSnapshot, limits: PartitionLimits) -> Iterator[str]:
    if limits.max_minutes is not None and partition.max_time_s != limits.max_minutes * 60:
        yield (
            f"partition {partition.name}: the profile's limit is {limits.max_minutes} minutes,"
            f" Slurm's is {_number(partition.max_time_s / 60)}"
        )
    if limits.max_nodes is not None and partition.max_nodes != limits.max_nodes:
        yield (
            f"partition {partition.name}: the profile's limit is {limits.max_nodes} nodes,"
            f" Slurm's is {_number(partition.max_nodes)}"
        )


def _number(value: float) -> str:
    return "no limit" if value == math.inf else f"{value:g}"


def _missing_cpus(section: SlurmSection, nodes: Sequence[NodeSnapshot]) -> Iterator[str]:
    most = max((node.cpus for node in nodes), default=None)
    if section.usable_cpus is not None and most is not None and section.usable_cpus > most:
        yield f"the profile's usable CPUs of a node are {section.usable_cpus}, Slurm has {most}"
