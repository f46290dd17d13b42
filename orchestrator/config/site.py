"""launcher.slurm.site: a cluster's profile as defaults of the user's section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.schema.slurm import SlurmSection
from search_spaces.errors import InputError, Problem, did_you_mean, format_value
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.validation import Section, restore, validate
from search_spaces.schema.yaml_document import Document
from slurm.option_checks import requests_gpus
from slurm.site_profile import SITES, SiteProfile, SiteProfileError, read_site, site_names

_SECTION = "launcher.slurm"


def with_site(section: SlurmSection) -> SlurmSection:
    """Return the section completed by its site's profile; the section itself where it names no site.

    Variables are merged one by one, and so are the keys of `launch`; a list replaces the profile's. InputError for an
    unknown site, with the profile's file for problems in it, and with the section's keys for combinations that
    conflict.
    """
    if section.site is None:
        return section
    defaults = _given(section_from_profile(load_profile(section.site)))
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
    try:
        return read_site(SITES / (site if is_path else f"{site}.toml"))
    except SiteProfileError as fault:
        found = (
            Problem(
                "site_profile",
                _message(p.value),
                rule=p.rule,
                fix=p.fix,
                key=p.key or None,
                value=p.value,
                file=fault.file,
            )
            for p in fault.problems
        )
        raise InputError(*found) from fault


def section_from_profile(profile: SiteProfile) -> SlurmSection:
    """Return the section that a profile describes; InputError names the profile's file and key."""
    if "site" in profile.slurm:
        raise InputError.of(
            "site_profile",
            f"is {format_value(profile.slurm['site'])}",
            rule="a profile does not refer to another one",
            fix="remove it, and copy the keys you need from the other one",
            key="slurm.site",
            value=profile.slurm["site"],
            file=str(profile.path),
        )
    try:
        return validate(SlurmSection, Document(profile.slurm, {}, str(profile.path), profile.path.parent))
    except InputError as error:
        raise InputError(*(replace(p, key=f"slurm.{p.key}" if p.key else "slurm") for p in error.problems)) from None


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
    names = [name for named in (section.partition, section.qos) if named for name in named.split(",")]
    days = {source.read for source in profile.sources}
    read = f", read {max(days)}" if days else ""
    warnings = profile.limit_warnings(tuple(names), num_nodes, -(-int(time_limit_s) // 60), jobs)
    return [
        f"site {profile.name}: {profile.title}: community profile{read}, not verified (docs/sites.md)",
        *(f"site {profile.name}: {warning}" for warning in warnings),
        *(f"site {profile.name}: {note}" for note in profile.notes),
    ]


def _given(section: Section) -> dict[str, Any]:
    """Return the keys that were written, in nested sections too."""
    data: Mapping[str, Any] = section.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return dict(data)


def _message(value: object) -> str:
    return "is missing" if value is None else f"is {format_value(value)}"


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
