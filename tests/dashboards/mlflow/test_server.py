"""Real MLflow server over recorded runs, and a sync through one that is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import requests
from sqlalchemy import create_engine, make_url, text

from dashboards.access.ports import reserve_port
from dashboards.mlflow.server import MlflowServer, is_answering, page_address, show_dashboard
from dashboards.mlflow.sync import MlflowSync
from orchestrator.lifecycle.mlflow_resync import resync
from search_spaces.errors import ExternalError, InputError
from tests.dashboards.mlflow.mlflow_content import everything, without_ids
from tests.dashboards.searches import ended_search, search_folder
from tests.strangers import STRANGER, needs_a_stranger
from trials.ledger.journal import Journal

processes = pytest.mark.processes
ELSEWHERE = {"origin": "http://elsewhere.example"}
ADMIN, PASSWORD = "admin", "a password of twelve letters"


class ServerWithPasswords(MlflowServer):
    """MLflow's server as teams run it: nobody is let in without a password."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--app-name", "basic-auth"]

    def _front(self) -> list[str]:
        return []

    def _environment(self) -> dict[str, str]:
        configuration = self._home / "auth.ini"
        configuration.write_text(
            "[mlflow]\n"
            "default_permission = READ\n"
            f"database_uri = sqlite:///{self._home}/auth.db\n"
            f"admin_username = {ADMIN}\n"
            f"admin_password = {PASSWORD}\n"
            "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
            "auth_cache_ttl_seconds = 600\n"  # else each request costs a tenth of a second of hashing
        )
        settings = {"MLFLOW_AUTH_CONFIG_PATH": str(configuration), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test"}
        return super()._environment() | settings


@pytest.fixture
def store(request, tmp_path) -> str:
    """The address of an empty database; of a Postgres one that no other test uses."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/mlflow.db"
    url = make_url(request.getfixturevalue("postgres_url"))
    with create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE DATABASE mlflow"))
    return url.set(database="mlflow").render_as_string(hide_password=False)


@pytest.fixture
def port() -> Iterator[int]:
    """A port for servers one after the other, which is nobody else's meanwhile."""
    with reserve_port() as held:
        yield held.getsockname()[1]


@processes
@pytest.mark.walks
@pytest.mark.timeout(900)
@pytest.mark.fault(33)
@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)], indirect=True)
def test_a_server_killed_in_the_middle_and_started_again_has_everything_once(tmp_path, monkeypatch, port, store):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")  # the first answer of a server that has just started
    home = tmp_path / "home"
    search = ended_search()
    folder = search_folder(tmp_path, search.record)
    folder.report.write_text("<p>the report")
    with closing(Journal(folder.journal)) as journal:
        for event in search.events:
            journal.append(event)
    with ServerWithPasswords(store, home, port) as server:
        with pytest.raises(InputError, match="MLFLOW_TRACKING_USERNAME"):
            MlflowSync(server.address, "killed", home).check()
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
        sync = MlflowSync(server.address, "killed", home)
        assert sync.check() is None
        sync.sync(search.records[len(search.records) // 2], folder)
        with monkeypatch.context() as patch:
            kill_before_a_batch(patch, server, sync, after_batches=3)
            with pytest.raises(Exception, match=r"(?i)refused|connection"):
                sync.sync(search.record, folder)
        assert sync.unsent(search.record)
    with ServerWithPasswords(store, home, port) as server:
        sync.sync(search.record, folder)
        for _ in range(2):
            late = resync(folder, MlflowSync(server.address, "killed", home))
            assert (late.sent, late.unsent) == (5, [])
        MlflowSync(server.address, "undisturbed", home).sync(search.record, folder)
        client = MlflowClient(server.address)
        assert without_ids(everything(client, "killed")) == without_ids(everything(client, "undisturbed"))


def kill_before_a_batch(patch: pytest.MonkeyPatch, server: MlflowServer, sync: MlflowSync, after_batches: int) -> None:
    """End the server like a crash once so many batches more have been written."""
    client = sync._store._client
    original, left = client.log_batch, iter(range(after_batches))

    def log_batch(*args, **kwargs):
        if next(left, None) is None:
            os.killpg(server._process.pid, signal.SIGKILL)
            server.wait()
        return original(*args, **kwargs)

    patch.setattr(client, "log_batch", log_batch)


@processes
@pytest.mark.timeout(600)
@pytest.mark.security("service")
def test_only_who_can_read_the_token_reads_tags_or_writes_anything(tmp_path, monkeypatch):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with MlflowServer(f"sqlite:///{tmp_path}/mlflow.db", tmp_path) as server:
        assert server.token.path.stat().st_mode & 0o777 == 0o600
        stranger = MlflowClient(server.address)
        for asked in (stranger.search_experiments, lambda: stranger.create_experiment("x", f"{tmp_path}/anywhere")):
            with pytest.raises(MlflowException, match="401"):
                asked()
        with monkeypatch.context() as own:
            own.setenv("MLFLOW_TRACKING_TOKEN", server.token.path.read_text())
            run = stranger.create_run(stranger.create_experiment("mine"))
            (tmp_path / "words.txt").write_text("some")
            stranger.log_artifact(run.info.run_id, str(tmp_path / "words.txt"))
        with pytest.raises(MlflowException, match="401"):
            stranger.set_tag(run.info.run_id, "a", "b")
        browser, search = requests.Session(), f"{server.address}/ajax-api/2.0/mlflow/experiments/search"
        assert browser.get(server.address).status_code == 401
        entered = browser.get(page_address(tmp_path, None, time.time()))
        assert entered.status_code == 200
        assert "mlflow" in browser.get(server.address).text.lower()
        asked = {"max_results": 10}
        found = browser.post(search, json=asked).json()
        assert "mine" in {experiment["name"] for experiment in found["experiments"]}
        assert browser.post(search, json=asked, headers=ELSEWHERE).status_code == 403
        upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert requests.get(server.address, headers=upgrade).status_code == 401
    assert not server.token.path.exists()
    with pytest.raises(ExternalError, match="no dashboard runs"):
        page_address(tmp_path, None, time.time())


@needs_a_stranger
@pytest.mark.security("service")
def test_another_user_who_takes_the_port_first_is_not_told_the_token():
    os.seteuid(STRANGER)
    try:
        listening = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with listening:
        assert not is_answering(listening.getsockname()[1], "the token")
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            listening.accept()


@pytest.mark.walks
@processes
@pytest.mark.timeout(600)
def test_the_server_ends_with_its_command_even_when_that_is_killed(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dashboards.mlflow.server import show_dashboard\n"
        "show_dashboard(f'sqlite:///{sys.argv[1]}/m.db', Path(sys.argv[1]), lambda words: print(words, flush=True))"
    )
    command = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline().startswith("MLflow: http://127.0.0.1:")
    started = psutil.Process(command.pid).children(recursive=True)
    assert len(started) >= 3  # the guard, MLflow's command, its server
    command.kill()
    assert psutil.wait_procs(started, timeout=60)[1] == [], "a process of the server outlived its command"


@pytest.mark.bad_input(35)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    "uri",
    [
        *("./mlruns", "htp://x", "sqlite:mlflow.db"),
        *("http://me:hunter2@host:5000", "postgresql://me:hunter2@db/x"),
        *("postgresql://db/x?password=hunter2", "x://a:hunter2@["),
    ],
)
def test_an_address_that_mlflow_cannot_use_or_with_a_password_is_refused_and_no_password_repeated(tmp_path, uri):
    with pytest.raises(InputError) as caught:
        show_dashboard(uri, tmp_path / "home", pytest.fail)
    (problem,) = caught.value.problems
    assert problem.rule
    assert problem.fix
    assert "hunter2" not in str(problem)
    assert ("holds a password" in problem.message) is ("hunter2" in uri)
    assert not (tmp_path / "home").exists()


def test_a_store_with_a_server_of_its_own_is_only_named(tmp_path):
    said: list[str] = []
    show_dashboard("http://mlflow.example:5000", tmp_path / "home", said.append)
    assert (said, (tmp_path / "home").exists()) == (["MLflow: http://mlflow.example:5000"], False)
