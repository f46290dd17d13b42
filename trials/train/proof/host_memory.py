"""Free memory of this node's host for this process: what the kernel has left, and what its cgroups allow.

Imports no torch. Linux only: /proc, and version 1 or 2 of cgroups under /sys/fs/cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trials.ranks.kernel_oom import CGROUPS, PROC, memory_groups

GIB = 2**30


def available_gib(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Minimum of MemAvailable and of the rest of each limited cgroup of this process.

    A cgroup's inactive file cache counts as free, since the kernel drops it first. OSError without /proc/meminfo.
    """
    left = [_meminfo_bytes(proc, "MemAvailable")]
    for folder, (limit, used, inactive_file) in _limited_groups(proc, cgroups):
        # In a container the path may be that of the host, which does not exist inside.
        with suppress(OSError, ValueError):
            cache = _statistics(folder / "memory.stat").get(inactive_file, 0)
            left.append(_number(folder / limit) - _number(folder / used) + cache)
    return max(0, min(left)) / GIB


_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Names of the limit, of what is used and of the inactive file cache, by the version of control groups."""


def _limited_groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """This process's memory cgroup and its parents, with the names of their files in that version."""
    for version, mount, path in memory_groups(proc, cgroups):
        for folder in (Path(path), *Path(path).parents):
            yield mount / folder, _FILES[version]


def _meminfo_bytes(proc: Path, field: str) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc / 'meminfo'} has no {field}")


def _number(path: Path) -> int:
    """The file's number; ValueError for `max`, version 2's value for no limit; version 1 has a number near 2^63."""
    return int(path.read_text())


def _statistics(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}
