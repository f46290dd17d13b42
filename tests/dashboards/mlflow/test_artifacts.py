"""Times at which report and description are sent, and the description: Markdown, with foreign text escaped."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.mlflow import runs
from dashboards.mlflow.artifacts import REPORT_PAUSE_S, PendingPages, SentPages, pending_pages
from dashboards.mlflow.description import search_description
from dashboards.report.data import report_data
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import a_search
from tests.dashboards.searches import START, SearchUnderTest, ended_search
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


BASELINE = Layout()


def note(search: SearchRecord, **links: str) -> str:
    return search_description(report_data(search, search.created_at), links.get)


def test_the_winner_comes_first_with_its_speed_its_interval_and_how_much_faster_it_is():
    search = a_search()
    search.end()
    lines = note(search.record).splitlines()
    times = "\N{MULTIPLICATION SIGN}"
    assert lines[0] == "**1.50x faster than the baseline (1.44–1.56)**"
    layout = f"tensor 2 {times} pipeline 2 {times} data 2, micro-batch 1, accumulation 4, schedule 1f1b"
    assert f"- best layout: t0003, {layout}" in lines
    assert "- tokens per second: 1,500, 95 % 1,470–1,530" in lines
    assert "- peak memory: 3 GiB of the fullest rank" in lines
    assert "Completed: reached the limit of 20 layouts." in lines
    assert any("2 measured, 1 failed" in line for line in lines)


def test_the_best_layouts_stand_in_a_table_fastest_first_ten_at_most():
    search = SearchUnderTest()
    for size in range(1, 13):
        search.measure(search.start(replace(BASELINE, tensor_parallel=size)), 100.0 * size)
    search.measure(search.start(replace(BASELINE, tensor_parallel=12), "repeat"), 1100.0)
    text = note(search.record, t0012="#/experiments/1/runs/2")
    assert "The first 10 of 12 measured layouts" in text
    rows = [
        line.removeprefix("| ").split("&ensp; | ") for line in text.splitlines() if line.startswith(("| tp", "| [tp"))
    ]
    assert [row[0] for row in rows[1:]] == [f"tp{number} pp1 dp1 mb1" for number in range(11, 2, -1)]
    assert (rows[0][0], rows[0][1], rows[0][-1]) == ("[tp12 pp1 dp1 mb1](#/experiments/1/runs/2)", "1,149", "2&ensp; |")


def test_what_others_wrote_is_no_markdown_and_no_html():
    search = SearchUnderTest()
    search.end("failed", "submission_rejected")
    detail = "<img src=x onerror=alert(1)> [here](http://x) | *bold* `code`\x1b[31m\n# heading"
    text = note(replace(search.record, detail=detail))
    said = text.splitlines()[0]
    assert said.startswith(
        r"**The cluster rejected a job: \<img src=x onerror=alert(1)\> \[here\](http://x) \| \*bold\* \`code\`"
    )
    assert "\x1b" not in text
    assert r"\# heading" in said
