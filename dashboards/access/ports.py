"""Ports for servers that are about to start. Standard library only."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

_LISTENS = "0A"  # of proc(5), /proc/net/tcp


def reserve_port() -> socket.socket:
    """Socket bound to a free port of 127.0.0.1, not listening.

    Until it is closed the port is assigned to nobody else, and servers, which reuse addresses, can listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def is_own_listener(port: int) -> bool:
    """True if a process of this user listens on this port of 127.0.0.1."""
    address = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}:{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any((row[1], row[3], int(row[7])) == (address, _LISTENS, os.geteuid()) for row in rows)
