"""MLflow's real server over what was recorded, and a sync through one that is killed on the way."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dashboards.mlflow_sync import MlflowSync, tracking_uri
from dashboards.server import MlflowServer, ServerFailed, show_dashboard, tunnel_command
from search_spaces.errors import InputError
from tests.dashboards.searches import SEARCH_ID, ended_search, search_folder
from tests.dashboards.test_mlflow_sync import everything, runs_by_name

processes = pytest.mark.processes


def session_of(pid: int) -> list[int]:
    """The processes whose session `pid` leads, zombies not counted."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if session == str(pid) and state != "Z":
            found.append(int(stat.parent.name))
    return found


@processes
@pytest.mark.timeout(300)
@pytest.mark.fault(33)
def test_fault_33_a_server_killed_in_the_middle_and_started_again_has_every_run_once(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # the first answer of a server that has just started

    home = tmp_path / "home"
    search = ended_search()
    folder = search_folder(tmp_path, search.record)
    with MlflowServer(tracking_uri(None, home), home) as server:
        sync = MlflowSync(server.address, "killed", home)
        assert sync.check() is None
        sync.sync(search.records[len(search.records) // 2], folder)
        os.killpg(server._process.pid, signal.SIGKILL)
        server.wait()
        with pytest.raises(Exception, match=r"(?i)refused|connection"):
            sync.sync(search.record, folder)
        assert sync.unsent(search.record)
    with MlflowServer(tracking_uri(None, home), home, server.port) as server:
        sync.sync(search.record, folder)
        client = MlflowClient(server.address)
        before = everything(client, "killed")
        MlflowSync(server.address, "killed", home).sync(search.record, folder)
        assert everything(client, "killed") == before
        found = runs_by_name(client, "killed")
        assert sorted(found) == sorted([SEARCH_ID, "t0001", "t0002", "t0003", "t0004"])
        parent = found.pop(SEARCH_ID).info.run_id
        assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent}


@processes
@pytest.mark.timeout(240)
def test_the_server_ends_with_its_command_even_when_that_is_killed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dashboards.server import show_dashboard\n"
        "show_dashboard(f'sqlite:///{sys.argv[1]}/m.db', Path(sys.argv[1]), lambda words: print(words, flush=True))"
    )
    command = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline().startswith("MLflow: http://127.0.0.1:")
    guards = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == command.pid]
    session = list(opened(pid for guard in guards for pid in session_of(guard)))
    assert len(session) >= 3  # the guard, MLflow's command, its server
    command.kill()
    for process in session:
        assert select.select([process], [], [], 60)[0], "a process of the server outlived its command"


def opened(pids: Iterable[int]) -> Iterator[int]:
    """A descriptor for each of these processes that has not ended meanwhile."""
    for pid in pids:
        with suppress(ProcessLookupError):
            yield os.pidfd_open(pid)


def parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


@processes
@pytest.mark.timeout(120)
def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path):
    server = MlflowServer("nonsense://nowhere", tmp_path)
    with pytest.raises(ServerFailed, match="nonsense"), server:
        pass


def test_a_store_with_a_server_of_its_own_is_only_named(tmp_path):
    said: list[str] = []
    show_dashboard("http://mlflow.example:5000", tmp_path / "home", said.append)
    assert said == ["MLflow: http://mlflow.example:5000"]
    assert not (tmp_path / "home").exists()


def test_the_tunnel_leads_to_the_loopback_of_this_machine():
    assert tunnel_command(5123).startswith("ssh -N -L 5123:127.0.0.1:5123 ")


@pytest.mark.parametrize(
    ("full", "shown"),
    [("node1.example.org", "node1.example.org"), ("localhost", "node1"), ("localhost.local", "node1")],
)
def test_the_tunnel_leads_to_a_name_that_others_know(monkeypatch, full, shown):
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1")
    assert tunnel_command(5123).endswith(f"@{shown}")


@pytest.mark.parametrize("uri", ["./mlruns", "htp://x", "sqlite:mlflow.db"])
def test_an_address_mlflow_cannot_use_is_refused_with_the_fix_and_no_server_is_started(tmp_path, uri):
    with pytest.raises(InputError) as caught:
        show_dashboard(uri, tmp_path / "home", pytest.fail)
    (problem,) = caught.value.problems
    assert uri in problem.message
    assert problem.rule
    assert problem.fix
    assert not (tmp_path / "home").exists()


@pytest.mark.bad_input(35)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    "uri",
    [
        "http://me:hunter2@host:5000",
        "postgresql://me:hunter2@db/x",
        "postgresql://db/x?password=hunter2",
        "x://a:hunter2@[",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(tmp_path, uri):
    with pytest.raises(InputError, match="holds a password") as caught:
        show_dashboard(uri, tmp_path / "home", pytest.fail)
    assert "hunter2" not in str(caught.value.problems)
