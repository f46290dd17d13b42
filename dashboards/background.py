"""Background threads that write the report of a running search and send it to MLflow, so that neither delays it."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections.abc import Callable

from dashboards.log_once import LogOnce
from dashboards.mlflow.sync import MlflowSync, SyncReport
from dashboards.text import mask_credentials, one_line
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

_log = logging.getLogger(__name__)

_FIRST_REPORT_S = 15.0  # a search that is over by then has one report, at its end
_LEAST_PAUSE_S = 60.0
_MOST_SHARE = 0.01
"""Largest share of a driver's run time spent on its report."""
_MLFLOW_PAUSE_S = 1.0  # between two sends, which batches changes
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 60.0


class BackgroundWorker:
    """Hands the newest submitted record to `_handle`, in a thread that starts with the first one.

    `submit`, `finish` and `stop` are called by the driver from one thread. What fails is logged once and tried again.
    """

    name = "worker"
    first_pause_s = 0.0

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: SearchRecord | None = None
        self._closing = False
        self._log_once = LogOnce(_log)
        self._thread: threading.Thread | None = None

    def submit(self, search: SearchRecord) -> None:
        """Schedule this record, or a newer one; never blocks."""
        with self._changed:
            self._newest = search
            self._changed.notify()
        if self._thread is None:
            self._start()

    @property
    def has_record(self) -> bool:
        """True after the first `submit`."""
        return self._newest is not None

    def finish(self, timeout_s: float) -> None:
        """Handle the newest record now, for at most `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def stop(self) -> None:
        """Handle no further record: another driver has taken over the search."""
        with self._changed:
            self._newest, self._closing = None, True
            self._changed.notify()

    def _prepare(self) -> None:
        """Wait, in the thread, until work may begin."""

    def _handle(self, search: SearchRecord) -> float | None:
        """Handle a record; return the pause until the next one in seconds, or None to try this one again."""
        raise NotImplementedError

    def _log_failure(self, error: Exception) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        run = contextvars.copy_context().run
        thread = threading.Thread(target=run, args=(self._run,), name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the user may have reached a limit of threads
            self._log_failure(error)
        else:
            self._thread = thread

    def _run(self) -> None:
        self._prepare()
        handled: SearchRecord | None = None
        pause_s, retry_s, is_last = self.first_pause_s, _FIRST_RETRY_S, False
        while not is_last:
            search, is_last = self._next(handled, pause_s)
            if search is None or search is handled:
                return
            pause = self._handle(search)
            if pause is None:
                pause_s, retry_s = retry_s, min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                handled, pause_s, retry_s = search, pause, _FIRST_RETRY_S

    def _next(self, handled: SearchRecord | None, pause_s: float) -> tuple[SearchRecord | None, bool]:
        """Wait for a new record and the end of the pause; return the record and whether it is the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not handled)
            self._changed.wait_for(lambda: self._closing, pause_s)
            return self._newest, self._closing


class ReportWorker(BackgroundWorker):
    """Writes report.html: first after 15 s, then at least a minute apart, in at most 1 % of the time."""

    name = "report"
    first_pause_s = _FIRST_REPORT_S

    def __init__(self, folder: SearchFolder):
        super().__init__()
        self._folder = folder

    def _handle(self, search: SearchRecord) -> float:
        began = time.monotonic()
        try:
            # Imported here, since templates and plotly.js would slow every start of the command line.
            from dashboards.report.write import write_report

            write_report(search, self._folder, time.time())
        except Exception as error:  # no error of the report stops the search
            self._log_failure(error)
        return max(_LEAST_PAUSE_S, (time.monotonic() - began) / _MOST_SHARE)

    def _log_failure(self, error: Exception) -> None:
        self._log_once.warning(f"report.html cannot be written, retrying: {one_line(error)}", "report")


class MlflowWorker(BackgroundWorker):
    """Sends the search to MLflow, and what fails again with growing pauses.

    `ready` is called in the thread before it uses MLflow, and returns when it may. `report` is of the last send.
    """

    name = "mlflow"

    def __init__(self, sync: MlflowSync, folder: SearchFolder, ready: Callable[[], object] = lambda: None):
        super().__init__()
        self._sync = sync
        self._folder = folder
        self._prepare = ready  # type: ignore[assignment]
        self.report: SyncReport | None = None

    def unsent(self) -> list[str]:
        """Names of the runs of the newest record that could not be sent."""
        return self._sync.unsent(self._newest) if self._newest else []

    def _handle(self, search: SearchRecord) -> float | None:
        try:
            self.report = self._sync.sync(search, self._folder)
        except Exception as error:  # no error of MLflow and its libraries stops the search
            self._log_failure(error)
            return None
        if self.report.altered_names:
            altered = ", ".join(self.report.altered_names)
            self._log_once.warning(f"names that MLflow does not accept were altered: {altered}", "names")
        if self.report.unread:
            self._log_once.warning("not sent to MLflow: " + "; ".join(self.report.unread), "unread")
        return _MLFLOW_PAUSE_S

    def _log_failure(self, error: Exception) -> None:
        address = mask_credentials(self._sync.uri)
        self._log_once.warning(f"MLflow at {address} failed, retrying: {one_line(error)}", "down")
