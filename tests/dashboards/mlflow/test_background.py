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


def worker_of(sync: FakeSync, *records, ready=None) -> MlflowWorker:
    worker = MlflowWorker(sync, FOLDER, *([ready] if ready else []))
    for record in records:
        worker.submit(record)
    return worker


def test_the_last_record_is_sent_before_finish_returns_and_without_one_there_is_nothing_to_finish(logged):
    sync = FakeSync()
    worker = worker_of(sync, *RECORDS)
    assert worker.finish(5) == []
    assert sync.sent[-1] == RECORDS[-1].last_seq
    assert worker.report is not None
    assert worker_of(FakeSync()).finish(5) == []
    assert logged == []


def test_of_the_records_handed_over_meanwhile_only_the_newest_is_sent():
    sync = FakeSync()
    sync.gate.clear()
    worker = worker_of(sync, RECORDS[0])
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
    worker = worker_of(sync, RECORDS[-1])
    while not sync.sent:
        sync.entered.wait()
    assert worker.finish(5) == []
    (said,) = logged
    assert "connection refused" in said
    assert "secret" not in said


@pytest.mark.fault(33)
def test_a_store_that_never_answers_costs_the_search_its_timeout_and_names_what_is_missing():
    sync = FakeSync()
    sync.gate.clear()
    assert worker_of(sync, RECORDS[-1]).finish(0.05) == [SEARCH_ID]
    sync.gate.set()
    assert worker_of(FakeSync(failures=10**9), RECORDS[-1]).finish(5) == [SEARCH_ID]


def test_what_was_changed_or_left_out_is_said_once(logged):
    report = SyncReport("sqlite:///x", "r", 1, altered_names=("a/b",), unread=("t0001: no such file",))
    worker_of(FakeSync(report=report), *RECORDS).finish(5)
    altered, unread = sorted(logged)
    assert altered.endswith(": a/b")
    assert unread.endswith(": t0001: no such file")


def test_nothing_is_sent_before_the_store_may_be_used():
    sync, ready = FakeSync(), threading.Event()
    worker = worker_of(sync, RECORDS[0], ready=ready.wait)
    assert worker.finish(0.05) == [SEARCH_ID]
    assert not sync.entered.is_set()
    ready.set()
    assert worker.finish(5) == []
