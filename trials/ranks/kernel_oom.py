"""Count of the kernel's out-of-memory kills.

Standard library only and independent of other modules of Parlay: pickled by value to the nodes of a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def count_oom_kills(root: Path = Path("/")) -> int:
    """Number of out-of-memory kills so far: in our control group, else on this machine."""
    for path in (*_of_our_group(root), root / "proc/vmstat"):
        with suppress(OSError):
            counters = dict(line.split()[:2] for line in path.read_text().splitlines())
            if "oom_kill" in counters:
                return int(counters["oom_kill"])
    return 0


def _of_our_group(root: Path) -> Iterator[Path]:
    """Files that count kills in this process's control group, of version 1 or 2."""
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                yield root / f"sys/fs/cgroup/memory{path}/memory.oom_control"  # counted since Linux 4.13
            if not controllers:
                yield root / f"sys/fs/cgroup{path}/memory.events"
