"""A driver's hold on a search: while it lasts nobody else writes the search's journal and its ledger rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

from orchestrator.own_files import require_own_folder
from orchestrator.search import lease as leases
from orchestrator.search.history import History
from trials.folder import SearchFolder
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter


@dataclass
class Hold:
    """The lease, which runs on real time, and the ledger that its holder may write."""

    folder: SearchFolder
    ledger_url: str
    ledger: LedgerWriter
    lease: leases.Lease

    @contextmanager
    def opened_history(self) -> Iterator[History]:
        """The search as its journal tells it, the ledger brought up to it."""
        with closing(Journal(self.folder.journal)) as journal:
            history = History(self.folder.search_id, journal, self.ledger, self.lease.fencing, time.time)
            if not history.is_empty:
                self.ledger.place(self.folder.search_id, str(self.folder.path))
                self._copy_lease()
            yield history

    def keep(self) -> None:
        """Renew the lease when a heartbeat is due; LeaseLost when another driver took over."""
        if time.time() - self.lease.heartbeat_at >= leases.HEARTBEAT_S:
            self.lease = leases.renew(self.folder, self.lease, time.time())
            self._copy_lease()

    def _copy_lease(self) -> None:
        self.ledger.copy_lease(self.folder.search_id, self.lease.fencing, self.lease.to_json())


@contextmanager
def held(folder: SearchFolder, ledger_url: str) -> Iterator[Hold]:
    """The search is this process's own within this block. Raises LeaseHeld where it is another's, InputError where its
    folder is."""
    require_own_folder(folder)
    lease = leases.acquire(folder, time.time())
    try:
        with closing(LedgerWriter(ledger_url)) as ledger:
            yield Hold(folder, ledger_url, ledger, lease)
    finally:
        with suppress(leases.LeaseLost):  # then there is nothing left to free
            leases.release(folder, lease, time.time())
