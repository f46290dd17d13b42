"""Idle connections are closed, and never so many that others are kept out."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from dashboards.access import http_protocol
from dashboards.access.http_protocol import BoundedProtocol
from dashboards.access.ports import reserve_port

pytestmark = [pytest.mark.slow, pytest.mark.security("service")]
HALF = b"GET / HTTP/1.1\r\nHost: x\r\n"
WHOLE = HALF + b"\r\n"


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config):
        super().__init__(config)
        self.is_ready = threading.Event()

    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        self.is_ready.set()


@pytest.fixture
def port() -> Iterator[int]:
    """Port of a server that answers every request."""

    async def answer(scope, receive, send) -> None:
        await PlainTextResponse("here")(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(answer, http=BoundedProtocol, lifespan="off", log_config=None, timeout_keep_alive=60)
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        assert server.is_ready.wait(30)
        yield listening.getsockname()[1]
        server.should_exit = server.force_exit = True
        thread.join()


def connected(stack: ExitStack, port: int, said: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    connection.sendall(said)
    return connection


def is_closed(connection: socket.socket) -> bool:
    """True if the server closes the connection; reads everything before that."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("said", [b"", b"G", HALF])
def test_a_connection_that_sends_no_whole_request_ends(monkeypatch, port, said):
    monkeypatch.setattr(http_protocol, "REQUEST_S", 0.2)
    with ExitStack() as stack:
        assert is_closed(connected(stack, port, said))


@pytest.mark.parametrize("said", [b"", HALF])
def test_after_an_answer_the_next_request_has_as_long(monkeypatch, port, said):
    monkeypatch.setattr(http_protocol, "REQUEST_S", 0.5)
    with ExitStack() as stack:
        connection = connected(stack, port, WHOLE)
        assert b"200 OK" in connection.recv(4096)
        connection.sendall(said)
        assert is_closed(connection)


def test_of_too_many_the_longest_idle_goes_and_who_asks_is_answered(monkeypatch, port):
    monkeypatch.setattr(http_protocol, "MAX_IDLE", 5)
    with ExitStack() as stack:
        idle = [connected(stack, port, HALF) for _ in range(20)]
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        asking.request("GET", "/")
        assert asking.getresponse().read() == b"here"
        assert all(is_closed(connection) for connection in idle[:15])
        idle[-1].sendall(b"\r\n")
        assert b"200 OK" in idle[-1].recv(4096)


def test_a_held_port_is_given_to_nobody_and_servers_can_listen_on_it_one_after_the_other():
    with reserve_port() as held:
        address = held.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        for _ in range(2):
            with socket.create_server(address), socket.create_connection(address, timeout=5):
                pass
