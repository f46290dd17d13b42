"""Notifications of a search's events, to a command and a webhook: at most once each, and without effect on the search.

The file notified/EVENT.json is created first, and by one process only. So a driver killed at that moment does not make
the next one send them again: a command may start the real training. `parlay status` shows the state in any case.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

from dashboards.terminal.headline import best_layout_line, best_layout_name, headline
from dashboards.terminal.progress import format_clock, limit_usages
from dashboards.text import printable
from orchestrator.config.answer import Answer
from orchestrator.config.schema.notify import NotifyEvent, NotifySection, webhook_address
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from orchestrator.records.summary import StatusAnswer, status_of
from search_spaces.errors import InputError
from trials.analysis.verdict import VerdictKind, baseline_key_of, ranking_of, verdict_of
from trials.files.folders import SearchFolder, sync_folder
from trials.files.text import last_line, plural
from trials.ledger.events import FABRIC_CHECK, Event, EventKind, SearchRecord
from trials.trial import utc_text

_log = logging.getLogger(__name__)


NOTIFIED_SCHEMA = "parlay.notified/1"
COMMAND_LIMIT_S = 30.0
WEBHOOK_LIMIT_S = 10.0
_LONGEST_REMARK = 160
_LAST_BYTES = 4096
"""End of a command's output that is searched for its last line."""


class NotificationAnswer(Answer):
    """Sent by `notify`: on the command's standard input, and as the body of the webhook's POST."""

    schema_: Literal["parlay.notification/1"] = "parlay.notification/1"
    event: NotifyEvent
    message: str
    """Sentence about the event that names the search."""
    status: StatusAnswer


def is_notification_due(folder: SearchFolder, spec: SearchSpec, event: NotifyEvent) -> bool:
    """True if `notify` names a receiver and this event, and the event was not notified yet."""
    notify = spec.notify
    return bool(notify.command or notify.webhook) and event in notify.events and not _record(folder, event).exists()


def send_notification(
    folder: SearchFolder, spec: SearchSpec, search: SearchRecord, event: NotifyEvent, message: str
) -> None:
    """Notify the command and the webhook of `notify` of this event, if nobody has done so; failures are noted."""
    if (deliver := claim_notification(folder, spec, search, event, message)) is not None:
        deliver()


def claim_notification(
    folder: SearchFolder, spec: SearchSpec, search: SearchRecord, event: NotifyEvent, message: str
) -> Callable[[], None] | None:
    """Record the event as notified and return the function that notifies; None if it was notified before."""
    try:
        answer = NotificationAnswer(event=event, message=message, status=status_of(search, spec, folder))
        payload = json.dumps(answer.plain(), allow_nan=False).encode()
        if not _create_record(_record(folder, event)):
            return None
    except OSError as error:
        _log.warning(
            f"no notification of the event {event} was sent, since the search's folder cannot be used: {error}"
        )
        return None
    return partial(_deliver, spec, payload)


def _record(folder: SearchFolder, event: NotifyEvent) -> Path:
    return folder.notified / f"{event.value}.json"


def _create_record(path: Path) -> bool:
    """Create the record of a notification; False if there is one. Exclusive, also between machines."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"schema": NOTIFIED_SCHEMA, "at": utc_text(time.time())}, stream)
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def _deliver(spec: SearchSpec, payload: bytes) -> None:
    if spec.notify.command and (failure := run_command(spec.notify.command, payload)) is not None:
        _log.warning(f"notify.command {spec.notify.command[0]}: {failure}")
    if spec.notify.webhook and (failure := post(Path(spec.notify.webhook), payload)) is not None:
        _log.warning(f"notify.webhook {spec.notify.webhook}: {failure}")


def run_command(command: list[str], payload: bytes, limit_s: float = COMMAND_LIMIT_S) -> str | None:
    """Run the command with `payload` on its standard input; returns an error message, or None on success.

    After `limit_s` the command's process group is killed.
    """
    try:
        # Files, not pipes: a program that does not read, or a child that goes on writing, blocks nothing.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
            given.write(payload)
            given.seek(0)
            child = subprocess.Popen(command, stdin=given, stdout=said, stderr=said, start_new_session=True)
            try:
                status = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                _kill(child)
                return f"was killed after {limit_s:g} s"
            except KeyboardInterrupt:
                _kill(child)
                return "was interrupted, and killed"
            return None if status == 0 else f"ended with status {status}{_last_output(said)}"
    except (OSError, ValueError) as error:
        return f"cannot be started: {error}"


def post(address_file: Path, payload: bytes, limit_s: float = WEBHOOK_LIMIT_S) -> str | None:
    """POST `payload` to the address in this file; returns an error message without the address, or None on success."""
    try:
        address = webhook_address(address_file)
        sending = submit_to_thread(partial(_send, address, payload, limit_s), "webhook")
        result_with_timeout(sending, limit_s, "")
    except InputError as error:
        return error.problems[0].message
    except urllib.error.HTTPError as error:
        return f"was answered with status {error.code}"
    except urllib.error.URLError as error:
        return f"cannot be reached: {_failure_text(error.reason)}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"cannot be reached: {_failure_text(error)}"
    except KeyboardInterrupt:
        return "was interrupted"
    return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they lead to another receiver, and a redirected POST arrives empty."""

    def redirect_request(self, *given: Any) -> None:
        return None


def _send(address: str, payload: bytes, limit_s: float) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "parlay"}
    request = urllib.request.Request(address, data=payload, headers=headers, method="POST")
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=limit_s):
        pass


def _failure_text(error: Any) -> str:
    """The system's error message, else the error's type only: other messages may contain the address."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"  # OpenSSL's message names the host
    return printable(getattr(error, "strerror", None) or type(error).__name__)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_output(said: BinaryIO) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_BYTES))
    line = last_line(said.read().decode("utf-8", errors="replace"))
    return f": {printable(line[:_LONGEST_REMARK])}" if line else ""


BUDGET_SHARE = 0.75
"""Used share of a limit from which the event `budget` is notified."""


def event_message(event: NotifyEvent, search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    """Sentence about the event; None while it has not happened. `now` is UTC seconds since the epoch."""
    if event is NotifyEvent.END:
        return _end_message(search) if search.state.is_ended else None
    if search.state.is_ended:
        return None
    return {
        NotifyEvent.STALL: _stall_message,
        NotifyEvent.BUDGET: _budget_message,
        NotifyEvent.SPEEDUP: _speedup_message,
    }[event](search, notify, now)


def last_progress_at(search: SearchRecord) -> float:
    """Time of the last end of a trial, else of the search's creation; UTC seconds since the epoch."""
    ends = (trial.last_attempt.ended_at for trial in search.trials if trial.state.is_ended and trial.last_attempt)
    return max([search.created_at, *(end for end in ends if end is not None)])


def _end_message(search: SearchRecord) -> str:
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    return f"{search.search_id} is {verdict.state.value}; {best_layout_line(verdict)}"


def _stall_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    passed = now - last_progress_at(search)
    if passed < notify.stall_after_s:
        return None
    in_flight = sum(attempt.trial != FABRIC_CHECK for attempt in search.in_flight)
    return (
        f"{search.search_id}: no trial has ended for {format_clock(passed)}"
        f" ({plural(in_flight, 'trial')} in flight, {len(search.trials)} so far)"
    )


def _budget_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    for usage in limit_usages(search, now):
        is_unused = usage.name == "layouts" and (search.spec.get("search") or {}).get("against") is not None
        if not is_unused and usage.used >= BUDGET_SHARE * usage.limit:
            return f"{search.search_id}: three quarters of a limit are used: {usage.name} {usage.text}"
    return None


def _speedup_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    if verdict.kind is not VerdictKind.FASTER or verdict.speedup is None or verdict.best is None:
        return None
    if verdict.speedup.ratio < notify.speedup:
        return None
    return f"{search.search_id}: {headline(verdict)}; {verdict.best.trial} ({best_layout_name(verdict)})"


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
