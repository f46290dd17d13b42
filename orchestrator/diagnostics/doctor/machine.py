"""Checks of the machine that runs Parlay: Python, libraries, umask, limits, load."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning

MIN_OPEN_FILES = 1024
"""Open files: a driver with many trials in flight needs some hundreds, MLflow and Ray further ones."""
MIN_PROCESSES = 256
MIN_LOCKED_GIB = 1.0
"""Locked memory that ranks may need for InfiniBand or RoCE; sbatch propagates the shell's limits."""
BUSY_LOAD_FRACTION = 0.25
"""Load per CPU from which ranks that use all CPUs are slowed down noticeably."""

_REINSTALL = "install Parlay again with its constraints: pip install -c constraints.txt -e ."
_LIMITS = {
    "files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "cpu_s": resource.RLIMIT_CPU,
    "locked_bytes": resource.RLIMIT_MEMLOCK,
}


def check_machine(ranks_run_here: bool) -> Iterator[Finding]:
    """Check Python, libraries, umask, limits and load, which slows down ranks and, where it is high, drivers too."""
    try:
        yield python_finding(platform.python_version(), metadata("parlay")["Requires-Python"])
        yield from library_findings(requires("parlay") or (), _installed)
    except PackageNotFoundError:
        words = "Parlay is not installed here, so its requirements are unknown"
        yield warning("libraries", words, _REINSTALL)
    yield umask_finding(_umask_of_shell())
    yield from limit_findings({name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()})
    if (busy := busy_warning()) is not None:
        found = warning if ranks_run_here or takes_all_cpus() else note
        yield found("load", busy, "measure on this machine when it is idle; jobs on other nodes are not affected")


def python_finding(found: str, wanted: str) -> Finding:
    """Compare a Python version with a requirement such as `>=3.11`."""
    if Requirement(f"python{wanted}").specifier.contains(found, prereleases=True):
        return ok("python", f"Python {found}")
    words = f"{sys.executable} is Python {found}, Parlay needs {wanted}"
    return error("python", words, f"install Parlay with a Python {wanted}")


def library_findings(wanted: Iterable[str], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """One error per missing or mismatched library, or one OK.

    Requirements of extras are checked where they are used.
    """
    needed = [r for r in map(Requirement, wanted) if r.marker is None or r.marker.evaluate({"extra": ""})]
    faults = [words for requirement in needed if (words := _library_fault(requirement, installed)) is not None]
    yield from (error("library", words, _REINSTALL) for words in faults)
    if not faults:
        yield ok("libraries", f"all {len(needed)} libraries have the required versions")


def umask_finding(umask: int | None) -> Finding:
    """Finding for the umask of the shell. Parlay sets its own; a recipe's jobs and other tools use the shell's."""
    if umask is None or umask & 0o002:
        return ok("umask", "files that Parlay writes are private (umask 077)")
    words = f"your shell's umask is {umask:03o}: files of other programs are writable by everybody"
    return warning("umask", words, "umask 077, in the profile of your shell")


def limit_findings(limits: Mapping[str, int]) -> Iterator[Finding]:
    """Findings for the shell's soft limits, keyed as in `_LIMITS`; resource.RLIM_INFINITY for none."""
    found = list(_limit_faults(limits))
    yield from found or [ok("limits", "the shell's limits are sufficient for a driver")]


def _limit_faults(limits: Mapping[str, int]) -> Iterator[Finding]:
    def below(name: str, least: float) -> bool:
        return limits[name] != resource.RLIM_INFINITY and limits[name] < least

    if below("files", MIN_OPEN_FILES):
        words = f"the limit on open files is {limits['files']}; {MIN_OPEN_FILES} is usual"
        yield warning("limits", words, f"ulimit -n {MIN_OPEN_FILES}")
    if below("processes", MIN_PROCESSES):
        words = f"the limit on your processes is {limits['processes']}; {MIN_PROCESSES} are needed"
        yield warning("limits", words, "ulimit -u unlimited, or ask the site")
    if limits["cpu_s"] != resource.RLIM_INFINITY:
        words = f"the limit on CPU time is {limits['cpu_s']} s, which would kill a long driver"
        yield warning("limits", words, "drive the search in a job of its own: parlay submit --as-job")
    if below("locked_bytes", MIN_LOCKED_GIB * 2**30):
        words = f"the limit on locked memory is {limits['locked_bytes'] / 2**20:g} MiB, and jobs inherit it"
        fix = "ulimit -l unlimited before a search, where the fabric of the nodes is InfiniBand or RoCE"
        yield note("locked_memory", words, fix)


def _library_fault(requirement: Requirement, installed: Callable[[str], str | None]) -> str | None:
    found = installed(requirement.name)
    if found is None:
        return f"{requirement.name} is not installed, {requirement} is needed"
    if not requirement.specifier.contains(found, prereleases=True):
        return f"{requirement.name} {found} is installed, {requirement} is needed"
    return None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _umask_of_shell() -> int | None:
    """Umask of the parent process; None if the kernel does not show it."""
    try:
        status = Path(f"/proc/{os.getppid()}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
    return int(match[1], 8) if match else None


def busy_warning() -> str | None:
    """Warn of this machine's load before Parlay starts anything on it; None while it is idle."""
    return describe_load(os.getloadavg()[0], os.cpu_count() or 1)


def takes_all_cpus() -> bool:
    """True if other work runs or waits on every CPU of this machine."""
    return os.getloadavg()[0] >= (os.cpu_count() or 1)


def describe_load(load: float, cpus: int) -> str | None:
    """Describe a load from BUSY_LOAD_FRACTION of the CPUs on: running and waiting processes, mean of one minute."""
    if load < BUSY_LOAD_FRACTION * cpus:
        return None
    return f"this machine is busy: a load of {load:.1f} over the last minute, on {cpus} CPUs"
