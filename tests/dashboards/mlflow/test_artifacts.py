"""Times at which report and description are sent: rarely while the search runs, and the newest after its end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.mlflow import runs
from dashboards.mlflow.artifacts import REPORT_PAUSE_S, PendingPages, SentPages, pending_pages
from tests.dashboards.searches import START, ended_search
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord, SearchState
from trials.trial import utc_text

ENDED = ended_search().record
RUNNING = replace(ENDED, state=SearchState.RUNNING, end_reason=None, ended_at=None)
FIGURES = {"figures/progress.html", "figures/memory.html", "figures/parallel.html", "figures/heat.html"}


@pytest.fixture
def folder(tmp_path) -> SearchFolder:
    return SearchFolder(tmp_path)


def write(folder: SearchFolder, at: float) -> None:
    folder.report.write_text(f"<p>as of {at}", encoding="utf-8")
    os.utime(folder.report, (at, at))


def due(
    search: SearchRecord,
    folder: SearchFolder,
    sent_at: float | None = None,
    described_at: float | None = None,
    is_last: bool = False,
) -> PendingPages:
    moments = (None if moment is None else utc_text(moment) for moment in (sent_at, described_at))
    return pending_pages(search, folder, SentPages(*moments), is_last, lambda trial: None)


def test_the_first_report_of_a_running_search_is_due_and_the_next_ten_minutes_later_with_its_description(folder):
    assert due(RUNNING, folder) == PendingPages()
    write(folder, START)
    first = due(RUNNING, folder)
    assert first.texts == {"report.html": f"<p>as of {START}"}
    assert first.tags[runs.REPORT] == first.described_at == utc_text(START)
    assert due(RUNNING, folder, sent_at=START) == PendingPages()
    write(folder, START + REPORT_PAUSE_S - 1)
    assert due(RUNNING, folder, sent_at=START).texts == {}
    write(folder, START + REPORT_PAUSE_S)
    assert set(due(RUNNING, folder, sent_at=START).texts) == {"report.html"}
    write(folder, START + 60)
    newer = due(RUNNING, folder, sent_at=START)
    assert newer.tags[runs.NOTE].startswith("**Running, 4 layouts. 1.00k tokens/s, no comparison: ")
    assert set(newer.tags) == {runs.NOTE, runs.NOTE_MARK}
    assert due(RUNNING, folder, sent_at=START, described_at=START + 60).tags == {}


def test_an_ended_search_has_its_newest_report_and_its_figures_once(folder):
    write(folder, START + 1)
    last = due(ENDED, folder, sent_at=START, is_last=True)
    assert set(last.texts) <= {"report.html"} | FIGURES
    assert {"report.html", "figures/progress.html"} <= set(last.texts)
    assert last.texts["figures/progress.html"].startswith("<!DOCTYPE html>")
    assert due(ENDED, folder, sent_at=START + 1) == PendingPages()
    assert "report.html" in due(RUNNING, folder, sent_at=START + 6).texts, "brought here, although it is older"


@pytest.mark.slow
def test_a_link_in_place_of_the_report_is_not_followed(folder, tmp_path):
    Path(tmp_path / "secret").write_text("x")
    folder.report.symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="not a regular file"):
        due(ENDED, folder, is_last=True)
