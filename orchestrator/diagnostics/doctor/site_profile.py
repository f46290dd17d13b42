"""Compares the profile of launcher.slurm.site, contributed by users, with Slurm's own answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.config.schema.slurm import SlurmSection
from orchestrator.config.site import PartitionLimits, load_profile, site_remarks
from orchestrator.diagnostics.doctor.finding import Finding, note, ok, warning
from slurm.nodes import NodeSnapshot
from slurm.partitions import PartitionSnapshot
from slurm.request import JobRequest


def site_findings(
    section: SlurmSection,
    request: JobRequest,
    parallel_trials: int,
    partitions: Sequence[PartitionSnapshot],
    nodes: Sequence[NodeSnapshot],
) -> Iterator[Finding]:
    """Differences between profile and cluster, and remarks of the profile; nothing without a site.

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
