"""Lock of a search: only its holder writes the search's journal and ledger rows."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from orchestrator.records.integrity import require_owned_folder
from orchestrator.search.event_store import EventStore
from orchestrator.search.lease import HEARTBEAT_S, Lease, LeaseLost, acquire_lease, release_lease, renew_lease
from trials.files.folders import SearchFolder
from trials.files.path_owners import FolderIdentity
from trials.ledger.database import LedgerDamaged, put_aside_damaged
from trials.ledger.journal import Journal, search_of
from trials.ledger.writer import LedgerWriter

_log = logging.getLogger(__name__)


@dataclass
class SearchLock:
    """A held search: its lease, on real time, its events, the ledger that they are written to, and the folder's
    identity (`taken`)."""

    folder: SearchFolder
    ledger_url: str
    ledger: LedgerWriter
    lease: Lease
    taken: FolderIdentity
    history: EventStore = field(init=False)

    def open_history(self, journal: Journal) -> None:
        """Open the search's events, and update the ledger to them. A damaged ledger is rebuilt."""
        try:
            self._open_history(journal)
        except LedgerDamaged:
            self._renew_ledger(journal)
            self._open_history(journal)

    def _open_history(self, journal: Journal) -> None:
        self.history = EventStore(self.folder.search_id, journal, self.ledger, self.lease.fencing, time.time)
        if not self.history.is_empty:
            self.ledger.set_folder(self.folder.search_id, str(self.folder.path))

    def _renew_ledger(self, journal: Journal) -> None:
        self.ledger.close()
        self.ledger = renew_ledger(self.ledger_url)
        if (search := search_of(journal.path, self.folder.search_id, journal.read())) is not None:
            self.ledger.replace(search, str(self.folder.path))

    def heartbeat(self) -> None:
        """Renew the lease when a heartbeat is due. Raises LeaseLost when another driver has taken over."""
        if time.time() - self.lease.heartbeat_at >= HEARTBEAT_S:
            self.lease = renew_lease(self.folder, self.lease, time.time())


@contextmanager
def acquire_search(folder: SearchFolder, ledger_url: str) -> Iterator[SearchLock]:
    """Hold the search's lease within this block, with its events open.

    A damaged ledger is moved aside and noted. Raises LeaseHeld when another driver holds the search, InputError when
    its folder belongs to another user.
    """
    taken = require_owned_folder(folder)
    lease = acquire_lease(folder, time.time())
    try:
        lock = SearchLock(folder, ledger_url, open_or_renew_ledger(ledger_url), lease, taken)
        try:
            with closing(Journal(folder.journal)) as journal:
                lock.open_history(journal)
                yield lock
        finally:
            lock.ledger.close()
    finally:
        with suppress(LeaseLost):  # then there is nothing to release
            release_lease(folder, lease, time.time())


def open_or_renew_ledger(ledger_url: str) -> LedgerWriter:
    """Open the ledger for writing; a damaged one is moved aside and created anew.

    Raises LedgerUnavailable, and InputError as LedgerWriter.
    """
    try:
        return LedgerWriter(ledger_url)
    except LedgerDamaged:
        return renew_ledger(ledger_url)


def renew_ledger(ledger_url: str) -> LedgerWriter:
    """Open the ledger for writing, after moving a damaged file aside, which is noted. Raises as above."""
    if (aside := put_aside_damaged(ledger_url)) is not None:
        others = "parlay ledger rebuild FOLDER, with the folder that holds your searches, restores the other searches"
        _log.warning(f"the ledger was damaged: it is kept as {aside}, and a new one is created; {others}")
    return LedgerWriter(ledger_url)
