"""Host name or address of rank 0's node, as other ranks reach it. Standard library only."""

from __future__ import annotations

import os
import socket

ADDRESS_VARIABLE = "PARLAY_ADDRESS"
"""Environment variable: a template with {host} (the short name), {fqdn} or {ip}. At some sites the node's own name
belongs to a slow network, or to none: at JUWELS the fast one's ends in i."""


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
