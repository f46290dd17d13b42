"""Rows of the list of searches, read anew only where a search has changed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from dashboards.search_rows import SearchListRow, search_row
from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from trials.ledger.reader import LedgerReader

MAX_SEARCHES = 100
"""Searches in the list: each is read with its trials once after each change."""
_OWNER_TIMEOUT_S = 2.0


class SearchList:
    """The newest searches of a ledger. Thread-safe."""

    def __init__(self, ledger_url: str):
        self._url = ledger_url
        self._lock = threading.Lock()
        self._cached: dict[str, tuple[int, SearchListRow]] = {}

    def rows(self, stopped: Mapping[str, str]) -> tuple[list[SearchListRow], int]:
        """Rows, newest first, and the number of older searches; `stopped` are reasons for missing drivers by id."""
        with self._lock, closing(LedgerReader(self._url)) as reader:
            found = reader.searches()
            rows: dict[str, tuple[int, SearchListRow]] = {}
            for each in found[:MAX_SEARCHES]:
                known = self._cached.get(each.search_id)
                if known is None or known[0] != each.last_seq:
                    owner = _owner_of(each.folder) if known is None else known[1].owner
                    known = each.last_seq, search_row(reader.search(each.search_id), owner)
                rows[each.search_id] = known
            self._cached = rows
        shown = [replace(row, stopped=stopped.get(row.search_id)) for _, row in rows.values()]
        return shown, len(found) - len(rows)


def _owner_of(folder: str | None) -> str:
    """Name of the owner of the search's folder; "" where it is unknown, or the folder does not answer."""
    if folder is None:
        return ""
    try:
        path = Path(folder)
        return result_with_timeout(submit_to_thread(path.owner, "owner"), _OWNER_TIMEOUT_S, "")
    except (OSError, KeyError):
        return ""
