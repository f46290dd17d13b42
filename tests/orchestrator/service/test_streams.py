"""Events and reports of a search, told while its journal grows."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.report.html import Page
from orchestrator.service.event_stream import JournalFollower, sse, stream
from orchestrator.service.live_reports import MAX_CPU_SHARE, MIN_PAUSE_S, LiveReport
from tests.trials.ledger.stories import SEARCH_ID, measured_story, written
from trials.ledger.events import Event, SearchRecord
from trials.ledger.fold import fold
from trials.ledger.journal import Journal


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / SEARCH_ID).mkdir()
    return tmp_path / SEARCH_ID / "journal.jsonl"


async def told(journal: Journal, seq: int = 0) -> list[str]:
    return [words async for words in stream(journal.path, seq, lambda: False)][1:]


@pytest.mark.slow
def test_an_end_that_is_written_between_two_looks_is_reported_as_well(path, monkeypatch):
    story = measured_story()
    journal, read_on = written(path, story.events[:-1]), Journal.read_on

    def read_then_ended(self: Journal) -> list[Event]:
        events = read_on(self)
        monkeypatch.setattr(Journal, "read_on", read_on)
        journal.append(story.events[-1])
        return events

    monkeypatch.setattr(Journal, "read_on", read_then_ended)
    assert asyncio.run(told(journal)) == [sse(event) for event in story.events]


@pytest.mark.slow
def test_the_stream_of_a_journal_that_is_gone_ends(path):
    journal = written(path, measured_story().events[:4])

    async def follow() -> None:
        async for words in stream(journal.path, 0, lambda: False):
            if words.startswith("id: 4"):
                path.unlink()

    with pytest.raises(FileNotFoundError):
        asyncio.run(follow())


def test_each_look_reads_what_is_new(path):
    story = measured_story()
    journal = written(path, story.events[:4])
    follower = JournalFollower(journal.path)
    assert follower.read_new() == story.events[:4]
    for event in story.events[4:]:
        journal.append(event)
        assert list(follower.new_states()) == [(follower.search, event)]
    assert follower.search == fold(SEARCH_ID, story.events)
    assert follower.has_ended
    assert follower.read_new() == []


def test_a_line_that_its_writer_took_back_is_reported_as_the_one_that_stands_there(path):
    story = measured_story()
    journal = written(path, story.events[:-1])
    follower = JournalFollower(journal.path)
    follower.read_new()
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:-1]))
    other = replace(story.events[-2], at=story.events[-2].at + 1)
    written(path, [other])
    assert follower.read_new() == [*story.events[:-2], other]


class LiveRig:
    """A growing journal, and renderings that take `render_s` of a simulated clock."""

    def __init__(self, path: Path):
        self.path = path
        self.story = measured_story()
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
        written(self.path, self.story.events[done : done + count])


@pytest.fixture
def rig(path):
    return LiveRig(path)


def test_one_rendering_serves_all_until_something_changes_and_a_long_one_has_a_longer_pause(rig):
    rig.grow()
    assert [rig.report.newest().page.text for _ in range(5)] == ["after 1"] * 5
    rig.now += 1000
    assert rig.report.age_s(rig.report.newest()) == 1000, "times of trials in flight go on from there"
    assert rig.rendered == [1]
    rig.render_s = 2.0
    rig.grow()
    rig.report.newest()
    rig.grow()
    rig.now += rig.render_s / MAX_CPU_SHARE - 0.1
    assert rig.report.newest().seq == 2
    rig.now += 0.2
    assert rig.report.newest().seq == 3


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
