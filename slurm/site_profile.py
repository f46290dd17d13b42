"""Site profiles: TOML files with what a cluster's users set for every job. Standard library only.

`[slurm]` holds keys of the search file's `launcher.slurm`, checked with that section. This module checks the rest:
sources, and the limits of partitions and QOS.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from slurm.option_checks import OptionProblem

SITES = Path(__file__).with_name("sites")
MAX_BYTES = 2**18


@dataclass(frozen=True)
class Reference:
    """Reference for the profile: a URL and the day it was read (YYYY-MM-DD)."""

    url: str
    read: str


@dataclass(frozen=True)
class PartitionLimits:
    """Limits of a partition or QOS for one user, from the sources; None where they do not say.

    `max_nodes` and `max_minutes` are per job; `max_running` counts running jobs, `max_jobs` also pending ones.
    """

    max_nodes: int | None = None
    max_minutes: int | None = None
    max_running: int | None = None
    max_jobs: int | None = None


@dataclass(frozen=True)
class SiteProfile:
    """Profile of one cluster: community knowledge, not verified there.

    `slurm` are defaults for `launcher.slurm`. `limits` are by partition or QOS. `notes` are further advice for users.
    """

    name: str
    path: Path
    title: str
    sources: tuple[Reference, ...]
    slurm: Mapping[str, Any]
    limits: Mapping[str, PartitionLimits] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def limit_warnings(self, names: tuple[str, ...], num_nodes: int, minutes: int, jobs: int) -> list[str]:
        """Return warnings where jobs of this size and number exceed the known limits of these partitions and QOS."""
        wanted = {"max_nodes": num_nodes, "max_minutes": minutes, "max_running": jobs, "max_jobs": jobs}
        return [
            f"{name} allows {getattr(self.limits[name], key)} {_LIMIT_UNITS[key]}, {value} requested"
            for name in names
            if name in self.limits
            for key, value in wanted.items()
            if (getattr(self.limits[name], key) or value) < value
        ]


_LIMIT_UNITS = {
    "max_nodes": "nodes per job",
    "max_minutes": "minutes per job",
    "max_running": "running jobs per user",
    "max_jobs": "running and pending jobs per user",
}


class SiteProfileError(Exception):
    """A profile that cannot be read or is invalid: its file and the problems."""

    def __init__(self, file: str, *problems: OptionProblem):
        super().__init__(f"{file}: {'; '.join(f'{p.key}: {p.rule}' for p in problems)}")
        self.file = file
        self.problems = problems


def site_names() -> list[str]:
    """Return the names of the profiles that come with Parlay."""
    return sorted(path.stem for path in SITES.glob("*.toml"))


def read_site(path: Path) -> SiteProfile:
    """Read the profile in this file. Raises SiteProfileError with all problems."""
    data = _toml(path)
    problems = [*_unknown(data, "", _TOP), *_top_problems(data), *_limit_problems(data.get("limits", {}))]
    if problems:
        raise SiteProfileError(str(path), *problems)
    return SiteProfile(
        name=path.stem,
        path=path,
        title=data["title"],
        sources=tuple(Reference(**source) for source in data["sources"]),
        slurm=data.get("slurm", {}),
        limits={name: PartitionLimits(**limits) for name, limits in data.get("limits", {}).items()},
        notes=tuple(data.get("notes", ())),
    )


def _toml(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise SiteProfileError(
                str(path), _fault(None, str(path), "a profile is a file", "name the TOML file itself")
            )
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise SiteProfileError(
                str(path), _fault(None, None, f"a profile has at most {MAX_BYTES} bytes", "shorten it")
            )
        return tomllib.loads(raw.decode())
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        fix = f"name a file, or one of {', '.join(site_names())}"
        raise SiteProfileError(str(path), _fault(None, str(path), message, fix)) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SiteProfileError(str(path), _fault(None, None, f"not TOML: {error}", "correct that line")) from error


_TOP = ("title", "sources", "slurm", "limits", "notes")
_SOURCE = tuple(f.name for f in fields(Reference))
_LIMITS = tuple(f.name for f in fields(PartitionLimits))
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def _top_problems(data: Mapping[str, Any]) -> Iterator[OptionProblem]:
    title, sources, notes = data.get("title"), data.get("sources"), data.get("notes", [])
    if not isinstance(title, str) or not title.strip():
        yield _fault("title", title, "the cluster's name, a text", 'title = "Ada, our own cluster"')
    if not isinstance(sources, list):
        yield _fault("sources", sources, "a list of sources", 'sources = [{url = "...", read = "2026-11-22"}]')
    for index, source in enumerate(sources if isinstance(sources, list) else ()):
        yield from _source_problems(f"sources[{index}]", source)
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        yield _fault("notes", notes, "a list of texts", 'notes = ["..."]')
    if not isinstance(data.get("slurm", {}), dict):
        yield _fault("slurm", data["slurm"], "a table with keys of launcher.slurm", "begin it with [slurm]")


def _source_problems(key: str, source: Any) -> Iterator[OptionProblem]:
    if not isinstance(source, dict) or set(source) != set(_SOURCE) or not all(type(v) is str for v in source.values()):
        yield _fault(key, source, "url and read, both strings", '{url = "...", read = "2026-11-22"}')
    elif not _DATE.fullmatch(source["read"]):
        yield _fault(f"{key}.read", source["read"], "a day, YYYY-MM-DD", "write the day on which it was read")


def _limit_problems(limits: Any) -> Iterator[OptionProblem]:
    if not isinstance(limits, dict) or not all(isinstance(found, dict) for found in limits.values()):
        yield _fault("limits", limits, "a table for each partition or QOS", "begin it with [limits.NAME]")
        return
    for name, found in limits.items():
        yield from _unknown(found, f"limits.{name}.", _LIMITS)
        for key, value in found.items():
            if key in _LIMITS and (type(value) is not int or value < 1):
                yield _fault(f"limits.{name}.{key}", value, "a whole number from 1", "leave it out where none is known")


def _unknown(data: Mapping[str, Any], above: str, known: tuple[str, ...]) -> Iterator[OptionProblem]:
    for key in data:
        if key not in known:
            yield _fault(
                f"{above}{key}", data[key], f"known keys: {', '.join(known)}", "remove it, or correct its name"
            )


def _fault(key: str | None, value: object, rule: str, fix: str) -> OptionProblem:
    return OptionProblem(key or "", value, rule, fix)
