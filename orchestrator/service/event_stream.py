"""Events of a search as server-sent events, read from its journal; a client resumes after the last event it read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
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

    def read_new(self) -> list[Event]:
        """Events since the last read, oldest first; all from the first one if the writer has replaced a line. Raises
        JournalDamaged, and OSError."""
        return [event for _, event in self.new_states()]

    def new_states(self) -> Iterator[tuple[SearchRecord, Event]]:
        """Events as `read_new`, each with the search after it, of which only the last is kept."""
        try:
            events = self._journal.read_on()
        except JournalDamaged:
            self._journal, self.search = Journal(self._file), None
            events = self._journal.read_on()
        for event in events:
            self.search = search_after(self._file, self._file.parent.name, event, self.search)
            yield self.search, event


def stream(journal_file: Path, seq: int, is_stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Stream the events after `seq` until the search has ended or the service stops.

    Reads once before it returns, so that JournalDamaged and OSError become an error response instead of a broken
    stream.
    """
    follower = JournalFollower(journal_file)

    def look() -> list[Event]:
        journal_file.stat()  # the stream of a journal that is gone ends
        return follower.read_new()

    return _stream(follower, look, look(), seq, is_stopping)


async def _stream(
    follower: JournalFollower,
    look: Callable[[], list[Event]],
    news: list[Event],
    seq: int,
    is_stopping: Callable[[], bool],
) -> AsyncIterator[str]:
    """The stream after a first look that found `news`."""
    sent_at = time.monotonic()
    yield "retry: 1000\n\n"
    while not is_stopping():
        for event in news:
            if event.seq > seq:
                yield sse(event)
                seq, sent_at = event.seq, time.monotonic()
        if follower.has_ended:  # according to the events just sent; a later end is sent next time
            return
        if time.monotonic() - sent_at > SILENCE_S:
            yield ": nothing new\n\n"
            sent_at = time.monotonic()
        await asyncio.sleep(POLL_S)
        news = await run_in_thread(look)


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run file access in a thread of its own: a hung file system blocks no other stream and no exit."""
    return await asyncio.wrap_future(submit_to_thread(work, "look"))


def sse(event: Event) -> str:
    """Event in the wire format: `id` is its number, `event` its kind, `data` its line of the journal."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"
