"""Events streamed from a journal."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.service import event_stream
from orchestrator.service.event_stream import JournalFollower, sse, stream
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story
from trials.ledger.events import Event
from trials.ledger.fold import fold
from trials.ledger.journal import Journal, JournalDamaged


def written(folder: Path, events: list[Event]) -> Journal:
    path = folder / SEARCH_ID / "journal.jsonl"
    path.parent.mkdir(exist_ok=True)
    journal = Journal(path)
    for event in events:
        journal.append(event)
    return journal


async def told(journal: Journal, seq: int = 0) -> list[str]:
    return [words async for words in stream(journal.path, seq, lambda: False)][1:]


@pytest.mark.slow
def test_an_end_that_is_written_between_two_looks_is_reported_as_well(tmp_path, monkeypatch):
    story: Story = measured_story()
    journal, read_on = written(tmp_path, story.events[:-1]), Journal.read_on

    def read_then_ended(self: Journal) -> list[Event]:
        events = read_on(self)
        monkeypatch.setattr(Journal, "read_on", read_on)
        journal.append(story.events[-1])
        return events

    monkeypatch.setattr(Journal, "read_on", read_then_ended)
    assert asyncio.run(told(journal)) == [sse(event) for event in story.events]


@pytest.mark.parametrize("seq", [0, 3, 10**15])
def test_what_is_told_does_not_hang_on_how_the_journal_grew(tmp_path, monkeypatch, seq):
    """The same events as if each read covered the whole journal: every event after `seq`, once, up to the end."""
    story: Story = measured_story()
    whole = written(tmp_path, story.events).path.read_bytes()
    ends = [*range(0, len(whole), 300), len(whole)]
    grows = Journal(tmp_path / SEARCH_ID / "grows.jsonl")
    grows.path.write_bytes(whole[: ends.pop(0)])

    async def grow(_: float) -> None:
        grows.path.write_bytes(whole[: ends.pop(0)])

    monkeypatch.setattr(event_stream.asyncio, "sleep", grow)
    assert asyncio.run(told(grows, seq)) == [sse(event) for event in story.events if event.seq > seq]
    assert not ends


def test_each_look_reads_what_is_new_and_no_more(tmp_path, monkeypatch):
    story: Story = measured_story()
    journal = written(tmp_path, story.events[:4])
    follower = JournalFollower(journal.path)
    assert follower.read_new() == story.events[:4]
    for event in story.events[4:]:
        journal.append(event)
        assert follower.read_new() == [event]
    assert follower.search == fold(SEARCH_ID, story.events)
    assert follower.has_ended
    assert follower.read_new() == []


def test_a_line_that_its_writer_took_back_is_reported_as_the_one_that_stands_there(tmp_path):
    story: Story = measured_story()
    journal = written(tmp_path, story.events[:-1])
    follower = JournalFollower(journal.path)
    follower.read_new()
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:-1]))
    other = replace(story.events[-2], at=story.events[-2].at + 1)
    written(tmp_path, [other])
    assert follower.read_new() == [*story.events[:-2], other]
    assert follower.search == fold(SEARCH_ID, [*story.events[:-2], other])


def test_a_damaged_journal_is_refused_and_not_told_from_memory(tmp_path):
    story: Story = measured_story()
    journal = written(tmp_path, story.events)
    follower = JournalFollower(journal.path)
    follower.read_new()
    journal.path.write_bytes(journal.path.read_bytes() + b"{}\n")
    with pytest.raises(JournalDamaged, match=f":{len(story.events) + 1}: "):
        follower.read_new()


@pytest.mark.slow
def test_streams_of_a_file_system_that_hangs_hold_up_no_other_and_no_exit(tmp_path, monkeypatch):
    """More streams than a usual thread pool has threads."""
    (tmp_path / "mount").mkdir()
    healthy, others = written(tmp_path, measured_story().events[:-1]), measured_story().events[-1:]
    hanging, goes_on = written(tmp_path / "mount", measured_story().events[:-1]), threading.Event()
    size = JournalFollower.size

    def size_or_nothing(self: JournalFollower) -> int:
        if self._file == hanging.path and not is_first(self):
            goes_on.wait()
        return size(self)

    seen: set[int] = set()

    def is_first(follower: JournalFollower) -> bool:
        return id(follower) not in seen and not seen.add(id(follower))

    monkeypatch.setattr(JournalFollower, "size", size_or_nothing)

    async def all_of_them() -> list[str]:
        stuck = [asyncio.create_task(told(hanging)) for _ in range(40)]
        await asyncio.sleep(2 * event_stream.POLL_S)
        healthy.append(others[0])
        found = await asyncio.wait_for(told(healthy), 5.0)
        for task in stuck:
            task.cancel()
        return found

    try:
        assert len(asyncio.run(all_of_them())) == len(measured_story().events)
    finally:
        goes_on.set()
