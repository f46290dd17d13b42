"""Background report: rarely written, always at the end, and no risk for the search."""

from __future__ import annotations

import threading

import pytest

from dashboards.report import background, write
from dashboards.report.background import ReportWorker
from tests.dashboards.searches import SEARCH_ID, ended_search
from trials.files.folders import SearchFolder

RECORDS = ended_search().records


@pytest.fixture
def written(monkeypatch):
    """Sequence numbers of the written records, and a semaphore that is released after each."""
    found, again = [], threading.Semaphore(0)

    def write_one(search, folder, at):
        found.append(search.last_seq)
        again.release()

    monkeypatch.setattr(write, "write_report", write_one)
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", 0.0)
    return found, again


@pytest.mark.usefixtures("silent")
def test_after_the_first_report_the_next_is_the_last_where_the_search_ends_soon(written, tmp_path):
    found, again = written
    reporter = ReportWorker(SearchFolder(tmp_path))
    reporter.submit(RECORDS[0])
    assert again.acquire(timeout=5)
    for record in RECORDS[1:]:
        reporter.submit(record)
    reporter.finish(5)
    assert found == [RECORDS[0].last_seq, RECORDS[-1].last_seq]


@pytest.mark.usefixtures("silent")
def test_after_the_pause_the_newest_is_written_while_the_search_runs(written, tmp_path, monkeypatch):
    found, again = written
    monkeypatch.setattr(background, "_LEAST_PAUSE_S", 0.0)
    reporter = ReportWorker(SearchFolder(tmp_path))
    for record in (RECORDS[0], RECORDS[-1]):
        reporter.submit(record)
        assert again.acquire(timeout=5)
    assert found == [RECORDS[0].last_seq, RECORDS[-1].last_seq]
    reporter.finish(5)


@pytest.mark.usefixtures("silent")
def test_a_search_that_is_over_at_once_has_one_report(written, tmp_path, monkeypatch):
    found, _ = written
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", 3600.0)
    reporter = ReportWorker(SearchFolder(tmp_path))
    for record in RECORDS:
        reporter.submit(record)
    reporter.finish(5)
    assert found == [RECORDS[-1].last_seq]


@pytest.mark.usefixtures("silent")
def test_what_is_written_already_is_not_written_again(written, tmp_path):
    found, again = written
    reporter = ReportWorker(SearchFolder(tmp_path))
    reporter.submit(RECORDS[0])
    assert again.acquire(timeout=5)
    reporter.finish(5)
    assert found == [RECORDS[0].last_seq]


def test_a_report_that_cannot_be_written_is_a_remark(tmp_path, logged):
    reporter = ReportWorker(SearchFolder(tmp_path / "gone" / SEARCH_ID))
    reporter.submit(RECORDS[-1])
    reporter.finish(5)
    assert len(logged) == 1
    assert logged[0].startswith("report.html cannot be written, retrying: FileNotFoundError")


@pytest.mark.usefixtures("silent")
def test_once_stopped_it_writes_nothing(written, tmp_path, monkeypatch):
    found, _ = written
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", 3600.0)
    reporter = ReportWorker(SearchFolder(tmp_path))
    reporter.submit(RECORDS[0])
    reporter.stop()
    reporter.finish(5)
    assert found == []
    assert not reporter._thread.is_alive()


@pytest.mark.usefixtures("silent")
def test_where_nothing_was_handed_nothing_is_done(tmp_path):
    reporter = ReportWorker(SearchFolder(tmp_path))
    assert reporter._thread is None
    reporter.finish(5)
    assert not list(tmp_path.iterdir())


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
    assert logged == ["report.html cannot be written, retrying: RuntimeError: can't start new thread"]
    reporter.submit(RECORDS[-1])
    reporter.finish(5)
    assert found == [RECORDS[-1].last_seq]
