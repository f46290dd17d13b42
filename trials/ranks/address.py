"""What the node of rank 0 calls itself where the ranks meet. Standard library only."""

from __future__ import annotations

import os
import socket

ADDRESS_VARIABLE = "PARLAY_ADDRESS"
"""A text with {host} (the short name), {fqdn} or {ip} in it. At some sites the node's own name leads to a slow network,
or nowhere: at JUWELS that of the fast one has an i behind it."""


def own_address() -> str:
    """This node's name for the others; OSError where the node does not know its own address."""
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
