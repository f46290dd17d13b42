"""Notification of stalls of searches whose driver is gone, silent or never began: a driver tells of its own stalls."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from pathlib import Path
from threading import Event

from dashboards.log_once import LogOnce
from orchestrator.config.schema.notify import NotifyEvent
from orchestrator.lifecycle.driver_status import find_driver_status
from orchestrator.lifecycle.notify import event_message, is_notification_due, send_notification
from orchestrator.records.lookup import OwnSearch, own_search
from search_spaces.errors import ExternalError, InputError
from trials.files.folders import SearchFolder
from trials.ledger.reader import LedgerReader

_log = logging.getLogger(__name__)

STALL_CHECK_S = 60.0
"""Seconds between two checks of all searches."""


class StallWatch:
    """Checks the user's own searches of a ledger for stalls, whoever drives them. For one thread."""

    def __init__(self, ledger_url: str):
        self._url = ledger_url
        self._log_once = LogOnce(_log)

    def run(self, stopping: Event) -> None:
        """Check periodically until `stopping` is set."""
        while not stopping.wait(STALL_CHECK_S):
            try:
                self.check(time.time())
            except Exception as error:
                self._log_once.warning(f"stalls cannot be checked, retrying: {type(error).__name__}: {error}")

    def check(self, now: float) -> None:
        """Notify the stalls that are due; `now` is UTC seconds since the epoch."""
        with closing(LedgerReader(self._url)) as reader:
            folders = [row.folder for row in reader.searches() if not row.state.is_ended]
        for folder in (SearchFolder(Path(path)) for path in folders if path is not None):
            try:
                _check_search(own_search(folder, self._url), now)
            except InputError:
                continue  # another user's, or moved
            except (ExternalError, OSError) as error:
                self._log_once.warning(f"stalls of {folder.search_id} cannot be checked, retrying: {error}")


def _check_search(found: OwnSearch, now: float) -> None:
    if found.record.replayed_table is not None or not is_notification_due(found.folder, found.spec, NotifyEvent.STALL):
        return
    message = event_message(NotifyEvent.STALL, found.record, found.spec.notify, now)
    if message is not None:
        driver = find_driver_status(found.folder, lambda search_id: None)
        text = f"{message}; {driver.detail or f'its driver is {driver.process}'}"
        send_notification(found.folder, found.spec, found.record, NotifyEvent.STALL, text)
