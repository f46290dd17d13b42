"""Background thread that sends a running search to MLflow, so that a slow store does not delay it."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable

from dashboards.log_once import LogOnce
from dashboards.mlflow.sync import MlflowSync, SyncReport
from dashboards.text import mask_credentials, one_line
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

_log = logging.getLogger(__name__)


_PAUSE_S = 1.0  # between two sends, which batches changes
_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 60.0


class MlflowWorker:
    """Sends the newest submitted record to MLflow, in a thread of its own.

    `submit` and `finish` are called by the driver from one thread. A failure of MLflow is logged once and retried with
    growing pauses; altered names and missing files are logged once, too. `ready` is called in the thread before it
    uses MLflow, and returns when it may.
    """

    def __init__(self, sync: MlflowSync, folder: SearchFolder, ready: Callable[[], object] = lambda: None):
        self._sync = sync
        self._folder = folder
        self._ready = ready
        self._changed = threading.Condition()
        self._newest: SearchRecord | None = None
        self._closing = False
        self._log_once = LogOnce(_log)
        self.report: SyncReport | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="mlflow", daemon=True)
        self._thread.start()

    def submit(self, search: SearchRecord) -> None:
        """Schedule this record for sending; never blocks."""
        with self._changed:
            self._newest = search
            self._changed.notify()

    @property
    def has_record(self) -> bool:
        """True after the first `submit`."""
        return self._newest is not None

    def finish(self, timeout_s: float) -> list[str]:
        """Send the newest record within `timeout_s`; return the names of the runs that could not be sent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        return self._sync.unsent(self._newest) if self._newest else []

    def _run(self) -> None:
        self._ready()
        sent: SearchRecord | None = None
        pause_s, is_last = 0.0, False
        while not is_last:
            search, is_last = self._next(sent, pause_s)
            if search is None or search is sent:
                return
            if self._send(search):
                sent, pause_s = search, _PAUSE_S
            else:
                pause_s = min(max(2 * pause_s, _FIRST_RETRY_S), _LONGEST_RETRY_S)

    def _next(self, sent: SearchRecord | None, pause_s: float) -> tuple[SearchRecord | None, bool]:
        """Wait for a new record and the end of the pause; return the record and whether it is the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._newest is not sent)
            self._changed.wait_for(lambda: self._closing, pause_s)
            return self._newest, self._closing

    def _send(self, search: SearchRecord) -> bool:
        try:
            self.report = self._sync.sync(search, self._folder)
        except Exception as error:  # no error of MLflow and its libraries stops the search
            self._log_once.warning(
                f"MLflow at {mask_credentials(self._sync.uri)} failed, retrying: {one_line(error)}", "down"
            )
            return False
        if self.report.altered_names:
            altered = ", ".join(self.report.altered_names)
            self._log_once.warning(f"names that MLflow does not accept were altered: {altered}", "names")
        if self.report.unread:
            self._log_once.warning("not sent to MLflow: " + "; ".join(self.report.unread), "unread")
        return True
