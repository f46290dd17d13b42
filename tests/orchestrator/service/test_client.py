"""Finding the user's service, and telling it from other processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading

import pytest

from dashboards.access.browser_sessions import Sessions
from orchestrator.service.client import running_service, service_address
from orchestrator.service.state_dir import ServiceStateDir
from search_spaces.errors import ExternalError


@pytest.fixture
def state_dir(tmp_path) -> ServiceStateDir:
    """The folder of a service with a token."""
    found = ServiceStateDir.of(tmp_path)
    found.folder.mkdir(parents=True)
    found.token.write_text("s3cret")
    return found


@pytest.mark.security("service")
@pytest.mark.parametrize("reused", [False, True], ids=["a dead process", "its number taken by another"])
def test_a_stranger_on_the_port_of_a_killed_service_is_told_nothing(state_dir, tmp_path, reused):
    """A process on that port could steal the token, and claim to have taken a search."""
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        about = state_dir.write_about(None, stranger.getsockname()[1], "ray").plain()
        gone = {"pid_started": about["pid_started"] - 1} if reused else {"pid": killed.pid}
        state_dir.about.write_text(json.dumps(about | gone))
        assert running_service(tmp_path) is None
        with pytest.raises(ExternalError, match="no service is running"):
            service_address(tmp_path, 0.0)
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()


@pytest.mark.parametrize("health", [b"{}", b'{"schema": "parlay.health/1", "pid": 1}', b"[]", b"no JSON"])
def test_what_answers_as_no_service_does_is_none(state_dir, tmp_path, health):

    def answer(server: socket.socket) -> None:
        with server.accept()[0] as asked:
            asked.recv(4096)
            asked.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + health)

    with socket.create_server(("127.0.0.1", 0)) as server:
        state_dir.write_about(None, server.getsockname()[1], "ray")
        thread = threading.Thread(target=answer, args=[server])
        thread.start()
        assert running_service(tmp_path) is None
        thread.join()


@pytest.mark.parametrize("text", ["", "{", "{}", '{"pid": 1}', '{"pid": null, "socket": null, "port": 1}'])
def test_what_does_not_say_where_a_service_is_names_none(state_dir, tmp_path, text):
    state_dir.about.write_text(text)
    assert running_service(tmp_path) is None
    with pytest.raises(ExternalError, match="no service is running"):
        service_address(tmp_path, 0.0)


@pytest.mark.security("service")
def test_an_address_of_its_pages_is_made_by_whoever_may_read_its_token(state_dir, tmp_path):
    about = state_dir.write_about(None, 7000, "ray").plain()
    way_in, _, key = service_address(tmp_path, 1000.0).partition("?key=")
    assert way_in == "http://127.0.0.1:7000/enter"
    assert Sessions("s3cret", "page key", 7000, lambda: 1000.0).enter(key) is not None
    state_dir.about.write_text(json.dumps(about | {"port": None, "socket": "/parlay.sock"}))
    with pytest.raises(ExternalError, match="unix socket"):
        service_address(tmp_path, 1000.0)
