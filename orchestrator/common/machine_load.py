"""How busy other work keeps this machine: what is measured beside it is slower, and says so nowhere."""

from __future__ import annotations

import os

BUSY_PART = 0.25
"""Of the CPUs: with so many taken, ranks that use all of them wait for each other."""


def busy_words() -> str | None:
    """Of this machine, before anything of ours runs; None while it is idle."""
    return words_of(os.getloadavg()[0], os.cpu_count() or 1)


def words_of(load: float, cpus: int) -> str | None:
    """`load` is how many processes ran or waited for a CPU, on average over the last minute."""
    if load < BUSY_PART * cpus:
        return None
    return f"this machine is busy: a load of {load:.1f} over the last minute, on {cpus} CPUs"
