"""`parlay watch`: follows a search that another process drives. Read-only."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.cli.drive import exit_code_of, print_search
from orchestrator.cli.endings import resume_fix
from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, exit_with, prints_json, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.signals import signals_handled_by
from orchestrator.service.client import driver_status
from search_spaces.errors import InputError, Problem

if TYPE_CHECKING:
    from dashboards.terminal.live_table import LiveView
    from orchestrator.records.summary import DriverStatus
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord

_log = logging.getLogger(__name__)


JOURNAL_POLL_S = 1.0
"""Seconds between two reads of a search's journal."""
DRIVER_POLL_S = 5.0
"""Seconds between two checks of its driver."""
NO_DRIVER_LIMIT_S = 10.0
"""Seconds without a driver, and without one to be expected, until watching ends."""
DRIVER_END_LIMIT_S = 60.0
"""Limit on waiting for the driver's exit after the search has ended."""


def watch(search: SearchId = None, ledger: LedgerUrl = None) -> None:
    from dashboards.terminal.live_table import LiveView
    from orchestrator.records.lookup import find_search

    found = find_search(search, ledger)
    spec, folder = found.spec, found.folder
    stream = sys.stderr if prints_json.get() else sys.stdout
    view = LiveView(stream)
    try:
        # SIGTERM acts as ctrl-C does, so that the terminal is restored.
        with signals_handled_by(signal.default_int_handler, signal.SIGTERM), view:
            record = SearchFollower(folder, view, driver_status).follow()
    except KeyboardInterrupt as interrupt:
        fix = f"parlay watch {folder.cli_name} resumes watching, parlay cancel {folder.cli_name} ends the search"
        problem = Problem("interrupted", "stopped watching; the search continues", fix=fix)
        raise Exit(ExitCode.INTERRUPTED, problem) from interrupt
    print_search(record, folder, spec)
    if not record.state.is_ended:
        warn(f"stopped watching: the search has no driver; nothing is lost: {resume_fix(folder)}")
        raise Exit(ExitCode.STOPPED_EARLY)
    exit_with(exit_code_of(record))


class SearchFollower:
    """Polls a search's journal and updates a view."""

    def __init__(
        self,
        folder: SearchFolder,
        view: LiveView,
        status_of: Callable[[SearchFolder], DriverStatus],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ):
        self._folder = folder
        self._view = view
        self._driver_status = status_of
        self._clock = clock
        self._wait = wait
        self._last_note: str | None = None
        self._undriven_since: float | None = None
        self._driver_polled_at: float | None = None

    def follow(self) -> SearchRecord:
        """Return the search once it has ended, or once it has no driver and none is expected.

        Raises JournalDamaged, and InputError if its folder is not visible from here.
        """
        records = self._records()
        record = next(records)
        self._view.begin(record)
        while not record.state.is_ended and not self._is_abandoned():
            self._wait(JOURNAL_POLL_S)
            record = next(records)
        if record.state.is_ended:
            self._wait_for_driver_end()
        return record

    def _records(self) -> Iterator[SearchRecord]:
        """Yield the search at each poll, and show new events."""
        from orchestrator.service.event_stream import JournalFollower

        follower, seen = JournalFollower(self._folder.journal), None
        while True:
            try:
                for search, event in follower.new_states():
                    if seen is not None and event.seq > seen:
                        self._view.update(search, event)
            except OSError as error:
                self._note_once(f"{self._folder.journal}: {error.strerror}; retrying")
            if follower.search is None:
                raise _unreachable_error(self._folder)
            seen = max(seen or 0, follower.search.last_seq)
            yield follower.search

    def _is_abandoned(self) -> bool:
        """True if the search has had no driver for NO_DRIVER_LIMIT_S; polls the driver every DRIVER_POLL_S."""
        now = self._clock()
        if self._driver_polled_at is not None and now - self._driver_polled_at < DRIVER_POLL_S:
            return False
        self._driver_polled_at = now
        found = self._driver_status(self._folder)
        self._note_once(found.detail)
        if found.is_expected:
            self._undriven_since = None
            return False
        self._undriven_since = now if self._undriven_since is None else self._undriven_since
        return now - self._undriven_since >= NO_DRIVER_LIMIT_S

    def _wait_for_driver_end(self) -> None:
        """Wait until the driver has finished recipe and MLflow, after the last event."""
        deadline = self._clock() + DRIVER_END_LIMIT_S
        while self._clock() < deadline and self._driver_status(self._folder).detail is None:
            self._wait(JOURNAL_POLL_S)

    def _note_once(self, words: str | None) -> None:
        """Note each remark once, until another one follows."""
        if words is not None and words != self._last_note:
            _log.info(words)
        self._last_note = words


def _unreachable_error(folder: SearchFolder) -> InputError:
    return InputError.of(
        "unknown_id",
        f"{folder.journal} is not visible from here",
        key="search",
        value=folder.search_id,
        rule="watching reads the journal in the search's folder",
        fix=f"watch on a machine that sees the folder; from here, parlay status {folder.cli_name}",
    )
