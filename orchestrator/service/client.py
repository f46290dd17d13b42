"""Client of the user's service, for other processes. Standard library and light imports only."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dashboards.access.browser_sessions import entry_address
from orchestrator.launchers.process_identity import boot_id, start_ticks
from orchestrator.service.state_dir import ServiceStateDir
from search_spaces.errors import ExternalError
from trials.files.folders import read_json

if TYPE_CHECKING:
    from orchestrator.records.summary import DriverStatus
    from trials.files.folders import SearchFolder

_TIMEOUT_S = 60.0


class ServiceRefused(ExternalError):
    """The service answered with an error; `problem` is the `error` of its answer."""

    def __init__(self, problem: Mapping[str, Any]):
        super().__init__(f"the service: {problem.get('message')}", problem.get("fix"))
        self.problem = problem


class Client:
    """Requests to the service at this address. Raises ServiceRefused, and ExternalError if it does not answer."""

    def __init__(self, socket_path: str | None, port: int | None, token: str | None):
        self._socket_path = socket_path
        self._port = port
        self._token = token

    def health(self) -> dict[str, Any]:
        return self._ask("GET", "/v1/health")

    def resume(self, search_id: str, folder: Path, ledger_url: str) -> dict[str, Any]:
        """Have the service drive this search from now on."""
        body = {"folder": str(folder), "ledger_url": ledger_url}
        return self._ask("POST", f"/v1/searches/{quote(search_id, safe='')}/resume", body)

    def driver_status(self, search_id: str) -> DriverStatus | None:
        """Who drives this search, as the service tells it; None if it does not know the search, or that has ended."""
        from orchestrator.records.summary import DriverStatus

        try:
            driver = self._ask("GET", f"/v1/searches/{quote(search_id, safe='')}")["driver"]
        except ServiceRefused:
            return None
        return None if driver is None else DriverStatus(**driver)

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection()
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ExternalError(f"the service does not answer: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise ServiceRefused(answer.get("error", {}))
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        if self._socket_path is None:
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_S)
        return _UnixConnection(self._socket_path)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def running_service(home: Path) -> tuple[Client, dict[str, Any]] | None:
    """Return a client and the `health` of this home's service; None if none runs or answers.

    A service that was killed may have left a port that another process uses by now; nothing is sent to that process.
    """
    state_dir = ServiceStateDir.of(home)
    try:
        about = read_json(state_dir.about)
        if about is None or (about["port"] is not None and not _is_same_process(about)):
            return None
        token = None if about["port"] is None else state_dir.read_token()
        client = Client(about["socket"], about["port"], token)
        health = client.health()
        return (client, health) if health["pid"] == about["pid"] else None
    except (OSError, ExternalError, ValueError, KeyError, TypeError):
        return None


def driver_status(folder: SearchFolder) -> DriverStatus:
    """Status of the search's driver, the word of a running service included."""
    from orchestrator.lifecycle.driver_status import find_driver_status
    from trials.ledger.location import home_folder

    def of_service(search_id: str) -> DriverStatus | None:
        found = running_service(home_folder())
        return None if found is None else found[0].driver_status(search_id)

    return find_driver_status(folder, of_service)


def service_address(home: Path, now: float) -> str:
    """Address of the running service's pages, valid once. Raises ExternalError if there are no pages."""
    state_dir, fix = (
        ServiceStateDir.of(home),
        "start parlay serve --port N, which has pages for a browser on this machine",
    )
    try:
        about = read_json(state_dir.about)
        is_running = about is not None and _is_same_process(about)
        if about is not None and is_running and about["port"] is not None:
            return entry_address(about["port"], state_dir.read_token(), now)
    except (OSError, ValueError, KeyError):
        is_running = False
    words = (
        "the service listens on a unix socket, which browsers cannot open" if is_running else "no service is running"
    )
    raise ExternalError(words, fix)


def _is_same_process(about: Mapping[str, Any]) -> bool:
    """True if the process that wrote this still runs, rather than another one with its pid. Raises OSError if none has
    it."""
    pid = about["pid"]
    began = (start_ticks(pid), boot_id()) == (about["pid_started"], about["boot_id"])
    return began and os.stat(f"/proc/{pid}").st_uid == os.geteuid()
