"""Events of a search as server-sent events, read from its journal; a client resumes after the last event it read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from orchestrator.launchers.timeouts import submit_to_thread
from trials.ledger.events import Event, SearchRecord
from trials.ledger.journal import Journal, JournalDamaged, search_after

T = TypeVar("T")

POLL_S = 0.25
"""Seconds between two reads of a journal."""
SILENCE_S = 15.0
"""Seconds of silence until a keepalive comment."""


class JournalFollower:
    """Incremental reader of a search's journal: each call reads, parses and applies only what is new.

    `search` is the search after the last read; None if there is no journal. For one thread at a time.
    """

    def __init__(self, journal_file: Path):
        self._file = journal_file
        self._journal = Journal(journal_file)
        self.search: SearchRecord | None = None

    @property
    def has_ended(self) -> bool:
        return self.search is not None and self.search.state.is_ended

    def read_new(self) -> list[tuple[SearchRecord, Event]]:
        """Events since the last read, oldest first, each with the search after it; all from the first one if the writer
        has replaced a line. Raises JournalDamaged, and OSError."""
        try:
            events = self._journal.read_on()
        except JournalDamaged:
            self._journal, self.search = Journal(self._file), None
            events = self._journal.read_on()
        new = []
        for event in events:
            self.search = search_after(self._file, self._file.parent.name, event, self.search)
            new.append((self.search, event))
        return new


def stream(journal_file: Path, seq: int, is_stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Stream the events after `seq` until the search has ended or the service stops.

    Reads once before it returns, so that JournalDamaged and OSError become an error response instead of a broken
    stream.
    """
    journal_file.stat()
    follower = JournalFollower(journal_file)
    return _stream(follower, follower.read_new(), seq, is_stopping)


async def _stream(
    follower: JournalFollower, news: list[tuple[SearchRecord, Event]], seq: int, is_stopping: Callable[[], bool]
) -> AsyncIterator[str]:
    """The stream after a first read that found `news`."""
    sent_at = time.monotonic()
    yield "retry: 1000\n\n"
    while not is_stopping():
        for _, event in news:
            if event.seq > seq:
                yield sse(event)
                seq, sent_at = event.seq, time.monotonic()
        if follower.has_ended:  # according to the events just sent; a later end is sent next time
            return
        if time.monotonic() - sent_at > SILENCE_S:
            yield ": nothing new\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(POLL_S)
        news = await run_in_thread(follower.read_new)


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run file access in a thread of its own: a hung file system blocks no other stream and no exit."""
    return await asyncio.wrap_future(submit_to_thread(work, "look"))


def sse(event: Event) -> str:
    """Event in the wire format: `id` is its number, `event` its kind, `data` its line of the journal."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"
