"""Notifications of a search that runs: its events are looked for by its driver, and sent by threads beside it."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress

from orchestrator.common.timeouts import result_with_timeout, submit_to_thread
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.notify import COMMAND_LIMIT_S, WEBHOOK_LIMIT_S, claim_notification, is_notification_due
from orchestrator.lifecycle.notify_events import event_message
from orchestrator.schema.notify import NotifyEvent
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, EventKind, SearchRecord

CHECK_S = 30.0
"""Seconds between two checks of the events that come with time alone."""
_WHILE_RUNNING = (NotifyEvent.STALL, NotifyEvent.BUDGET, NotifyEvent.SPEEDUP)


class Notifier:
    """Sends the events before a search's end. For the holder of the search's lease; single-threaded."""

    def __init__(self, folder: SearchFolder, spec: SearchSpec):
        self._folder = folder
        self._spec = spec
        self._left = [event for event in _WHILE_RUNNING if is_notification_due(folder, spec, event)]
        self._sending: list[Future[None]] = []
        self._next_check_at = 0.0

    def on_event(self, search: SearchRecord, event: Event) -> None:
        """Send what has become due by the end of a trial."""
        if event.kind is EventKind.TRIAL_ENDED:
            self._check(search, event.at)

    def on_iteration(self, search: SearchRecord, now: float) -> None:
        """Send what has become due with time; `now` is UTC seconds since the epoch."""
        if now >= self._next_check_at:
            self._next_check_at = now + CHECK_S
            self._check(search, now)

    def _check(self, search: SearchRecord, now: float) -> None:
        for event in tuple(self._left):
            if (message := event_message(event, search, self._spec.notify, now)) is None:
                continue
            self._left.remove(event)
            deliver = claim_notification(self._folder, self._spec, search, event, message)
            if deliver is not None:
                self._sending.append(submit_to_thread(deliver, "notify"))

    def finish(self) -> None:
        """Wait until what is being sent is sent, or has run out of time."""
        for sending in self._sending:
            with suppress(TimeoutError, KeyboardInterrupt):
                result_with_timeout(sending, COMMAND_LIMIT_S + WEBHOOK_LIMIT_S, "")
