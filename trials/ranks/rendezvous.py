"""Rendezvous of a trial's ranks: rank 0 takes a port of its node and publishes the address in the attempt's folder.

Standard library only.
"""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from trials.files.folders import read_json, write_json
from trials.trial import TrialSpec

T = TypeVar("T")

LIMIT_S = 120.0
"""Time limit for rank 0's address."""
PORTS = range(20000, 30000)
PORT_TRIES = 50
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The kernel's range of ephemeral ports: 32768-60999 unless the site chose another."""
ADDRESS_VARIABLE = "PARLAY_ADDRESS"
"""Environment variable: a template with {host} (the short name), {fqdn} or {ip}. At some sites the node's own name
belongs to a slow network, or to none: at JUWELS the fast one's ends in i."""


@dataclass(frozen=True)
class Address:
    """MASTER_ADDR and MASTER_PORT."""

    host: str
    port: int


def publish_address(
    spec: TrialSpec, path: Path, take: Callable[[Address], T], is_taken: type[Exception] = OSError
) -> T:
    """Result of `take` for the first port that is free, once its address is published at `path`; rank 0 only.

    `take` raises `is_taken` for a port of another process. RuntimeError where all are.
    """
    host = "127.0.0.1" if spec.num_nodes == 1 else own_address()
    tried = _ports_to_try()
    for port in tried:
        try:
            found = take(Address(host, port))
        except is_taken:
            continue
        write_json(path, {"host": host, "port": port})
        return found
    raise RuntimeError(f"no free port among {len(tried)} tries in {PORTS[0]}-{PORTS[-1]}")


def published_address(path: Path) -> Address:
    """Rank 0's address; TimeoutError where it publishes none."""
    deadline = time.monotonic() + LIMIT_S
    while (published := read_json(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 published no address in {path} within {LIMIT_S:.0f} s")
        time.sleep(0.05)
    return Address(published["host"], published["port"])


def require_free(address: Address) -> Address:
    """The address; OSError where somebody listens on its port at this moment. A trainer's rank 0 will."""
    with socket.socket() as probe:
        probe.bind(("", address.port))
    return address


def own_address() -> str:
    """This node's name for the other ranks; OSError where the node does not know its own address."""
    wanted = os.environ.get(ADDRESS_VARIABLE) or "{fqdn}"
    for name, value in _PARTS.items():
        if (place := f"{{{name}}}") in wanted:
            wanted = wanted.replace(place, value())
    return wanted


_PARTS = {
    "host": lambda: socket.gethostname().partition(".")[0],
    "fqdn": lambda: socket.getfqdn(),
    "ip": lambda: socket.gethostbyname(socket.gethostname()),
}


def _ports_to_try() -> list[int]:
    """Some usable ports in random order, since other trials take theirs on the same node."""
    ports = usable_ports(EPHEMERAL_PORTS.read_text())
    return random.sample(ports, min(PORT_TRIES, len(ports)))


def usable_ports(ephemeral: str) -> list[int]:
    """The `PORTS` outside the ephemeral range (first and last port, as the kernel's file has them).

    All of `PORTS` where that leaves none: rank 0 binds its port before it publishes it.
    """
    first, last = map(int, ephemeral.split())
    return [port for port in PORTS if not first <= port <= last] or list(PORTS)
