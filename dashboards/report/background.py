"""Background thread that writes a running search's report."""

from __future__ import annotations

import contextvars
import logging
import threading
import time

from dashboards.log_once import LogOnce
from dashboards.text import one_line
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

_log = logging.getLogger(__name__)


_FIRST_PAUSE_S = 15.0  # a search that is over by then has one report, at its end
_LEAST_PAUSE_S = 60.0
_MOST_SHARE = 0.01
"""Largest share of a driver's run time spent on its report."""


class ReportWorker:
    """Writes report.html from the newest submitted record, in a thread that starts with the first one.

    `submit`, `finish` and `stop` are called by the driver from one thread. The first report is written after 15 s,
    later ones at least a minute apart, in at most 1 % of the time. A report that
    cannot be written is logged once and retried.
    """

    def __init__(self, folder: SearchFolder):
        self._folder = folder
        self._changed = threading.Condition()
        self._newest: SearchRecord | None = None
        self._closing = False
        self._log_once = LogOnce(_log)
        self._thread: threading.Thread | None = None

    def submit(self, search: SearchRecord) -> None:
        """Schedule this record, or a newer one, for writing; never blocks."""
        with self._changed:
            self._newest = search
            self._changed.notify()
        if self._thread is None:
            self._start()

    def finish(self, timeout_s: float) -> None:
        """Write the newest record now, for at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Write no further report: another driver has taken over the search."""
        with self._changed:
            self._newest, self._closing = None, True
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), name="report", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the user may have reached a limit of threads
            self._log_failure(error)
        else:
            self._thread = thread

    def _run(self) -> None:
        written: SearchRecord | None = None
        pause_s, is_last = _FIRST_PAUSE_S, False
        while not is_last:
            search, is_last = self._next(written, pause_s)
            if search is None or search is written:
                return
            pause_s = max(_LEAST_PAUSE_S, self._seconds_to_write(search) / _MOST_SHARE)
            written = search

    def _next(self, written: SearchRecord | None, pause_s: float) -> tuple[SearchRecord | None, bool]:
        """Wait for a new record and the end of the pause; return the record and whether it is the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not written)
            self._changed.wait_for(lambda: self._closing, pause_s)
            return self._newest, self._closing

    def _seconds_to_write(self, search: SearchRecord) -> float:
        began = time.monotonic()
        try:
            # Imported here, since templates and plotly.js would slow every start of the command line.
            from dashboards.report.write import write_report

            write_report(search, self._folder, time.time())
        except Exception as error:  # no error of the report stops the search
            self._log_failure(error)
        return time.monotonic() - began

    def _log_failure(self, error: Exception) -> None:
        self._log_once.warning(f"report.html cannot be written, retrying: {one_line(error)}", "report")
