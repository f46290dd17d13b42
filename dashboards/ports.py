"""Ports for servers that are about to start. Standard library only."""

from __future__ import annotations

import socket


def held_port() -> socket.socket:
    """A socket with a free port of 127.0.0.1, on which it does not listen: until it is closed nobody is given that
    port, and a server that starts meanwhile can take it, again and again, since servers reuse addresses."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
