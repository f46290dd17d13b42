"""Live reports of searches, shared by all viewers: rendered after a change, at a limited rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dashboards.report.html import Page
from dashboards.report.page import report_without_scripts
from dashboards.report.use_it import use_it
from dashboards.search_view import SearchView
from orchestrator.service.event_stream import JournalFollower
from search_spaces.errors import InputError
from trials.analysis.verdict import ranking_of
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

MIN_PAUSE_S = 3.0
MAX_CPU_SHARE = 0.1
"""Share of a CPU's time spent on one search's report; a long rendering is followed by a longer pause."""
RECIPE_WAIT_S = 60.0
"""Longest wait for an ended search's recipe."""


@dataclass(frozen=True)
class Rendering:
    """The report after event `seq`, with the recipe after one more; with `is_ended` no other follows.

    `began_at` is on the report's clock.
    """

    seq: int
    is_ended: bool
    page: Page
    began_at: float


class LiveReport:
    """Report of one search, for many threads: during a rendering other callers get the previous one."""

    def __init__(
        self,
        journal_file: Path,
        render: Callable[[SearchRecord], Page],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._file = journal_file
        self._follower = JournalFollower(journal_file)
        self._render = render
        self._clock = clock
        self._lock = threading.Lock()
        self._newest: Rendering | None = None
        self._due_at = 0.0

    def newest(self) -> Rendering:
        """Return the report, at most a pause behind the journal. Raises InputError if there is none, JournalDamaged,
        OSError."""
        before = self._newest
        if not self._lock.acquire(blocking=before is None) and before is not None:
            return before
        try:
            return self._refreshed()
        finally:
            self._lock.release()

    def age_s(self, rendering: Rendering) -> float:
        """Seconds since the moment that this rendering shows."""
        return self._clock() - rendering.began_at

    def _refreshed(self) -> Rendering:
        self._follower.read_new()
        search = self._follower.search
        if search is None:
            fix = "use a machine on which its folder is visible"
            raise InputError.of("unknown_id", f"{self._file} is not visible here", key="search", fix=fix)
        has_recipe = search.state.is_ended and (SearchFolder(self._file.parent).recipe / "recipe.yaml").is_file()
        newest, began_at = self._newest, self._clock()
        seq = search.last_seq + has_recipe  # the recipe follows the last event
        if newest is None or (newest.seq != seq and began_at >= self._due_at):
            newest = Rendering(seq, _is_complete(search, has_recipe), self._render(search), began_at)
            self._newest, now = newest, self._clock()
            self._due_at = now + max(MIN_PAUSE_S, (now - began_at) / MAX_CPU_SHARE)
        return newest


def live_report(journal_file: Path) -> LiveReport:
    """Report of the search with this journal."""
    return LiveReport(journal_file, partial(_render, SearchFolder(journal_file.parent)))


def _render(folder: SearchFolder, search: SearchRecord) -> Page:
    return report_without_scripts(SearchView.of(search, time.time()), use_it(folder))


def _is_complete(search: SearchRecord, has_recipe: bool) -> bool:
    """True for an ended search with its recipe, or where none is to be expected."""
    if not search.state.is_ended or has_recipe:
        return search.state.is_ended
    is_old = search.ended_at is not None and time.time() - search.ended_at > RECIPE_WAIT_S
    return is_old or ranking_of(search, search.trials).best is None
