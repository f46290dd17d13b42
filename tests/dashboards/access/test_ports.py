from __future__ import annotations

import socket

import pytest

from dashboards.access.ports import reserve_port


def test_a_held_port_is_given_to_nobody_and_servers_can_listen_on_it_one_after_the_other():
    with reserve_port() as held:
        address = held.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        for _ in range(2):
            with socket.create_server(address), socket.create_connection(address, timeout=5):
                pass
