"""Another user's search may be read: that starts no program of theirs, and sends them nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from orchestrator.cli.main import main as run
from orchestrator.config.loader import load_search_text
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.service.stall_watch import StallWatch
from tests.bad_inputs.cli import SEARCH, Cli
from tests.kit import created
from tests.orchestrator.service.services import driver_exit
from tests.strangers import STRANGER, needs_a_stranger
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind, SearchRecord
from trials.ledger.fold import fold
from trials.ledger.journal import Journal
from trials.ledger.location import ledger_url
from trials.ledger.writer import LedgerWriter

pytestmark = [pytest.mark.bad_input(44), pytest.mark.security("paths")]

READING = (
    "status",
    "best",
    "report",
    "export",
    "logs t0001",
    "watch",
    "plan --from",
    "compare",
    "ledger rebuild",
)
DRIVING = ("resume", "advance", "cancel", "sync")
A_DAY_S = 86400.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of theirs, whose connections are accepted by the kernel."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture
def trap(cli: Cli, listener: socket.socket) -> Path:
    """A program that leaves the file `started` behind."""
    program = cli.folder / "trap"
    program.write_text(f"#!/bin/sh\necho >> {cli.folder}/started\nexec true\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def search(cli: Cli, trap: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> SearchFolder:
    """A search that has not begun. It names the trap wherever it can name a program, and the listener for MLflow."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    text = SEARCH.replace("{enabled: false}", f"{{mlflow_uri: '{address}'}}")
    text += f"trainer: {{python: {trap}}}\nnotify: {{events: [stall], command: [{trap}]}}\n"
    return created(load_search_text(text, cli.folder, ()), ledger_url())


def hand_over(folder: SearchFolder) -> None:
    for path in (folder.path, *folder.path.rglob("*")):
        os.chown(path, STRANGER, -1)


def was_used(cli: Cli, listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return (cli.folder / "started").exists()
    return True


@needs_a_stranger
@pytest.mark.parametrize("verb", DRIVING)
def test_no_verb_drives_it(cli: Cli, search: SearchFolder, listener: socket.socket, verb: str):
    hand_over(search)
    for words in ([verb, search.path], [verb, search.search_id], [verb]):
        error = cli.refused(*words).error
        assert (error["code"], error["value"]) == ("folder_of_another", str(search.path))
        assert str(STRANGER) in error["message"]
    assert not was_used(cli, listener)


@needs_a_stranger
@pytest.mark.parametrize("verb", READING)
def test_the_verbs_that_read_it_start_and_ask_nothing(
    cli: Cli, search: SearchFolder, listener: socket.socket, verb: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.cli.watch.NO_DRIVER_LIMIT_S", 0.0)
    hand_over(search)
    named = [*verb.split(), str(search.path)]
    run([*named, str(search.path)] if verb == "compare" else named)
    assert "Traceback" not in cli.capsys.readouterr().err
    assert not was_used(cli, listener)


@needs_a_stranger
def test_its_recipe_is_replayed_only_if_told_to_trust_it(cli: Cli, ended: Path):
    hand_over(SearchFolder(ended))
    error = cli.refused("replay", ended).error
    assert (error["code"], error["key"], error["value"]) == ("trust", "recipe", str(ended / "recipe"))
    assert "--trust" in error["fix"]
    run(["replay", str(ended), "--trust"])
    assert "--trust" not in cli.capsys.readouterr().err


@needs_a_stranger
def test_the_service_neither_drives_it_nor_tells_its_command_of_a_stall(
    cli: Cli, search: SearchFolder, listener: socket.socket
):
    StallWatch(ledger_url()).check(time.time() + A_DAY_S)
    assert was_used(cli, listener), "of one's own search it does"
    (cli.folder / "started").unlink()
    (search.notified / "stall.json").unlink()
    hand_over(search)
    StallWatch(ledger_url()).check(time.time() + A_DAY_S)
    ended = driver_exit(search)
    assert (ended.is_refused, str(STRANGER) in ended.detail) == (True, True)
    assert not was_used(cli, listener)
    assert not search.driver_log.exists(), "it may be a link of theirs"


def test_a_row_of_a_shared_ledger_says_nothing_that_the_journal_of_our_folder_does_not(
    cli: Cli, trap: Path, listener: socket.socket
):
    folder = created(load_search_text(SEARCH, cli.folder, ()), ledger_url())
    first, *others = Journal(folder.journal).read()
    assert first.kind is EventKind.SEARCH_CREATED
    first.data["spec"]["notify"] |= {"command": [str(trap)], "events": ["stall"]}
    first.data["spec"]["trainer"]["python"] = str(trap)
    with closing(LedgerWriter(ledger_url())) as ledger:
        ledger.replace(cast(SearchRecord, fold(folder.search_id, [first, *others])), str(folder.path))
    StallWatch(ledger_url()).check(time.time() + A_DAY_S)
    assert run(["cancel", folder.search_id, "--json"]) == 0
    assert json.loads(cli.capsys.readouterr().out)["search_id"] == folder.search_id
    assert not was_used(cli, listener)


@pytest.mark.parametrize("folder", ["\0", 5, None, "that of another search"])
def test_a_row_of_a_shared_ledger_without_a_folder_of_its_own_is_refused_in_words(
    cli: Cli, search: SearchFolder, folder: object
):
    folder = str(search.path) if folder == "that of another search" else folder
    with closing(LedgerWriter(ledger_url())) as ledger:
        ledger.replace(cast(SearchRecord, fold("theirs", Journal(search.journal).read())), cast("str", folder))
    for verb in (*DRIVING, "status", "report"):
        assert run([verb, "theirs"]) == ExitCode.REFUSED
        assert "no folder" in cli.capsys.readouterr().err
    StallWatch(ledger_url()).check(time.time() + A_DAY_S)
    assert (cli.folder / "started").exists(), "one's own search is watched as ever"
