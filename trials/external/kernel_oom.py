"""Count of the kernel's out-of-memory kills. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def count_oom_kills() -> int:
    """Number of out-of-memory kills so far: in our control group, else on this machine."""
    for path in (*_of_our_group(), Path("/proc/vmstat")):
        with suppress(OSError):
            counters = dict(line.split()[:2] for line in path.read_text().splitlines())
            if "oom_kill" in counters:
                return int(counters["oom_kill"])
    return 0


def _of_our_group() -> Iterator[Path]:
    """cgroup v2 only: v1 counts no kills by group."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                yield Path("/sys/fs/cgroup" + line[3:]) / "memory.events"
