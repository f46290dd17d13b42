"""Count of the kernel's out-of-memory kills, and the control groups that account this process's memory.

Standard library only and independent of other modules of Parlay: pickled by value to the nodes of a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
"""File of a group that counts its kills, by the version of control groups; version 1 counts since Linux 4.13."""


def count_oom_kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Number of out-of-memory kills so far: in our control group, else on this machine."""
    of_groups = [mount / path / _COUNTERS[version] for version, mount, path in memory_groups(proc, cgroups)]
    for file in (*of_groups, proc / "vmstat"):
        with suppress(OSError):
            counters = dict(line.split()[:2] for line in file.read_text().splitlines())
            if "oom_kill" in counters:
                return int(counters["oom_kill"])
    return 0


def memory_groups(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[tuple[int, Path, str]]:
    """Memory's control groups of this process: the version, where it is mounted, and the group's path below."""
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield 2, cgroups, path.lstrip("/")
            elif "memory" in controllers.split(","):
                yield 1, cgroups / "memory", path.lstrip("/")
