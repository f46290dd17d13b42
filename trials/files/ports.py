"""The ports at which the ranks of a trial may meet, from the node of rank 0. Standard library only."""

from __future__ import annotations

import random
from pathlib import Path

PORTS = range(20000, 30000)
PORT_TRIES = 50
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports that the kernel hands to outgoing connections: 32768-60999 unless the site chose others."""


def ports_to_try() -> list[int]:
    """A few of the usable ones, in random order: other trials take theirs on the same node."""
    ports = usable_ports(EPHEMERAL_PORTS.read_text())
    return random.sample(ports, min(PORT_TRIES, len(ports)))


def usable_ports(ephemeral: str) -> list[int]:
    """Those of `PORTS` outside the range that the kernel's file names (first and last port), of which a connection may
    take any at any moment. All of them where it leaves none: rank 0 holds its port from before it tells of it."""
    first, last = map(int, ephemeral.split())
    return [port for port in PORTS if not first <= port <= last] or list(PORTS)


def no_free_port_error(tried: int) -> RuntimeError:
    return RuntimeError(f"no free port among {tried} tries in {PORTS[0]}-{PORTS[-1]}")
