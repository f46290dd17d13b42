"""launcher.slurm.site: a cluster's profile as defaults of the user's section."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

import slurm
from orchestrator.config.schema.slurm import SlurmSection
from search_spaces.errors import InputError, Problem, did_you_mean, format_value
from search_spaces.hardware.cluster import Cluster
from search_spaces.plain_file import read_referenced, refusing_unreadable
from search_spaces.schema.validation import Section, restore, validate
from search_spaces.schema.yaml_document import Document
from slurm.option_checks import requests_gpus

_SECTION = "launcher.slurm"

SITES = Path(slurm.__file__).with_name("sites")
MAX_BYTES = 2**18

_Known = Annotated[int | None, Field(default=None, ge=1)]


class Reference(Section):
    """Reference for the profile: a URL and the day it was read (YYYY-MM-DD)."""

    url: str
    read: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class PartitionLimits(Section):
    """Limits of a partition or QOS for one user, from the sources; None where they do not say.

    `max_nodes` and `max_minutes` are per job; `max_running` counts running jobs, `max_jobs` also pending ones.
    """

    max_nodes: _Known
    max_minutes: _Known
    max_running: _Known
    max_jobs: _Known


class SiteProfile(Section):
    """Profile of one cluster, a TOML file: community knowledge, not verified there.

    `slurm` are defaults for `launcher.slurm`. `limits` are by partition or QOS. `notes` are further advice for users.
    """

    title: Annotated[str, Field(min_length=1)]
    sources: list[Reference]
    slurm: SlurmSection = SlurmSection()
    limits: Mapping[str, PartitionLimits] = Field(default_factory=dict)
    notes: Sequence[str] = ()

    @field_validator("slurm")
    @classmethod
    def _refuse_site(cls, section: SlurmSection) -> SlurmSection:
        if section.site is None:
            return section
        raise InputError.of(
            "site_profile",
            f"is {format_value(section.site)}",
            rule="a profile does not refer to another one",
            fix="remove it, and copy the keys you need from the other one",
            key="site",
            value=section.site,
        )

    def limit_warnings(self, names: Iterable[str], num_nodes: int, minutes: int, jobs: int) -> list[str]:
        """Return warnings where jobs of this size and number exceed the known limits of these partitions and QOS."""
        wanted = {
            "max_nodes": (num_nodes, "nodes per job"),
            "max_minutes": (minutes, "minutes per job"),
            "max_running": (jobs, "running jobs per user"),
            "max_jobs": (jobs, "running and pending jobs per user"),
        }
        return [
            f"{name} allows {most} {unit}, {value} requested"
            for name in names
            if name in self.limits
            for key, (value, unit) in wanted.items()
            if (most := getattr(self.limits[name], key)) is not None and most < value
        ]


def site_names() -> list[str]:
    """Return the names of the profiles that come with Parlay."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def with_site(section: SlurmSection) -> SlurmSection:
    """Return the section completed by its site's profile; the section itself where it names no site.

    Variables are merged one by one, and so are the keys of `launch`; a list replaces the profile's. InputError for an
    unknown site, with the profile's file for problems in it, and with the section's keys for combinations that
    conflict.
    """
    if section.site is None:
        return section
    defaults = _given(load_profile(section.site).slurm)
    given = _given(section)
    if section.gpus_per_node is not None or requests_gpus(section.gres):
        defaults = {key: value for key, value in defaults.items() if key not in ("gpus_per_node", "gres", "gpus_as")}
    merged = defaults | given
    for key in ("env", "launch"):
        merged[key] = defaults.get(key, {}) | given.get(key, {})
    try:
        return restore(SlurmSection, merged)
    except InputError as error:
        raise InputError(*(_merged_problem(problem, section.site) for problem in error.problems)) from None


def load_profile(site: str) -> SiteProfile:
    """Return the profile of this name, or in the file at this path; InputError names the file and its key."""
    known = site_names()
    is_path = site.startswith("/")
    if not is_path and site not in known:
        raise InputError.of(
            "choice",
            f"is {format_value(site)}",
            rule=f"a site is one of {', '.join(known)}, or the path of a TOML file",
            fix=did_you_mean(site, known) or "write one of these, or a file of your own: ./my-site.toml",
            key=f"{_SECTION}.site",
            value=site,
        )
    path = SITES / (site if is_path else f"{site}.toml")
    return validate(SiteProfile, Document(_toml(path), {}, str(path), path.parent))


def _toml(path: Path) -> dict[str, Any]:
    with refusing_unreadable(path):
        raw = read_referenced(path, MAX_BYTES)
    try:
        return tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError.of("site_profile", f"not TOML: {error}", fix="correct that line", file=str(path)) from error


def cpu_problems(section: SlurmSection, cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem where the ranks of a node request more CPUs than a node has for jobs: such a job never starts."""
    cpus = section.cpus_per_task or 1
    requested = cpus * cluster.gpus_per_node
    if section.usable_cpus is not None and requested > section.usable_cpus:
        yield Problem(
            "usable_cpus",
            f"is {cpus}: {cpus} x {cluster.gpus_per_node} ranks of a node = {requested} CPUs",
            rule=f"jobs may use {section.usable_cpus} CPUs of a node{_site_suffix(section.site)}",
            fix=f"{section.usable_cpus // cluster.gpus_per_node or 1} at most, or correct usable_cpus",
            key=f"{_SECTION}.cpus_per_task",
            value=cpus,
        )


def in_segments(section: SlurmSection, cluster: Cluster) -> Cluster:
    """Return the cluster as jobs in such segments see it; InputError for segments larger than a link domain."""
    segment, links = section.segment, cluster.links
    if not segment or links is None or cluster.domain_nodes == 1 or segment == cluster.domain_nodes:
        return cluster
    if segment > cluster.domain_nodes:
        raise InputError.of(
            "segment",
            f"is {segment}, but a link domain of the cluster has {cluster.domain_nodes} nodes",
            rule="the nodes of a segment are in one link domain",
            fix=f"{cluster.domain_nodes} at most, or correct num_ranks of the last of cluster.links.domains",
            key=f"{_SECTION}.segment",
            value=segment,
        )
    return replace(cluster, given_links=links.for_job(segment, cluster.gpus_per_node))


def site_remarks(section: SlurmSection, num_nodes: int, time_limit_s: float, jobs: int) -> list[str]:
    """Return remarks on the site's profile to show before jobs are submitted, `jobs` of them at a time."""
    if section.site is None:
        return []
    profile = load_profile(section.site)
    site, names = Path(section.site).stem, ",".join(filter(None, (section.partition, section.qos))).split(",")
    days = {source.read for source in profile.sources}
    read = f", read {max(days)}" if days else ""
    warnings = profile.limit_warnings(names, num_nodes, -(-int(time_limit_s) // 60), jobs)
    return [
        f"site {site}: {profile.title}: community profile{read}, not verified (docs/sites.md)",
        *(f"site {site}: {warning}" for warning in warnings),
        *(f"site {site}: {note}" for note in profile.notes),
    ]


def _given(section: Section) -> dict[str, Any]:
    """Return the keys that were written, in nested sections too."""
    data: Mapping[str, Any] = section.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dict(data)


def _merged_problem(problem: Problem, site: str) -> Problem:
    """Return a problem of the merged section under the search file's key, whichever of the two caused it."""
    return replace(
        problem,
        key=f"{_SECTION}.{problem.key}",
        message=f"{problem.message}, combined with the profile of site {site}",
        file=None,
    )


def _site_suffix(site: str | None) -> str:
    return "" if site is None else f", by the profile of site {site}"
