"""A live report is rendered once per change for all viewers, at a limited rate."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from dashboards.report.html import Page
from orchestrator.service import live_reports
from orchestrator.service.live_reports import MAX_CPU_SHARE, MIN_PAUSE_S, LiveReport, LiveReports, report_events
from search_spaces.errors import InputError
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal


class LiveRig:
    """A growing journal, and renderings that take `render_s` of a simulated clock."""

    def __init__(self, folder: Path):
        self.path = folder / SEARCH_ID / "journal.jsonl"
        self.path.parent.mkdir()
        self.story: Story = measured_story()
        self.journal = Journal(self.path)
        self.rendered: list[int] = []
        self.now, self.render_s = 0.0, 0.0
        self.report = LiveReport(self.path, self.render, lambda: self.now)

    def render(self, search: SearchRecord) -> Page:
        self.rendered.append(search.last_seq)
        self.now += self.render_s
        return Page(f"after {search.last_seq}", "")

    def grow(self, count: int = 1) -> None:
        done = len(self.journal.read())
        for event in self.story.events[done : done + count]:
            self.journal.append(event)


@pytest.fixture
def rig(tmp_path):
    return LiveRig(tmp_path)


def test_one_rendering_serves_all_until_something_changes(rig):
    rig.grow()
    assert [rig.report.newest().page.text for _ in range(5)] == ["after 1"] * 5
    rig.now += 1000
    rig.report.newest()
    assert rig.rendered == [1]


def test_however_fast_it_changes_a_pause_lies_between_two_renderings(rig):
    rig.grow()
    rig.report.newest()
    for _ in range(6):
        rig.grow()
        rig.now += MIN_PAUSE_S / 3
        rig.report.newest()
    assert rig.rendered == [1, 4, 7]


def test_a_long_rendering_has_a_longer_pause(rig):
    rig.render_s = 2.0
    rig.grow()
    rig.report.newest()
    rig.grow()
    rig.now += rig.render_s / MAX_CPU_SHARE - 0.1
    assert rig.report.newest().seq == 1
    rig.now += 0.2
    assert rig.report.newest().seq == 2


def test_who_comes_while_another_one_renders_does_not_wait(rig):
    rig.grow()
    first = rig.report.newest()
    begun, go_on = threading.Event(), threading.Event()

    def slow(search: SearchRecord) -> Page:
        begun.set()
        assert go_on.wait(10)
        return Page("slow", "")

    rig.report._render = slow
    rig.grow()
    rig.now += MIN_PAUSE_S
    other = threading.Thread(target=rig.report.newest)
    other.start()
    assert begun.wait(10)
    assert rig.report.newest() is first
    go_on.set()
    other.join(10)
    assert rig.report.newest().page.text == "slow"


def test_a_journal_that_cannot_be_seen_from_here_is_a_word_and_no_page(rig):
    with pytest.raises(InputError, match=r"journal\.jsonl"):
        rig.report.newest()


def test_a_page_is_told_of_each_rendering_and_of_the_last_one(rig, monkeypatch):
    rig.grow()

    async def pause(_: float) -> None:
        rig.grow(4)
        rig.now += MIN_PAUSE_S

    monkeypatch.setattr(live_reports.asyncio, "sleep", pause)
    assert asyncio.run(told(rig)) == [(1, False), (5, False), (9, False), (13, True)]


async def told(rig: LiveRig) -> list[tuple[int, bool]]:
    blocks = [block async for block in report_events(rig.report, lambda: None, lambda: False)][1:]
    found = [dict(line.split(": ", 1) for line in block.strip().splitlines()) for block in blocks]
    assert {block["event"] for block in found} == {"report"}
    return [(data["seq"], data["is_ended"]) for data in (json.loads(block["data"]) for block in found)]


def test_a_page_to_which_nothing_happens_is_told_that_the_line_stands_and_how_the_search_does(rig, monkeypatch):
    rig.grow()
    monkeypatch.setattr(live_reports, "KEEPALIVE_S", -1.0)
    looks = iter([False, False, True])

    async def nothing(_: float) -> None:
        pass

    monkeypatch.setattr(live_reports.asyncio, "sleep", nothing)

    async def words() -> list[str]:
        return [block async for block in report_events(rig.report, lambda: "its disk is full", lambda: next(looks))]

    _, *blocks = asyncio.run(words())
    assert [block.splitlines()[0] for block in blocks] == ["event: report", "event: alive"]
    assert all('"stopped": "its disk is full"' in block for block in blocks)


def test_the_reports_that_were_looked_at_last_are_kept(tmp_path):
    reports = LiveReports()
    first = id(reports.of(tmp_path / "0"))
    for number in range(live_reports._MAX_CACHED):
        assert reports.of(tmp_path / str(number)) is reports.of(tmp_path / str(number))
    assert id(reports.of(tmp_path / "0")) == first
    reports.of(tmp_path / "more")
    assert id(reports.of(tmp_path / "0")) == first
    reports.of(tmp_path / "more still")
    assert len(reports._reports) == live_reports._MAX_CACHED


def test_a_report_that_somebody_looks_at_is_kept_however_many_others_there_are(tmp_path):
    reports = LiveReports()
    watched = [reports.of(tmp_path / str(number)) for number in range(3 * live_reports._MAX_CACHED)]
    assert [reports.of(tmp_path / str(number)) for number in range(3 * live_reports._MAX_CACHED)] == watched
