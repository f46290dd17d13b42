"""The ledger made anew from searches' folders: their journals are the truth, its rows an index that may be lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.search.lease import LeaseHeld, LeaseLost, acquire_lease, current_lease, release_lease
from search_spaces.errors import ExternalError, InputError
from trials.files.folders import SearchFolder
from trials.ledger.database import LedgerDamaged
from trials.ledger.events import Event, SearchRecord
from trials.ledger.journal import Journal, search_of
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import LowerStrEnum


class RebuildResult(LowerStrEnum):
    """What became of a search's rows."""

    ADDED = "added"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"  # they say what the journal says
    NEWER = "newer"  # they know events that this journal, an older copy of the search, does not: left as they are
    HELD = "held"  # a driver is at work and writes them itself: left as they are, and made where there were none
    DAMAGED = "damaged"  # the journal cannot be believed or read: left as they are


@dataclass(frozen=True)
class SearchRebuild:
    """A search's folder and what became of its rows; `message` says why where they were left."""

    folder: SearchFolder
    result: RebuildResult
    num_events: int = 0
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "search_id": self.folder.search_id,
            "folder": str(self.folder.path),
            "result": self.result.value,
            "num_events": self.num_events,
            "message": self.message,
        }


def find_search_folders(places: Iterable[Path]) -> list[SearchFolder]:
    """The searches that these folders are or hold, at any depth, each once and in the order of their paths.

    InputError unknown_id for a place that is no folder or holds none.
    """
    found: dict[Path, SearchFolder] = {}
    for place in places:
        here = list(_searches_below(Path(os.path.realpath(place))))
        if not here:
            raise InputError.of(
                "unknown_id",
                f"{place} neither is nor holds the folder of a search",
                value=str(place),
                fix="name a search's folder, the one with journal.jsonl in it, or a folder above it",
            )
        found |= {folder.path: folder for folder in here}
    return [found[path] for path in sorted(found)]


def rebuild(folder: SearchFolder, ledger: LedgerWriter, reader: LedgerReader) -> SearchRebuild:
    """Make the ledger's rows of one search what its journal says. Raises LedgerUnavailable.

    A search that has not ended is held meanwhile, like a driver holds it, so that none begins in the middle; one that
    has ended changes no more, and its folder may be read-only.
    """
    try:
        record, events = _read_search(folder)
        if record.state.is_ended:
            return _rebuild_rows(folder, record, events, ledger, reader)
        with _lease_held(folder):
            return _rebuild_rows(folder, *_read_search(folder), ledger, reader)
    except LeaseHeld as held:
        restore_rows(folder, events, ledger)
        return SearchRebuild(folder, RebuildResult.HELD, message=str(held))
    except _Unreadable as problem:
        return SearchRebuild(folder, RebuildResult.DAMAGED, message=str(problem))


def restore_rows(folder: SearchFolder, events: Sequence[Event], ledger: LedgerWriter) -> None:
    """Make the rows of a search that the ledger does not know from its journal's events; its driver may be at work, and
    brings those that it has written meanwhile. Raises LedgerUnavailable."""
    if ledger.last_seq(folder.search_id) == 0:
        ledger.replace(folder.search_id, events, str(folder.path))


class _Unreadable(Exception):
    """The folder does not tell a search; the text says where and why."""


def _searches_below(place: Path) -> Iterator[SearchFolder]:
    for path, names, files in os.walk(place):
        if SearchFolder(Path(path)).journal.name in files:
            names.clear()
            yield SearchFolder(Path(path))
        names[:] = [name for name in names if not name.startswith(".")]  # `.ID.part` is a search that is being made


def _read_search(folder: SearchFolder) -> tuple[SearchRecord, list[Event]]:
    try:
        events = Journal(folder.journal).read()
        record = search_of(folder.journal, folder.search_id, events)
        lease = current_lease(folder)
    except (OSError, ExternalError) as error:
        raise _Unreadable(str(error)) from error
    if record is None:
        raise _Unreadable(f"{folder.journal}: holds no event")
    if lease is not None and lease.search_id != folder.search_id:
        raise _Unreadable(f"{folder.path}: is the folder of {lease.search_id}; give it that name again")
    return record, events


@contextmanager
def _lease_held(folder: SearchFolder) -> Iterator[None]:
    try:
        lease = acquire_lease(folder, time.time())
    except OSError as error:
        raise _Unreadable(f"{folder.path}: the search has not ended and cannot be held: {error}") from error
    try:
        yield
    finally:
        with suppress(LeaseLost, OSError):  # it runs out
            release_lease(folder, lease, time.time())


def _rebuild_rows(
    folder: SearchFolder, record: SearchRecord, events: list[Event], ledger: LedgerWriter, reader: LedgerReader
) -> SearchRebuild:
    known = ledger.last_seq(folder.search_id)
    here = str(folder.path)
    if known > len(events):
        message = f"the ledger knows {known} events of it, this folder {len(events)}"
        return SearchRebuild(folder, RebuildResult.NEWER, len(events), message)
    if known == len(events) and _rows_match(reader, folder.search_id, record, here):
        return SearchRebuild(folder, RebuildResult.UNCHANGED, known)
    ledger.replace(folder.search_id, events, here)
    return SearchRebuild(folder, RebuildResult.REPLACED if known else RebuildResult.ADDED, len(events))


def _rows_match(reader: LedgerReader, search_id: str, record: SearchRecord, here: str) -> bool:
    """Whether the rows say what the journal says, at the place where it lies now; rows that say nonsense do not."""
    try:
        return reader.search(search_id) == replace(record, spec={**record.spec, "folder": here})
    except LedgerDamaged:
        return False
