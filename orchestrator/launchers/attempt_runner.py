"""Runner of single attempts: launches one, polls it to its end, cancels it when a stop is requested."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from dashboards.log_once import LogOnce
from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRequest
from trials.attempt_result import LaunchStatus, Liveness

_log = logging.getLogger(__name__)

T = TypeVar("T")

POLL_INTERVAL_S = 0.5


class AttemptRunner:
    """Runs attempts on `launcher`, one at a time. `is_stop_requested` is polled before and while one runs."""

    def __init__(self, launcher: Launcher, is_stop_requested: Callable[[], bool] = lambda: False):
        self.launcher = launcher
        self._is_stop_requested = is_stop_requested
        self._log_once = LogOnce(_log)

    def run(self, request: LaunchRequest, on_poll: Callable[[], object] = lambda: None) -> LaunchStatus:
        """Launch the attempt, wait for its end and return its status; `on_poll` is called at every poll.

        Raises LaunchRefused, and KeyboardInterrupt after a requested stop, with the attempt cancelled.
        """
        self._raise_if_stopped()
        job_id = None
        try:
            while (job_id := self._try_launch(request)) is None:
                self.wait()
            while (status := self.launcher.poll([request.key])[request.key]).liveness is not Liveness.ENDED:
                self._log_waiting_reason(request, status)
                on_poll()
                self.wait()
        except KeyboardInterrupt:
            self._cancel(request, job_id)
            raise
        return status

    def wait_for(self, read: Callable[[], T | None], limit_s: float) -> T | None:
        """Wait until `read` returns a result, for `limit_s` at most, and return it. KeyboardInterrupt as `wait`."""
        deadline = self.launcher.now() + limit_s
        while (found := read()) is None and self.launcher.now() < deadline:
            self.wait()
        return found

    def wait(self) -> None:
        """Wait for the time between two polls. Raises KeyboardInterrupt if a stop is requested."""
        self._raise_if_stopped()
        self.launcher.wait(POLL_INTERVAL_S)

    def _try_launch(self, request: LaunchRequest) -> str | None:
        try:
            return self.launcher.launch(request)
        except LaunchPostponed as postponed:
            self._log_once.warning(str(postponed))
            return None

    def _log_waiting_reason(self, request: LaunchRequest, status: LaunchStatus) -> None:
        name = request.label
        if status.liveness is Liveness.UNKNOWN and status.detail:
            self._log_once.warning(f"{name} is unreachable: {status.detail}")
        elif status.started and any(message.startswith(name) for message in self._log_once.keys):
            self._log_once.info(f"{name} runs on {' '.join(status.nodes)}")
        elif status.detail and not status.started:
            self._log_once.info(f"{name} waits: {status.detail}")

    def _cancel(self, request: LaunchRequest, job_id: str | None) -> None:
        """Cancel the attempt; one that may still run is logged, even if a second interrupt comes."""
        left = {request.key}
        try:
            left = self.launcher.cancel([request.key])
        finally:
            if left:
                _log.warning(f"may still be running: {request.key}" + (f" ({job_id})" if job_id else ""))

    def _raise_if_stopped(self) -> None:
        """Raise KeyboardInterrupt if a stop is requested."""
        if self._is_stop_requested():
            raise KeyboardInterrupt
