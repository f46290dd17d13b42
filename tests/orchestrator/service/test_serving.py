"""Real services, killed with their drivers and restarted: the searches of two terminals lose nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchestrator.search.lease import current_lease
from orchestrator.service.client import running_service
from tests.kit import search_file
from tests.orchestrator.cli.parlay import environment, parlay
from tests.orchestrator.service.services import SEARCH, ask, hold, open_gate, serving
from tests.orchestrator.slurm_searches import num_ended, record_of, until
from tests.orchestrator.tabled_parlay import COMMAND
from trials.files.folders import SearchFolder
from trials.ledger.events import EndReason

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture
def home(own_home, tmp_path, monkeypatch) -> Path:
    """Parlay's home, with searches that do not end before `open_gate`."""
    hold(tmp_path, monkeypatch)
    return own_home


def submitted_twice(folder: Path, about: dict[str, Any]) -> list[SearchFolder]:
    """A search from one terminal by the command, and one from another by the socket."""
    path = search_file(folder, SEARCH)
    first = subprocess.run(
        [*COMMAND, "submit", path, "--json"], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )
    assert first.returncode == 0, first.stdout + first.stderr
    assert json.loads(first.stdout)["pid"] == about["pid"]
    status, second = ask(about, "POST", "/v1/searches", {"yaml": path.read_text(), "directory": str(folder)})
    assert status == 201, second
    return [SearchFolder(Path(json.loads(first.stdout)["folder"])), SearchFolder(Path(second["folder"]))]


def driver_status(folder: SearchFolder) -> int:
    """Pid of the search's driver; 0 if it has none."""
    held = current_lease(folder)
    return held.pid if held is not None and held.is_held(time.time()) else 0


@pytest.mark.parametrize("executor", ["process", "ray"])
def test_a_killed_driver_and_a_killed_service_lose_no_search_and_repeat_no_trial(home, tmp_path, executor):
    with serving(tmp_path, "--executor", executor) as (service, about):
        searches = submitted_twice(tmp_path, about)
        until(lambda: all(num_ended(search) == 1 for search in searches), bool)
        drivers = [driver_status(search) for search in searches]
        assert 0 not in drivers
        assert len({service.pid, *drivers}) == 3
        service.kill()
        service.wait()
        until(lambda: not any(driver_status(search) for search in searches), bool)
        assert not any(record_of(search).state.is_ended for search in searches)
    with serving(tmp_path, "--executor", executor) as (service, about):
        assert ask(about, "GET", "/v1/health")[1]["executor"] == executor
        until(lambda: driver_status(searches[1]) != 0, bool)
        killed = driver_status(searches[1])
        os.kill(killed, signal.SIGKILL)
        until(lambda: driver_status(searches[1]) not in (0, killed), bool)
        open_gate(tmp_path)
        until(lambda: all(record_of(search).state.is_ended for search in searches), bool)
        service.send_signal(signal.SIGTERM)
        assert service.wait(90) in (0, 75)
    for search in map(record_of, searches):
        assert search.end_reason is EndReason.MAX_TRIALS
        layouts = [trial.layout.key for trial in search.trials]
        assert len(layouts) == len(set(layouts)) == 4
        assert all(trial.measured is not None for trial in search.trials)
    assert running_service(home) is None


@pytest.mark.walks
@pytest.mark.security("service")
def test_a_stranger_with_thousands_of_connections_keeps_the_owner_out_of_nothing(home, tmp_path):
    with serving(tmp_path, "--port", "0", "--executor", "process") as (service, about), ExitStack() as stack:
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (1024, 1024))
        own, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (own, most))
        for number in range(2000):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", about["port"]), timeout=60))
            idle.sendall(b"GET / HTTP/1.1\r\n" * (number % 2))
        token = (home / "service" / "token").read_text()
        assert ask(about, "GET", "/v1/health", Authorization=f"Bearer {token}")[0] == 200
        assert len(os.listdir(f"/proc/{service.pid}/fd")) < 512


@pytest.mark.walks
@pytest.mark.security("service")
def test_on_a_port_the_token_lies_in_a_file_and_a_stopped_service_leaves_its_searches_to_go_on_with(home, tmp_path):
    with serving(tmp_path, "--port", "0", "--executor", "process") as (service, about):
        token = (home / "service" / "token").read_text()
        assert (home / "service" / "token").stat().st_mode & 0o777 == 0o600
        assert token not in Path(f"/proc/{service.pid}/cmdline").read_text()
        assert ask(about, "GET", "/v1/health")[0] == 401
        assert ask(about, "GET", "/v1/health", Authorization=f"Bearer {token}")[0] == 200
        address = parlay("serve", "--page", "--json", cwd=tmp_path).json["address"]
        assert address.startswith(f"http://127.0.0.1:{about['port']}/enter?key=")
        other = parlay("serve", "--json", cwd=tmp_path)
        assert (other.code, other.json["error"]["code"]) == (5, "held")
        assert str(service.pid) in other.json["error"]["message"]
        path = search_file(tmp_path, SEARCH)
        search = SearchFolder(Path(parlay("submit", path, "--json", cwd=tmp_path).json["folder"]))
        until(lambda: driver_status(search) not in (0, service.pid), bool)
        line = http.client.HTTPConnection("127.0.0.1", about["port"], timeout=60)
        line.request("GET", f"/v1/searches/{search.search_id}/events", headers={"authorization": f"Bearer {token}"})
        assert any(told.rstrip() == b"event: trial_ended" for told in line.getresponse())
        line.close()
        assert not record_of(search).state.is_ended
        service.send_signal(signal.SIGTERM)
        assert service.wait(90) == 75
    assert driver_status(search) == 0
    assert not record_of(search).state.is_ended
    assert not (home / "service" / "token").exists()
    log = (home / "service" / "service.log").read_text()
    assert re.search(r"^\S+Z INFO    GET /v1/health 401", log, re.MULTILINE)
    assert token not in log
    assert parlay("cancel", search.search_id, "--json", cwd=tmp_path).code == 0
