"""The ledger rebuilt from folders, also where it is damaged, and MLflow synchronized afterwards. In this process."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main as run
from orchestrator.config.loader import load_search_file
from orchestrator.search.lease import acquire_lease, current_lease, release_lease
from tests.kit import created
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from tests.strangers import STRANGER, needs_a_stranger
from tests.trials.ledger.stories import Story
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader


def unended(runs: Path, search_id: str = "going-aaaaaa") -> SearchFolder:
    story = Story(search_id)
    story.create(folder=str(runs / search_id))
    story.propose()
    folder = SearchFolder(runs / search_id)
    folder.path.mkdir(parents=True)
    with closing(Journal(folder.journal)) as journal:
        for event in story.events:
            journal.append(event)
    return folder


def results(answer: dict[str, Any]) -> dict[str, str]:
    return {search["search_id"]: search["result"] for search in answer["searches"]}


def rows(url: str) -> list[Any]:
    """All rows of the ledger, without the times of their writing."""
    tables = ("search", "trial", "attempt", "command")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables]


@pytest.mark.slow
class TestRebuild:
    def test_a_lost_ledger_comes_back_the_same(self, ended, parlay, url, own_home):
        before = LedgerReader(url).search(ended.search_id)
        for file in own_home.glob("ledger.db*"):
            file.unlink()
        code, answer, _ = parlay("ledger", "rebuild")
        assert (code, answer["schema"], answer["url"]) == (0, "parlay.ledger/1", url)
        assert results(answer) == {ended.search_id: "added"}
        assert LedgerReader(url).search(ended.search_id) == before
        assert parlay("status", ended.search_id[:7])[1]["best"]["trial"] == before.best_trial

    def test_rows_that_differ_or_are_older_are_replaced_commands_stay_and_again_it_changes_nothing(
        self, ended, parlay, url
    ):
        before = LedgerReader(url).search(ended.search_id)
        request_cancel(url, ended.search_id, at=1000.0)
        for damage in ("UPDATE trial SET state = 'proposed'", "UPDATE search SET last_seq = 3", "DELETE FROM attempt"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                connection.execute(damage)
                connection.commit()
            assert results(parlay("ledger", "rebuild")[1]) == {ended.search_id: "replaced"}
            assert LedgerReader(url).search(ended.search_id) == before
        assert [c.at for c in LedgerReader(url).pending_commands(ended.search_id)] == [1000.0]
        written = rows(url)
        code, answer, _ = parlay("ledger", "rebuild", "runs", ended.path)
        assert (code, results(answer)) == (0, {ended.search_id: "unchanged"})
        assert rows(url) == written

    def test_rows_newer_than_an_old_copy_of_the_folder_are_left(self, ended, parlay, url, tmp_path):
        copy = SearchFolder(tmp_path / "backup" / ended.search_id)
        shutil.copytree(ended.path, copy.path)
        lines = copy.journal.read_bytes().splitlines(keepends=True)
        copy.journal.write_bytes(b"".join(lines[:4]))
        before = rows(url)
        code, answer, err = parlay("ledger", "rebuild", "backup")
        assert (code, results(answer)) == (0, {ended.search_id: "newer"})
        assert f"has {len(lines)} events of the search, this folder 4" in err
        assert rows(url) == before

    def test_a_search_that_is_driven_is_left_and_the_others_are_done(self, ended, parlay, url, tmp_path):
        driven = unended(tmp_path / "runs")
        lease = acquire_lease(driven, 2e9)
        code, answer, err = parlay("ledger", "rebuild")
        assert code == 5
        assert results(answer) == {ended.search_id: "unchanged", driven.search_id: "held"}
        assert f"driven by process {os.getpid()}" in err
        known = {search.search_id: search.num_trials for search in LedgerReader(url).searches()}
        assert known == {ended.search_id: 3, driven.search_id: 1}, "its driver goes on from there"
        assert current_lease(driven) == lease

    @needs_a_stranger
    @pytest.mark.parametrize("is_ended", [False, True])
    def test_another_users_search_is_added_once_it_has_ended_and_nothing_is_left_in_its_folder(
        self, ended, parlay, url, tmp_path, is_ended
    ):
        folder = ended if is_ended else unended(tmp_path / "theirs")
        for path in (folder.path, *folder.path.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        before = sorted(folder.path.rglob("*"))
        Path(url.removeprefix("sqlite:///")).unlink()
        code, answer, _ = parlay("ledger", "rebuild", folder.path)
        assert results(answer) == {folder.search_id: "added" if is_ended else "damaged"}
        assert code == (0 if is_ended else 6)
        assert sorted(folder.path.rglob("*")) == before

    def test_a_moved_folder_is_recorded_where_it_lies(self, ended, parlay, url, tmp_path):
        moved = tmp_path / "elsewhere" / ended.search_id
        moved.parent.mkdir()
        ended.path.rename(moved)
        code, answer, _ = parlay("ledger", "rebuild", moved)
        assert (code, results(answer)) == (0, {ended.search_id: "replaced"})
        assert parlay("best", ended.search_id)[1]["recipe"] == str(moved / "recipe")

    def test_a_renamed_folder_is_another_searchs_and_what_holds_no_search_an_unknown_id(self, parlay, tmp_path):
        folder = unended(tmp_path / "runs")
        release_lease(folder, acquire_lease(folder, 2e9), 2e9)
        folder.path.rename(tmp_path / "runs" / "copy")
        code, answer, err = parlay("ledger", "rebuild")
        assert (code, results(answer)) == (6, {"copy": "damaged"})
        assert "is the folder of search going-aaaaaa" in err
        (tmp_path / "empty" / ".half.part").mkdir(parents=True)
        (tmp_path / "empty" / ".half.part" / "journal.jsonl").touch()
        for words in ("empty", "nowhere"):
            code, answer, _ = parlay("ledger", "rebuild", words)
            assert (code, answer["error"]["code"]) == (4, "unknown_id")


@pytest.mark.slow
class TestSync:
    @pytest.fixture
    def offline(self, tmp_path, parlay) -> SearchFolder:
        """A search that ended while its MLflow, to be a file, could not be reached."""
        blocker = tmp_path / "store"
        text = TABLE_SEARCH.replace(
            "{enabled: false}", f"{{mlflow_uri: 'sqlite:///{blocker}/mlflow.db', experiment: late}}"
        )
        blocker.mkdir()
        path = write_simulated_search(tmp_path, OK, OUT_OF_MEMORY, text=text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orchestrator.lifecycle.create.open_tracking", lambda spec: None)
            code, answer, err = parlay("run", path)
        assert code == 0, err
        return SearchFolder(tmp_path / "runs" / answer["search_id"])

    def test_what_was_not_sent_is_sent_and_the_second_time_changes_nothing(self, offline, parlay, tmp_path):
        from mlflow.tracking import MlflowClient

        code, first, err = parlay("sync")
        assert code == 0, err
        uri = f"sqlite:///{tmp_path}/store/mlflow.db"
        told = {"schema": "parlay.sync/1", "search_id": offline.search_id, "uri": uri, "sent": 3, "unsent": []}
        assert first == told | {"run_id": first["run_id"]}
        assert parlay("status")[1]["mlflow"] == {"uri": uri, "run_id": first["run_id"]}
        assert parlay("sync", offline.search_id) == (0, first, "")
        client = MlflowClient(uri)
        runs = client.search_runs([client.get_experiment_by_name("late").experiment_id])
        assert sorted(run.info.run_name.split()[0] for run in runs) == sorted([offline.search_id, "t0001", "t0002"])
        assert {run.info.status for run in runs} == {"FINISHED", "FAILED"}

    def test_what_cannot_be_sent_is_named_and_left_with_its_own_code(self, offline, parlay, monkeypatch):
        from dashboards.mlflow.sync import MlflowSync

        def fail(self, search, folder):
            raise ConnectionError("connection refused")

        with monkeypatch.context() as patch:
            patch.setattr(MlflowSync, "sync", fail)
            code, answer, err = parlay("sync")
        assert code == 6
        assert (answer["run_id"], answer["sent"]) == (None, 0)
        assert answer["unsent"] == [offline.search_id, "t0001", "t0002"]
        assert "connection refused" in err
        assert parlay("sync")[0] == 0

    def test_a_search_that_is_driven_or_not_tracked_is_refused(self, offline, ended, parlay):
        acquire_lease(offline, 2e9)
        code, answer, _ = parlay("sync", offline.path)
        assert (code, answer["error"]["code"]) == (5, "held")
        code, answer, _ = parlay("sync", ended.path)
        assert (code, answer["error"]["key"]) == (2, "tracking.enabled")


@pytest.fixture
def begun(tmp_path, parlay, url, own_home) -> SearchFolder:
    """A search without a driver, and a ledger that was truncated afterwards."""
    folder = created(load_search_file(write_simulated_search(tmp_path, OK, OUT_OF_MEMORY)), url)
    os.truncate(own_home / "ledger.db", (own_home / "ledger.db").stat().st_size // 2)
    return folder


def put_aside(home: Path) -> list[str]:
    return [path.name for path in home.glob("ledger.db.damaged-*[!lm]")]


@pytest.mark.slow
@pytest.mark.fault(30)
@pytest.mark.parametrize("verb", ["status --all", "best", "logs t0001", "resume", "cancel", "advance", "report"])
def test_every_verb_that_meets_it_offers_to_make_it_anew(begun, parlay, own_home, verb):
    code, answer, _ = parlay(*verb.split())
    assert code == 6
    assert "the ledger is damaged" in answer["error"]["message"]
    assert "parlay ledger rebuild FOLDER" in answer["error"]["fix"]
    assert put_aside(own_home) == []


@pytest.mark.slow
@pytest.mark.fault(30)
def test_rebuild_puts_it_aside_and_makes_it_anew(begun, parlay, own_home, url):
    code, answer, err = parlay("ledger", "rebuild")
    assert (code, [search["result"] for search in answer["searches"]]) == (0, ["added"])
    assert [Path(answer["put_aside"]).name] == put_aside(own_home)
    assert "the ledger was damaged: it is kept as" in err
    assert parlay("status")[1]["search_id"] == begun.search_id
    assert parlay("ledger", "rebuild")[1]["put_aside"] is None


@pytest.mark.slow
@pytest.mark.fault(30)
@pytest.mark.parametrize(("verb", "state"), [("resume", SearchState.COMPLETED), ("cancel", SearchState.CANCELLED)])
def test_status_resume_and_cancel_need_the_folder_alone(begun, parlay, own_home, url, verb, state):
    code, answer, err = parlay("status", begun.path)
    assert (code, answer["search_id"], put_aside(own_home)) == (0, begun.search_id, []), err
    code, answer, err = parlay(verb, begun.path)
    assert (code, len(put_aside(own_home))) == (0, 1), err
    assert "restores the other searches" in err
    assert LedgerReader(url).search(begun.search_id).state is state


@pytest.mark.slow
@pytest.mark.fault(30)
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
