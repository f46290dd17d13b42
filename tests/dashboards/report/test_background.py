"""Background report: rarely written, always at the end, and no risk for the search."""

from __future__ import annotations

import threading

import pytest

from dashboards.report import background, write
from dashboards.report.background import ReportWorker
from tests.dashboards.searches import SEARCH_ID, ended_search
from trials.files.folders import SearchFolder

RECORDS = ended_search().records
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
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", first_pause_s)
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
    monkeypatch.setattr(background, "_FIRST_PAUSE_S", 3600.0)
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
