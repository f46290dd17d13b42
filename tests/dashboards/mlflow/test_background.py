"""Background synchronisation: the newest record wins, the search never waits, and a failing store is survived."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dashboards.mlflow import background
from dashboards.mlflow.background import MlflowWorker
from dashboards.mlflow.sync import SyncReport
from tests.dashboards.searches import SEARCH_ID, ended_search
from trials.files.folders import SearchFolder

FOLDER = SearchFolder(Path("/nowhere") / SEARCH_ID)
RECORDS = ended_search().records


class FakeSync:
    """Stands for MlflowSync: fails as often as told, and blocks while `gate` is closed."""

    uri = "http://somebody:secret@mlflow"

    def __init__(self, failures: int = 0, report: SyncReport | None = None):
        self.sent: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self._failures = failures
        self._report = report or SyncReport(self.uri, "r", 1)

    def sync(self, search, folder) -> SyncReport:
        self.entered.set()
        self.gate.wait()
        if self._failures:
            self._failures -= 1
            raise ConnectionError("connection refused\nlong story")
        self.sent.append(search.last_seq)
        return self._report

    def unsent(self, search) -> list[str]:
        return [] if search.last_seq in self.sent else [SEARCH_ID]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    for name in ("_PAUSE_S", "_FIRST_RETRY_S", "_LONGEST_RETRY_S"):
        monkeypatch.setattr(background, name, 0.0)


def test_the_last_record_is_sent_before_finish_returns(logged):
    sync = FakeSync()
    worker = MlflowWorker(sync, FOLDER)
    for record in RECORDS:
        worker.submit(record)
    assert worker.finish(5) == []
    assert sync.sent[-1] == RECORDS[-1].last_seq
    assert logged == []
    assert worker.report is not None


def test_of_the_records_handed_over_meanwhile_only_the_newest_is_sent():
    sync = FakeSync()
    sync.gate.clear()
    worker = MlflowWorker(sync, FOLDER)
    worker.submit(RECORDS[0])
    sync.entered.wait()
    for record in RECORDS[1:]:
        worker.submit(record)
    sync.gate.set()
    worker.finish(5)
    assert sync.sent == [1, RECORDS[-1].last_seq]


@pytest.mark.security("secrets")
@pytest.mark.fault(33)
def test_a_store_that_fails_is_noted_once_without_its_secrets_and_tried_again(logged):
    sync = FakeSync(failures=3)
    worker = MlflowWorker(sync, FOLDER)
    worker.submit(RECORDS[-1])
    while not sync.sent:
        sync.entered.wait()
    assert worker.finish(5) == []
    assert len(logged) == 1
    assert "connection refused" in logged[0]
    assert "secret" not in logged[0]


@pytest.mark.fault(33)
def test_a_store_that_never_answers_costs_the_search_its_timeout_and_names_what_is_missing():
    sync = FakeSync()
    sync.gate.clear()
    worker = MlflowWorker(sync, FOLDER)
    worker.submit(RECORDS[-1])
    assert worker.finish(0.05) == [SEARCH_ID]
    sync.gate.set()


def test_the_last_call_fails_once_and_is_not_repeated():
    sync = FakeSync(failures=10**9)
    worker = MlflowWorker(sync, FOLDER)
    worker.submit(RECORDS[-1])
    assert worker.finish(5) == [SEARCH_ID]


def test_what_was_changed_or_left_out_is_said_once(logged):
    report = SyncReport("sqlite:///x", "r", 1, altered_names=("a/b",), unread=("t0001: no such file",))
    worker = MlflowWorker(FakeSync(report=report), FOLDER)
    for record in RECORDS:
        worker.submit(record)
    worker.finish(5)
    assert sorted(logged) == [
        "names that MLflow does not accept were altered: a/b",
        "not sent to MLflow: t0001: no such file",
    ]


def test_without_a_record_there_is_nothing_to_finish():
    assert MlflowWorker(FakeSync(), FOLDER).finish(5) == []


def test_nothing_is_sent_before_the_store_may_be_used():
    sync, ready = FakeSync(), threading.Event()
    worker = MlflowWorker(sync, FOLDER, ready.wait)
    worker.submit(RECORDS[0])
    assert worker.finish(0.05) == [SEARCH_ID]
    assert not sync.entered.is_set()
    ready.set()
    assert worker.finish(5) == []
