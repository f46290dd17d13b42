"""A search's events as server-sent events, as its journal tells them: whoever lost the line goes on where it was."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

from trials.ledger.events import Event, fold
from trials.ledger.journal import Journal

LOOK_S = 0.25
"""Between two looks at a journal."""
SILENCE_S = 15.0
"""After which a comment says that the line still stands."""


def news_after(journal_file: Path, seq: int) -> tuple[list[Event], bool]:
    """The events that follow number `seq`, oldest first, and whether the search has ended with them.

    Of one reading: an end that is written between two would be told to nobody.
    """
    with closing(Journal(journal_file)) as journal:
        events = journal.read()
    search = fold(journal_file.parent.name, events)
    return [event for event in events if event.seq > seq], search is not None and search.state.is_ended


async def stream(journal_file: Path, seq: int, is_stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """What follows event `seq`, as it happens, until the search has ended or the service stops."""
    size, told_at = -1, time.monotonic()
    yield "retry: 1000\n\n"
    while not is_stopping():
        found = await asyncio.to_thread(journal_file.stat)  # one that hangs holds up nobody else
        if found.st_size != size:  # a journal only grows
            size = found.st_size
            events, has_ended = await asyncio.to_thread(news_after, journal_file, seq)
            for event in events:
                yield sse(event)
                seq, told_at = event.seq, time.monotonic()
            if has_ended:
                return
        if time.monotonic() - told_at > SILENCE_S:
            yield ": nothing new\n\n"
            told_at = time.monotonic()
        await asyncio.sleep(LOOK_S)


def sse(event: Event) -> str:
    """The event on the wire: `id` its number, `event` its kind, `data` its line of the journal."""
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(event.to_json())}\n\n"
