"""The report beside the search: a thread of its own, which writes rarely and fails alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dashboards.text import one_line
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

_FIRST_PAUSE_S = 15.0  # a search that is over by then has one report, at its end
_LEAST_PAUSE_S = 60.0
_MOST_SHARE = 0.01
"""Of the time that a driver runs, spent on its report."""


class ReportWorker:
    """Keeps a search's report.html near the newest record it was handed.

    `hand`, `finish` and `stop` are the driver's, from one thread. The first report is written after a quarter of a
    minute, later ones a minute after the last at least, and the later the longer one takes. `note` is called once,
    usually from the worker's own thread, when the report cannot be written; that is tried again. Until something is
    handed there is no thread.
    """

    def __init__(self, folder: SearchFolder, note: Callable[[str], None]):
        self._folder = folder
        self._note = note
        self._changed = threading.Condition()
        self._newest: SearchRecord | None = None
        self._closing = False
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def submit(self, search: SearchRecord) -> None:
        """Have this record, or a newer one, written some time; never waits."""
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
        """Begin no other report: the search is somebody else's, or what was to be written is."""
        with self._changed:
            self._newest, self._closing = None, True
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="report", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # its user, or its group, may have no more threads just now
            self._say_once(error)
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
        """The record to write once there is a new one and the pause is over, and whether it is the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not written)
            self._changed.wait_for(lambda: self._closing, pause_s)
            return self._newest, self._closing

    def _seconds_to_write(self, search: SearchRecord) -> float:
        began = time.monotonic()
        try:
            # Templates and plotly.js are loaded by whoever writes a report, and by nobody's start.
            from dashboards.report.write import write_report

            write_report(search, self._folder, time.time())
        except Exception as error:  # whatever it is, the search goes on
            self._say_once(error)
        return time.monotonic() - began

    def _say_once(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._note(f"report.html cannot be written now: {one_line(error)}")
