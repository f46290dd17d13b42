"""What a journal tells whoever follows it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.service import events
from orchestrator.service.events import Follower, sse, stream
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story
from trials.ledger.events import Event, fold
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


def test_an_end_that_is_written_between_two_looks_is_told_as_well(tmp_path, monkeypatch):
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
    """As it was told when each look read the whole journal: every event after number `seq`, once, up to the end."""
    story: Story = measured_story()
    whole = written(tmp_path, story.events).path.read_bytes()
    ends = [*range(0, len(whole), 300), len(whole)]
    grows = Journal(tmp_path / SEARCH_ID / "grows.jsonl")
    grows.path.write_bytes(whole[: ends.pop(0)])

    async def grow(_: float) -> None:
        grows.path.write_bytes(whole[: ends.pop(0)])

    monkeypatch.setattr(events.asyncio, "sleep", grow)
    assert asyncio.run(told(grows, seq)) == [sse(event) for event in story.events if event.seq > seq]
    assert not ends


def test_each_look_reads_what_is_new_and_no_more(tmp_path, monkeypatch):
    story: Story = measured_story()
    journal = written(tmp_path, story.events[:4])
    follower = Follower(journal.path)
    assert follower.news() == story.events[:4]
    for event in story.events[4:]:
        journal.append(event)
        assert follower.news() == [event]
    assert follower.search == fold(SEARCH_ID, story.events)
    assert follower.has_ended
    assert follower.news() == []


def test_a_line_that_its_writer_took_back_is_told_as_the_one_that_stands_there(tmp_path):
    story: Story = measured_story()
    journal = written(tmp_path, story.events[:-1])
    follower = Follower(journal.path)
    follower.news()
    journal.path.write_bytes(b"".join(journal.path.read_bytes().splitlines(keepends=True)[:-1]))
    other = replace(story.events[-2], at=story.events[-2].at + 1)
    written(tmp_path, [other])
    assert follower.news() == [*story.events[:-2], other]
    assert follower.search == fold(SEARCH_ID, [*story.events[:-2], other])


def test_a_damaged_journal_is_refused_and_not_told_from_memory(tmp_path):
    story: Story = measured_story()
    journal = written(tmp_path, story.events)
    follower = Follower(journal.path)
    follower.news()
    journal.path.write_bytes(journal.path.read_bytes() + b"{}\n")
    with pytest.raises(JournalDamaged, match=f":{len(story.events) + 1}: "):
        follower.news()
