"""A damaged ledger: every verb names the fix, and verbs that need only a search's folder work."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.main import run
from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle import cancel
from orchestrator.lifecycle.create import create_search
from orchestrator.search.lease import acquire_lease
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.commands import CommandKind
from trials.ledger.events import SearchState
from trials.ledger.reader import LedgerReader

pytestmark = [pytest.mark.slow, pytest.mark.fault(30)]


@pytest.fixture
def begun(tmp_path, parlay, url, own_home) -> SearchFolder:
    """A search without a driver, and a ledger that was truncated afterwards."""
    folder = not_driven_yet(tmp_path, url)
    os.truncate(own_home / "ledger.db", (own_home / "ledger.db").stat().st_size // 2)
    return folder


def not_driven_yet(folder: Path, url: str) -> SearchFolder:
    return create_search(load_search_file(write_simulated_search(folder, OK, OUT_OF_MEMORY)), url)


def put_aside(home: Path) -> list[str]:
    return [path.name for path in home.glob("ledger.db.damaged-*[!lm]")]


@pytest.mark.parametrize(
    "verb", ["status", "status --all", "best", "logs t0001", "resume", "cancel", "advance", "report"]
)
def test_every_verb_that_meets_it_offers_to_make_it_anew(begun, parlay, own_home, verb):
    code, answer, _ = parlay(*verb.split())
    assert code == 6
    assert "the ledger is damaged" in answer["error"]["message"]
    assert "parlay ledger rebuild FOLDER" in answer["error"]["fix"]
    assert put_aside(own_home) == []


def test_rebuild_puts_it_aside_and_makes_it_anew(begun, parlay, own_home, url):
    code, answer, err = parlay("ledger", "rebuild")
    assert (code, [search["result"] for search in answer["searches"]]) == (0, ["added"])
    assert [Path(answer["put_aside"]).name] == put_aside(own_home)
    assert "the ledger was damaged: it is kept as" in err
    assert parlay("status")[1]["search_id"] == begun.search_id
    assert parlay("ledger", "rebuild")[1]["put_aside"] is None


def test_status_needs_the_folder_alone(begun, parlay, own_home):
    code, answer, err = parlay("status", begun.path)
    assert code == 0, err
    assert (answer["search_id"], put_aside(own_home)) == (begun.search_id, [])


def test_resume_needs_the_folder_alone(begun, parlay, own_home, url):
    code, answer, err = parlay("resume", begun.path)
    assert code == 0, err
    assert (answer["state"], answer["num_trials"]) == ("completed", 2)
    assert "restores the other searches" in err
    assert len(put_aside(own_home)) == 1
    assert LedgerReader(url).search(begun.search_id).state is SearchState.COMPLETED


@pytest.mark.parametrize("nonsense", ["state = 'asleep'", "spec = '[]'", "last_seq = 0"])
def test_resume_makes_rows_anew_that_say_nonsense(tmp_path, parlay, own_home, url, nonsense):
    folder = not_driven_yet(tmp_path, url)
    with closing(sqlite3.connect(own_home / "ledger.db")) as connection, connection:
        connection.execute(f"UPDATE search SET {nonsense}")
    code, answer, err = parlay("resume", folder.path)
    assert (code, answer.get("state"), put_aside(own_home)) == (0, "completed", []), err
    assert LedgerReader(url).search(folder.search_id).state is SearchState.COMPLETED


def test_cancel_needs_the_folder_alone(begun, parlay, url):
    assert parlay("cancel", begun.path)[0] == 0
    assert LedgerReader(url).search(begun.search_id).state is SearchState.CANCELLED


def test_a_driver_hears_of_a_cancel_by_the_ledger_that_was_made_anew(begun, parlay, url, monkeypatch):
    acquire_lease(begun, 2e9)
    monkeypatch.setattr(cancel, "CANCEL_TIMEOUT_S", 0.5)
    assert parlay("cancel", begun.path)[0] == ExitCode.CANCEL_INCOMPLETE
    with closing(LedgerReader(url)) as reader:
        assert [command.kind for command in reader.pending_commands(begun.search_id)] == [CommandKind.CANCEL]


def test_a_driver_goes_on_in_the_ledger_that_was_made_anew_meanwhile(tmp_path, parlay, url, own_home, monkeypatch):
    """The driver has the old file open; it holds its search, and so rebuilds it."""
    from orchestrator.search import driver

    turns, turn = [], driver.Driver.iterate

    def rebuilt_between(self) -> None:
        turns.append(turn(self))
        if len(turns) == 2:
            os.truncate(own_home / "ledger.db", 4096)
            assert run(["ledger", "rebuild", "--json"]) == 5

    monkeypatch.setattr(driver.Driver, "iterate", rebuilt_between)
    assert run(["run", str(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY)), "--json"]) == 0
    (summary,) = LedgerReader(url).searches()
    assert (summary.state, summary.num_trials) == (SearchState.COMPLETED, 2)
    assert len(put_aside(own_home)) == 1
