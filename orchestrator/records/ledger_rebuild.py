"""Rebuild of the ledger from search folders: their journals are the truth, the ledger's rows a derived index."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.records.integrity import require_owned_folder
from orchestrator.search.lease import LeaseHeld, LeaseLost, acquire_lease, current_lease, release_lease
from search_spaces.errors import ExternalError, InputError
from trials.files.folders import SearchFolder
from trials.ledger.database import LedgerDamaged
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import LowerStrEnum


class RebuildResult(LowerStrEnum):
    """Result of the rebuild for one search."""

    ADDED = "added"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"  # equal to the journal
    NEWER = "newer"  # the ledger has later events than this journal, an older copy: left as they are
    HELD = "held"  # a driver is running and writes them itself: only added where there were none
    DAMAGED = "damaged"  # the journal is invalid or unreadable: left as they are


class RebuiltSearch(AnswerPart):
    """Result of the rebuild for one search folder."""

    search_id: str
    folder: str
    result: RebuildResult
    num_events: int = 0
    message: str | None = None
    """Reason why its rows were left as they are."""

    @classmethod
    def of(
        cls, folder: SearchFolder, result: RebuildResult, num_events: int = 0, message: str | None = None
    ) -> RebuiltSearch:
        named = {"search_id": folder.search_id, "folder": str(folder.path)}
        return cls(**named, result=result, num_events=num_events, message=message)


class LedgerAnswer(Answer):
    """Printed by ledger rebuild. Exit code 6 when a search is damaged, else 5 when one is held."""

    schema_: Literal["parlay.ledger/1"] = "parlay.ledger/1"
    url: str
    put_aside: str | None
    """Path that a damaged ledger was moved to."""
    searches: list[RebuiltSearch]


def find_search_folders(places: Iterable[Path]) -> list[SearchFolder]:
    """Find the search folders at or below these folders, each once, sorted by path.

    InputError unknown_id for a place that is not a folder or holds no search.
    """
    found: dict[Path, SearchFolder] = {}
    for place in places:
        here = list(_searches_below(Path(os.path.realpath(place))))
        if not here:
            raise InputError.of(
                "unknown_id",
                f"{place} is not and does not contain the folder of a search",
                value=str(place),
                fix="give the folder of a search (with journal.jsonl in it), or a folder above it",
            )
        found |= {folder.path: folder for folder in here}
    return [found[path] for path in sorted(found)]


def rebuild(folder: SearchFolder, ledger: LedgerWriter, reader: LedgerReader) -> RebuiltSearch:
    """Rebuild the ledger's rows of one search from its journal. Raises LedgerUnavailable.

    A search that has not ended is locked by a lease meanwhile, so that no driver starts. One that has ended does not
    change, and its folder may be read-only.
    """
    try:
        record = _read_search(folder)
        if record.state.is_ended:
            return _rebuild_rows(folder, record, ledger, reader)
        with _lease_held(folder):
            return _rebuild_rows(folder, _read_search(folder), ledger, reader)
    except LeaseHeld as held:
        restore_rows(folder, record, ledger)
        return RebuiltSearch.of(folder, RebuildResult.HELD, message=str(held))
    except _Unreadable as problem:
        return RebuiltSearch.of(folder, RebuildResult.DAMAGED, message=str(problem))


def restore_rows(folder: SearchFolder, record: SearchRecord, ledger: LedgerWriter) -> None:
    """Restore the rows of a search that the ledger does not know. Raises LedgerUnavailable.

    Its driver may be running, and adds the events that it has recorded meanwhile.
    """
    if ledger.last_seq(folder.search_id) == 0:
        ledger.replace(record, str(folder.path))


class _Unreadable(Exception):
    """The folder is not a readable search; the message says why."""


def _searches_below(place: Path) -> Iterator[SearchFolder]:
    for path, names, files in os.walk(place):
        if SearchFolder(Path(path)).journal.name in files:
            names.clear()
            yield SearchFolder(Path(path))
        names[:] = [name for name in names if not name.startswith(".")]  # `.ID.part` is a search being created


def _read_search(folder: SearchFolder) -> SearchRecord:
    try:
        record = search_of(folder.journal, folder.search_id, Journal(folder.journal).read())
        lease = current_lease(folder)
    except (OSError, ExternalError) as error:
        raise _Unreadable(str(error)) from error
    if record is None:
        raise _Unreadable(f"{folder.journal}: has no event")
    if lease is not None and lease.search_id != folder.search_id:
        raise _Unreadable(f"{folder.path}: is the folder of search {lease.search_id}; rename it to {lease.search_id}")
    return record


@contextmanager
def _lease_held(folder: SearchFolder) -> Iterator[None]:
    try:
        require_owned_folder(folder)  # root may write here, and would leave a lease that its user cannot read
        lease = acquire_lease(folder, time.time())
    except (OSError, InputError) as error:
        raise _Unreadable(f"{folder.path}: the search has not ended and cannot be locked: {error}") from error
    try:
        yield
    finally:
        with suppress(LeaseLost, OSError):  # it expires
            release_lease(folder, lease, time.time())


def _rebuild_rows(
    folder: SearchFolder, record: SearchRecord, ledger: LedgerWriter, reader: LedgerReader
) -> RebuiltSearch:
    known, num_events = ledger.last_seq(folder.search_id), record.last_seq
    here = str(folder.path)
    if known > num_events:
        message = f"the ledger has {known} events of the search, this folder {num_events}"
        return RebuiltSearch.of(folder, RebuildResult.NEWER, num_events, message)
    if known == num_events and _rows_match(reader, folder.search_id, record, here):
        return RebuiltSearch.of(folder, RebuildResult.UNCHANGED, known)
    ledger.replace(record, here)
    return RebuiltSearch.of(folder, RebuildResult.REPLACED if known else RebuildResult.ADDED, num_events)


def _rows_match(reader: LedgerReader, search_id: str, record: SearchRecord, here: str) -> bool:
    """True if the rows equal the journal's state, with this folder as their place; False for damaged rows."""
    try:
        return reader.search(search_id) == replace(record, spec={**record.spec, "folder": here})
    except LedgerDamaged:
        return False
