"""Real services, and searches whose trials end when a test lets them."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.lifecycle.driver_job import parlay_command
from orchestrator.planning.candidates import candidates_of
from orchestrator.service.driver_process import DriverExit, DriverProcess
from tests.kit import TINY_SEARCH, loaded, search_text
from tests.orchestrator.cli.parlay import environment
from tests.orchestrator.tabled_parlay import COMMAND
from trials.files.folders import SearchFolder
from trials.ledger.location import ledger_url

SEARCH = search_text(TINY_SEARCH, search={"max_trials": 4}, tracking={"enabled": False})
"""Four trials of two ranks, whose times come from a table; the baseline's is the first."""


def hold(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep all trials of a search in this folder from ending before `open_gate`, except the baseline's."""
    spec = loaded(folder, SEARCH)
    assert spec.baseline is not None
    held = {layout.key for layout in candidates_of(spec).layouts} - {spec.baseline.key}
    table = folder / "table.json"
    table.write_text(json.dumps({key: {"waits_for": str(folder / "open_gate")} for key in held}))
    monkeypatch.setenv("PARLAY_TEST_TABLE", str(table))


def open_gate(folder: Path) -> None:
    (folder / "open_gate").touch()


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run `parlay serve` in this folder, and yield its process and its address; killed afterwards."""
    log = (folder / "serve.log").open("a")
    process = subprocess.Popen(
        [*COMMAND, "serve", "--json", *options],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        while "}\n" not in lines:
            lines.append(process.stdout.readline())
            assert lines[-1], (folder / "serve.log").read_text()
        yield process, json.loads("".join(lines))
    finally:
        process.kill()
        process.wait()
        log.close()


def driver_exit(search: SearchFolder) -> DriverExit:
    """End of a driver that was started as the service starts it."""
    command = parlay_command("resume", str(search.path), "--ledger", ledger_url(), "--json")
    ended = DriverProcess(command).run()
    assert ended is not None
    return ended


def ask(about: dict[str, Any], method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Send a request to the service; return status and body."""
    line = http.client.HTTPConnection("127.0.0.1", about["port"], timeout=60)
    if about["socket"] is not None:
        line.sock = socket.socket(socket.AF_UNIX)
        line.sock.connect(about["socket"])
    line.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"} | headers)
    answer = line.getresponse()
    return answer.status, json.loads(answer.read())
