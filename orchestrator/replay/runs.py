"""Runs of a replay: launched one after another, monitored, and cancelled when a stop is requested."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from dashboards.log_once import LogOnce
from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRequest
from orchestrator.replay.machine_lock import MeasurementLock, NullLock
from orchestrator.search.attempt_factory import OUTCOME_GRACE_S, AttemptFactory, next_attempt
from trials.attempt_result import AttemptResult, LaunchStatus, Liveness, may_retry
from trials.trial import Attempt, Trial

_log = logging.getLogger(__name__)


POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class ReplayCallbacks:
    """Callbacks of a replay: `is_stop_requested` is polled before and during each run.

    `lock` is held while a session's runs are measured.
    """

    is_stop_requested: Callable[[], bool] = lambda: False
    lock: MeasurementLock = field(default_factory=NullLock)

    def acquire_lock(self, wait: Callable[[float], None]) -> None:
        """Take the lock, and note if that means waiting. KeyboardInterrupt as below."""
        if self.lock.try_acquire():
            return
        _log.info("waiting for another replay on this machine to finish")
        while not self.lock.try_acquire():
            self.raise_if_stopped()
            wait(POLL_INTERVAL_S)

    def raise_if_stopped(self) -> None:
        """Raise KeyboardInterrupt if a stop is requested."""
        if self.is_stop_requested():
            raise KeyboardInterrupt


class ReplayRuns:
    """Measures runs of `program` on `launcher`, one after another; `results` are those of the runs so far.

    Raises KeyboardInterrupt when a stop is requested.
    """

    def __init__(self, program: AttemptFactory, launcher: Launcher, callbacks: ReplayCallbacks):
        self._program = program
        self._launcher = launcher
        self._callbacks = callbacks
        self._log_once = LogOnce(_log)
        self.results: list[AttemptResult] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold the machine's lock within this block, after waiting for it."""
        self._callbacks.acquire_lock(self._launcher.wait)
        try:
            yield
        finally:
            self._callbacks.lock.release()

    def pause(self, seconds: float, why: str) -> None:
        """Note the reason and wait."""
        _log.info(why)
        until = self._launcher.now() + seconds
        while self._launcher.now() < until:
            self._wait()

    def measure(self, trial: Trial) -> AttemptResult:
        """Measure one run, with retries as in a search."""
        while True:
            attempt = next_attempt(trial, secrets.token_hex(16), self._program.time_limit_s)
            result = self._result(trial, attempt)
            ended = replace(attempt, state=result.state, reason=result.reason)
            trial = trial.with_attempt(ended)
            if not may_retry(trial, ended):
                self.results.append(result)
                return result

    def _result(self, trial: Trial, attempt: Attempt) -> AttemptResult:
        """Run the attempt to its end and return its result, waiting OUTCOME_GRACE_S for its outcome file."""
        self._callbacks.raise_if_stopped()
        status = self._status(self._program.with_spec_file(self._program.request(trial, attempt)))
        ended = replace(attempt, unknown_since=self._launcher.now())
        while True:
            try:
                return self._program.result(trial, ended, status, self._launcher.now())
            except OSError:
                if self._launcher.now() - (ended.unknown_since or 0.0) > OUTCOME_GRACE_S:
                    raise
                self._wait()

    def _status(self, request: LaunchRequest) -> LaunchStatus:
        """Launch the attempt and wait for its end."""
        key, job_id = request.spec.attempt_key, None
        try:
            while (job_id := self._try_launch(request)) is None:
                self._wait()
            while (status := self._launcher.poll([key])[key]).liveness is not Liveness.ENDED:
                self._note_waiting_reason(request, status)
                self._wait()
        except KeyboardInterrupt:
            self._cancel(key, job_id)
            raise
        return status

    def _try_launch(self, request: LaunchRequest) -> str | None:
        try:
            return self._launcher.launch(request)
        except LaunchPostponed as postponed:
            self._log_once.warning(str(postponed))
            return None

    def _note_waiting_reason(self, request: LaunchRequest, status: LaunchStatus) -> None:
        name = f"{request.spec.trial}.{request.spec.attempt}"
        if status.liveness is Liveness.UNKNOWN and status.detail:
            self._log_once.warning(f"{name} is unreachable: {status.detail}")
        elif status.started and any(message.startswith(name) for message in self._log_once.keys):
            self._log_once.info(f"{name} runs on {' '.join(status.nodes)}")
        elif status.detail and not status.started:
            self._log_once.info(f"{name} waits: {status.detail}")

    def _cancel(self, key: str, job_id: str | None) -> None:
        """Cancel the attempt; one that may still run is logged, even if a second interrupt comes."""
        left = {key}
        try:
            left = self._launcher.cancel([key])
        finally:
            if left:
                _log.warning(f"may still be running: {key}" + (f" ({job_id})" if job_id else ""))

    def _wait(self) -> None:
        self._callbacks.raise_if_stopped()
        self._launcher.wait(POLL_INTERVAL_S)
