"""How busy other work keeps this machine: what is measured beside it is slower, and says so nowhere."""

from __future__ import annotations

import os

BUSY_LOAD_FRACTION = 0.25
"""Of the CPUs: with so many taken, ranks that use all of them wait for each other."""


def busy_warning() -> str | None:
    """Of this machine, before anything of ours runs; None while it is idle."""
    return describe_load(os.getloadavg()[0], os.cpu_count() or 1)


def describe_load(load: float, cpus: int) -> str | None:
    """`load` is how many processes ran or waited for a CPU, on average over the last minute."""
    if load < BUSY_LOAD_FRACTION * cpus:
        return None
    return f"this machine is busy: a load of {load:.1f} over the last minute, on {cpus} CPUs"
