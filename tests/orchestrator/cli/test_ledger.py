"""The ledger rebuilt from folders, and MLflow synchronized after a search's end. All in this process."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.search.lease import acquire_lease, current_lease, release_lease
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from tests.strangers import STRANGER, needs_a_stranger
from tests.trials.ledger.stories import Story
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader

pytestmark = pytest.mark.slow


@pytest.fixture
def finished(tmp_path, parlay) -> SearchFolder:
    """A search that has ended, in the default ledger."""
    code, answer, err = parlay("run", write_simulated_search(tmp_path, OK, OUT_OF_MEMORY))
    assert code == 0, err
    return SearchFolder(tmp_path / "runs" / answer["search_id"])


def written(runs: Path, story: Story) -> SearchFolder:
    """The folder of a search written by hand."""
    folder = SearchFolder(runs / story.search_id)
    folder.path.mkdir(parents=True)
    journal = Journal(folder.journal)
    for event in story.events:
        journal.append(event)
    journal.close()
    return folder


def unfinished(runs: Path, search_id: str = "going-aaaaaa") -> SearchFolder:
    story = Story(search_id)
    story.create(folder=str(runs / search_id))
    story.propose()
    return written(runs, story)


def test_what_was_predicted_of_each_layout_stands_beside_what_was_measured(finished, url):
    with closing(LedgerReader(url)) as reader:
        trials = reader.search(finished.search_id).trials
    assert len(trials) == 2
    for trial in trials:
        assert set(trial.prediction) == {"step_time_s", "peak_memory_gib", "model_hash"}
        assert 0 < trial.prediction["step_time_s"] < 60
        assert 0 < trial.prediction["peak_memory_gib"] < 200


def results(answer: dict[str, Any]) -> dict[str, str]:
    return {search["search_id"]: search["result"] for search in answer["searches"]}


def rows(url: str) -> list[Any]:
    """All rows of the ledger, without the times of their writing."""
    tables = ("search", "trial", "attempt", "command")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return [sorted(connection.execute(f"SELECT * FROM {table}"), key=repr) for table in tables]


class TestRebuild:
    def test_a_lost_ledger_comes_back_the_same(self, finished, parlay, url, own_home):
        before = LedgerReader(url).search(finished.search_id)
        for file in own_home.glob("ledger.db*"):
            file.unlink()
        code, answer, _ = parlay("ledger", "rebuild")
        assert (code, answer["schema"], answer["url"]) == (0, "parlay.ledger/1", url)
        assert results(answer) == {finished.search_id: "added"}
        assert LedgerReader(url).search(finished.search_id) == before
        assert parlay("status", finished.search_id[:7])[1]["best"]["trial"] == before.best_trial

    def test_again_it_changes_nothing(self, finished, parlay, url):
        before = rows(url)
        for _ in range(2):
            code, answer, _ = parlay("ledger", "rebuild", "runs", finished.path)
            assert (code, results(answer)) == (0, {finished.search_id: "unchanged"})
        assert rows(url) == before

    def test_rows_that_differ_or_are_older_are_replaced_and_commands_stay(self, finished, parlay, url):
        before = LedgerReader(url).search(finished.search_id)
        request_cancel(url, finished.search_id, at=1000.0)
        for damage in ("UPDATE trial SET state = 'proposed'", "UPDATE search SET last_seq = 3", "DELETE FROM attempt"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                connection.execute(damage)
                connection.commit()
            assert results(parlay("ledger", "rebuild")[1]) == {finished.search_id: "replaced"}
            assert LedgerReader(url).search(finished.search_id) == before
        assert [c.at for c in LedgerReader(url).pending_commands(finished.search_id)] == [1000.0]

    def test_rows_newer_than_an_old_copy_of_the_folder_are_left(self, finished, parlay, url, tmp_path):
        copy = SearchFolder(tmp_path / "backup" / finished.search_id)
        shutil.copytree(finished.path, copy.path)
        lines = copy.journal.read_bytes().splitlines(keepends=True)
        copy.journal.write_bytes(b"".join(lines[:4]))
        before = rows(url)
        code, answer, err = parlay("ledger", "rebuild", "backup")
        assert (code, results(answer)) == (0, {finished.search_id: "newer"})
        assert f"has {len(lines)} events of the search, this folder 4" in err
        assert rows(url) == before

    def test_a_search_that_is_driven_is_left_and_the_others_are_done(self, finished, parlay, url, tmp_path):
        driven = unfinished(tmp_path / "runs")
        lease = acquire_lease(driven, 2e9)
        code, answer, err = parlay("ledger", "rebuild")
        assert code == 5
        assert results(answer) == {finished.search_id: "unchanged", driven.search_id: "held"}
        assert f"driven by process {os.getpid()}" in err
        known = {search.search_id: search.num_trials for search in LedgerReader(url).searches()}
        assert known == {finished.search_id: 2, driven.search_id: 1}, "its driver goes on from there"
        assert current_lease(driven) == lease

    def test_a_search_that_nobody_drives_is_held_only_meanwhile(self, parlay, url, tmp_path):
        folder = unfinished(tmp_path / "runs")
        for expected in ("added", "unchanged"):
            code, answer, _ = parlay("ledger", "rebuild")
            assert (code, results(answer)) == (0, {folder.search_id: expected})
        before = Journal(folder.journal).read()
        assert acquire_lease(folder, 2e9).fencing == 3
        assert Journal(folder.journal).read() == before, "who only reads a search leaves no line in it"

    @needs_a_stranger
    @pytest.mark.parametrize("is_ended", [False, True])
    def test_another_users_search_is_added_once_it_has_ended_and_nothing_is_left_in_its_folder(
        self, finished, parlay, url, tmp_path, is_ended
    ):
        folder = finished if is_ended else unfinished(tmp_path / "theirs")
        for path in (folder.path, *folder.path.rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        before = sorted(folder.path.rglob("*"))
        Path(url.removeprefix("sqlite:///")).unlink()
        code, answer, _ = parlay("ledger", "rebuild", folder.path)
        assert results(answer) == {folder.search_id: "added" if is_ended else "damaged"}
        assert code == (0 if is_ended else 6)
        assert sorted(folder.path.rglob("*")) == before

    def test_a_damaged_journal_is_named_with_its_line_and_the_others_are_done(self, finished, parlay, url, tmp_path):
        whole, damaged = unfinished(tmp_path / "runs"), unfinished(tmp_path / "runs", "broken-aaaaaa")
        damaged.journal.write_bytes(damaged.journal.read_bytes().replace(b"t0001", b"t0009"))
        (unfinished(tmp_path / "runs", "empty-aaaaaa").journal).write_bytes(b"")
        code, answer, err = parlay("ledger", "rebuild")
        assert code == 6
        assert results(answer) == {
            "broken-aaaaaa": "damaged",
            "empty-aaaaaa": "damaged",
            finished.search_id: "unchanged",
            whole.search_id: "added",
        }
        assert f"{damaged.journal}:2: the line does not match its checksum" in err
        assert {s.search_id for s in LedgerReader(url).searches()} == {finished.search_id, whole.search_id}

    def test_a_moved_folder_is_recorded_where_it_lies(self, finished, parlay, url, tmp_path):
        moved = tmp_path / "elsewhere" / finished.search_id
        moved.parent.mkdir()
        finished.path.rename(moved)
        code, answer, _ = parlay("ledger", "rebuild", moved)
        assert (code, results(answer)) == (0, {finished.search_id: "replaced"})
        (summary,) = LedgerReader(url).searches()
        assert summary.folder == str(moved)
        assert parlay("best", finished.search_id)[1]["recipe"] == str(moved / "recipe")
        assert results(parlay("ledger", "rebuild", moved)[1]) == {finished.search_id: "unchanged"}

    def test_a_renamed_folder_is_another_searchs_and_refused(self, parlay, tmp_path):
        folder = unfinished(tmp_path / "runs")
        release_lease(folder, acquire_lease(folder, 2e9), 2e9)
        folder.path.rename(tmp_path / "runs" / "copy")
        code, answer, err = parlay("ledger", "rebuild")
        assert (code, results(answer)) == (6, {"copy": "damaged"})
        assert "is the folder of search going-aaaaaa" in err

    def test_what_holds_no_search_is_an_unknown_id(self, parlay, tmp_path):
        (tmp_path / "runs" / ".half.part").mkdir(parents=True)
        (tmp_path / "runs" / ".half.part" / "journal.jsonl").touch()
        for words in ((), ("runs",), ("nowhere",)):
            code, answer, _ = parlay("ledger", "rebuild", *words)
            assert (code, answer["error"]["code"]) == (4, "unknown_id")


class TestFolderAlone:
    """On a machine whose ledger does not have a search, its folder is enough, even after a move."""

    @pytest.fixture
    def brought(self, tmp_path, parlay, own_home) -> SearchFolder:
        """An unfinished search whose ledger and first place are gone."""
        code, answer, err = parlay("run", write_simulated_search(tmp_path, OK, OK, OK), "--set", "search.max_trials=2")
        assert code == 0, err
        first = SearchFolder(tmp_path / "runs" / answer["search_id"])
        lines = first.journal.read_bytes().splitlines(keepends=True)
        first.journal.write_bytes(b"".join(lines[:-3]))
        for file in own_home.glob("ledger.db*"):
            file.unlink()
        moved = SearchFolder(tmp_path / "brought" / "here" / first.search_id)
        moved.path.parent.mkdir(parents=True)
        first.path.rename(moved.path)
        (tmp_path / "runs").rmdir()
        return moved

    def test_status_reads_it(self, brought, parlay):
        code, answer, err = parlay("status", brought.path)
        assert code == 0, err
        assert (answer["search_id"], answer["state"]) == (brought.search_id, "running")

    def test_resume_goes_on_there_and_the_ledger_learns_of_it(self, brought, parlay, url):
        code, answer, err = parlay("resume", brought.path)
        assert code == 0, err
        assert (answer["state"], answer["num_trials"]) == ("completed", 2)
        (summary,) = LedgerReader(url).searches()
        assert (summary.state, summary.folder) == (SearchState.COMPLETED, str(brought.path))
        assert parlay("status", brought.search_id)[1] == answer
        assert parlay("best")[1]["recipe"] == str(brought.recipe)


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
        assert first | {"run_id": None} == {
            "schema": "parlay.sync/1",
            "search_id": offline.search_id,
            "uri": uri,
            "run_id": None,
            "sent": 3,
            "unsent": [],
        }
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

    def test_a_search_that_is_driven_is_left_to_its_driver(self, offline, parlay):
        acquire_lease(offline, 2e9)
        code, answer, _ = parlay("sync")
        assert (code, answer["error"]["code"]) == (5, "held")

    def test_a_search_without_tracking_is_bad_input(self, finished, parlay):
        code, answer, _ = parlay("sync")
        assert (code, answer["error"]["key"]) == (2, "tracking.enabled")
        shown_without = next(word for word in answer["error"]["fix"].split(";") if "report" in word).split()[:3]
        assert parlay(*shown_without[1:])[0] == 0

    def test_a_search_that_was_moved_is_sent_from_where_it_lies_now(self, offline, parlay):
        moved = offline.path.rename(offline.path.parents[1] / offline.search_id)
        code, answer, _ = parlay("sync")
        assert (code, answer["error"]["code"]) == (4, "unknown_id")
        assert answer["error"]["fix"].startswith("give the folder's present path; parlay ledger rebuild FOLDER")
        assert parlay("sync", f"{moved}/")[0] == 0
        assert parlay("ledger", "rebuild", moved)[0] == 0
        assert parlay("sync")[0] == 0
