"""Ports for the rendezvous of a trial's ranks on the node of rank 0. Standard library only."""

from __future__ import annotations

import random
from pathlib import Path

PORTS = range(20000, 30000)
PORT_TRIES = 50
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The kernel's range of ephemeral ports: 32768-60999 unless the site chose another."""


def ports_to_try() -> list[int]:
    """Some usable ports in random order, since other trials take theirs on the same node."""
    ports = usable_ports(EPHEMERAL_PORTS.read_text())
    return random.sample(ports, min(PORT_TRIES, len(ports)))


def usable_ports(ephemeral: str) -> list[int]:
    """The `PORTS` outside the ephemeral range (first and last port, as the kernel's file has them).

    All of `PORTS` where that leaves none: rank 0 binds its port before it publishes it.
    """
    first, last = map(int, ephemeral.split())
    return [port for port in PORTS if not first <= port <= last] or list(PORTS)


def no_free_port_error(tried: int) -> RuntimeError:
    return RuntimeError(f"no free port among {tried} tries in {PORTS[0]}-{PORTS[-1]}")
