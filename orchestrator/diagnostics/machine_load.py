"""Warning for a machine that runs other work: it slows measurements down, and they do not show it."""

from __future__ import annotations

import os

BUSY_LOAD_FRACTION = 0.25
"""Load per CPU from which ranks that use all CPUs are slowed down noticeably."""


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
