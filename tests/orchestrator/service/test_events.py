"""What a journal tells whoever follows it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.service.events import sse, stream
from tests.trials.ledger.stories import SEARCH_ID, Story, measured_story
from trials.ledger.events import Event
from trials.ledger.journal import Journal


def written(folder: Path, events: list[Event]) -> Journal:
    path = folder / SEARCH_ID / "journal.jsonl"
    path.parent.mkdir(exist_ok=True)
    journal = Journal(path)
    for event in events:
        journal.append(event)
    return journal


async def told(journal: Journal) -> list[str]:
    return [words async for words in stream(journal.path, 0, lambda: False)][1:]


def test_an_end_that_is_written_between_two_looks_is_told_as_well(tmp_path, monkeypatch):
    story: Story = measured_story()
    journal, read = written(tmp_path, story.events[:-1]), Journal.read

    def read_then_ended(self: Journal) -> list[Event]:
        events = read(self)
        monkeypatch.setattr(Journal, "read", read)
        journal.append(story.events[-1])
        return events

    monkeypatch.setattr(Journal, "read", read_then_ended)
    assert asyncio.run(told(journal)) == [sse(event) for event in story.events]
