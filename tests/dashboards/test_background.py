"""Background report and synchronisation: the newest record wins, and neither delays or stops the search."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dashboards import background
from dashboards.background import MlflowWorker, ReportWorker
from dashboards.mlflow.sync import SyncReport
from dashboards.report import write
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
    for name in ("_MLFLOW_PAUSE_S", "_FIRST_RETRY_S", "_LONGEST_RETRY_S"):
        monkeypatch.setattr(background, name, 0.0)


def unsent_after(worker: MlflowWorker, timeout_s: float) -> list[str]:
    worker.finish(timeout_s)
    return worker.unsent()


def worker_of(sync: FakeSync, *records, ready=None) -> MlflowWorker:
    worker = MlflowWorker(sync, FOLDER, *([ready] if ready else []))
    for record in records:
        worker.submit(record)
    return worker


def test_the_last_record_is_sent_before_finish_returns_and_without_one_there_is_nothing_to_finish(logged):
    sync = FakeSync()
    worker = worker_of(sync, *RECORDS)
    assert unsent_after(worker, 5) == []
    assert sync.sent[-1] == RECORDS[-1].last_seq
    assert worker.report is not None
    assert unsent_after(worker_of(FakeSync()), 5) == []
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
    assert unsent_after(worker, 5) == []
    (said,) = logged
    assert "connection refused" in said
    assert "secret" not in said


@pytest.mark.fault(33)
def test_a_store_that_never_answers_costs_the_search_its_timeout_and_names_what_is_missing():
    sync = FakeSync()
    sync.gate.clear()
    assert unsent_after(worker_of(sync, RECORDS[-1]), 0.05) == [SEARCH_ID]
    sync.gate.set()
    assert unsent_after(worker_of(FakeSync(failures=10**9), RECORDS[-1]), 5) == [SEARCH_ID]


def test_what_was_changed_or_left_out_is_said_once(logged):
    report = SyncReport("sqlite:///x", "r", 1, altered_names=("a/b",), unread=("t0001: no such file",))
    worker_of(FakeSync(report=report), *RECORDS).finish(5)
    altered, unread = sorted(logged)
    assert altered.endswith(": a/b")
    assert unread.endswith(": t0001: no such file")


def test_nothing_is_sent_before_the_store_may_be_used():
    sync, ready = FakeSync(), threading.Event()
    worker = worker_of(sync, RECORDS[0], ready=ready.wait)
    assert unsent_after(worker, 0.05) == [SEARCH_ID]
    assert not sync.entered.is_set()
    ready.set()
    assert unsent_after(worker, 5) == []


FIRST, LAST = RECORDS[0].last_seq, RECORDS[-1].last_seq


@pytest.fixture
def written(monkeypatch):
    """Sequence numbers of the written records, and a semaphore that is released after each."""
    found, again = [], threading.Semaphore(0)

    def write_one(search, folder, at):
        found.append(search.last_seq)
        again.release()

    monkeypatch.setattr(write, "write_report", write_one)
    return found, again


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("first_pause_s", "least_pause_s", "waits", "sent", "expected"),
    [
        (0.0, None, 1, RECORDS, [FIRST, LAST]),
        (0.0, 0.0, 2, (RECORDS[0], RECORDS[-1]), [FIRST, LAST]),
        (3600.0, None, 0, RECORDS, [LAST]),
        (0.0, None, 1, RECORDS[:1], [FIRST]),
        (0.0, None, 0, (), []),
    ],
    ids=["ends soon", "after the pause", "over at once", "written already", "nothing handed"],
)
def test_after_the_first_report_one_is_written_after_a_pause_and_one_at_the_end(
    written, tmp_path, monkeypatch, first_pause_s, least_pause_s, waits, sent, expected
):
    found, again = written
    monkeypatch.setattr(ReportWorker, "first_pause_s", first_pause_s)
    if least_pause_s is not None:
        monkeypatch.setattr(background, "_LEAST_PAUSE_S", least_pause_s)
    reporter = ReportWorker(SearchFolder(tmp_path))
    for number, record in enumerate(sent):
        reporter.submit(record)
        if number < waits:
            assert again.acquire(timeout=5)
    reporter.finish(5)
    assert found == expected
    assert (reporter._thread is None) is (not sent)


@pytest.mark.usefixtures("silent")
def test_once_stopped_it_writes_nothing(written, tmp_path, monkeypatch):
    found, _ = written
    monkeypatch.setattr(ReportWorker, "first_pause_s", 3600.0)
    reporter = ReportWorker(SearchFolder(tmp_path))
    reporter.submit(RECORDS[0])
    reporter.stop()
    reporter.finish(5)
    assert found == []
    assert not reporter._thread.is_alive()


def test_a_report_that_cannot_be_written_is_a_remark(tmp_path, logged):
    reporter = ReportWorker(SearchFolder(tmp_path / "gone" / SEARCH_ID))
    reporter.submit(RECORDS[-1])
    reporter.finish(5)
    (said,) = logged
    assert "FileNotFoundError" in said


def test_where_no_thread_can_be_started_that_is_a_remark_and_tried_again(written, tmp_path, monkeypatch, logged):
    found, _ = written
    reporter = ReportWorker(SearchFolder(tmp_path))

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        reporter.submit(RECORDS[0])
        reporter.submit(RECORDS[1])
        reporter.finish(0)
    (said,) = logged
    assert "can't start new thread" in said
    reporter.submit(RECORDS[-1])
    reporter.finish(5)
    assert found == [LAST]
