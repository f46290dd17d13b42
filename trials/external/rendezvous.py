"""Rendezvous of a third-party trainer's ranks: rank 0 prepares the attempt's folder, then publishes the address."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass

from trials.files.folders import AttemptFolder, read_json, write_json, write_text
from trials.files.ports import no_free_port_error, ports_to_try
from trials.ranks.address import own_address
from trials.ranks.environment import RankEnvironment
from trials.trial import TrialSpec

LIMIT_S = 120.0
"""Time limit for rank 0's address."""


@dataclass(frozen=True)
class Address:
    """MASTER_ADDR and MASTER_PORT."""

    host: str
    port: int


def exchange_address(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, files: Mapping[str, str]) -> Address:
    """The address of this attempt's ranks. `files` (name to text) are in the folder when it is published.

    TimeoutError when rank 0 publishes none, RuntimeError when it finds no free port.
    """
    path = folder.rendezvous.with_name(f"{folder.rendezvous.name}.r{env.restart}")
    if env.rank == 0:
        for name, text in files.items():
            write_text(folder.path / name, text)
        address = Address("127.0.0.1" if spec.num_nodes == 1 else own_address(), free_port())
        write_json(path, {"host": address.host, "port": address.port})
        return address
    deadline = time.monotonic() + LIMIT_S
    while (published := read_json(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 published no address in {path} within {LIMIT_S:.0f} s")
        time.sleep(0.05)
    return Address(published["host"], published["port"])


def free_port() -> int:
    """A port on which nobody listens at this moment: the trainer's rank 0 will."""
    tried = ports_to_try()
    for port in tried:
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise no_free_port_error(len(tried))
