"""Runs of a replay: launched one after another, monitored, cancelled when a stop is requested; and the lock of the
machine, so that a user's replays measure on it one after another."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from orchestrator.launchers.attempt_runner import POLL_INTERVAL_S, AttemptRunner
from orchestrator.launchers.base import Launcher
from orchestrator.replay.requirement import NodeHourBudget
from orchestrator.search.attempt_factory import OUTCOME_GRACE_S, AttemptFactory, next_attempt
from orchestrator.search.node_hours import node_hours_with_requeues
from search_spaces.errors import InputError
from trials.attempt_result import AttemptResult, may_retry
from trials.trial import Attempt, Trial

_log = logging.getLogger(__name__)


class MachineLock:
    """Machine-wide lock among the processes of one home of Parlay; the lock of a process that dies is free."""

    def __init__(self, home: Path):
        self._lock = FileLock(
            home / "measuring.lock", mode=0o600, thread_local=False, blocking=False, fallback_to_soft=False
        )

    def try_acquire(self) -> bool:
        """InputError where the home cannot be written."""
        try:
            return self._lock.is_locked or self._lock.acquire().lock.is_locked
        except Timeout:
            return False
        except OSError as error:
            raise home_error(Path(self._lock.lock_file).parent, error) from error

    def release(self) -> None:
        self._lock.release()


def home_error(home: Path, error: OSError) -> InputError:
    """Error for a Parlay home that cannot be written."""
    return InputError.of(
        "home",
        f"{error.filename or home} cannot be written: {error.strerror or error}",
        key="PARLAY_HOME",
        value=str(home),
        rule="Parlay's home holds a user's files that belong to no search, such as the lock for measuring",
        fix="set PARLAY_HOME to a folder of yours on local disk",
    )


@dataclass(frozen=True)
class ReplayCallbacks:
    """Callbacks of a replay: `is_stop_requested` is polled before and during each run.

    `lock` is held while a session's runs are measured; None for runs whose nodes the batch system allocates
    exclusively.
    """

    is_stop_requested: Callable[[], bool] = lambda: False
    lock: MachineLock | None = None

    def acquire_lock(self, wait: Callable[[float], None]) -> None:
        """Take the lock, and note if that means waiting. KeyboardInterrupt as below."""
        if self.lock is None or self.lock.try_acquire():
            return
        _log.info("waiting for another replay on this machine to finish")
        while not self.lock.try_acquire():
            self.raise_if_stopped()
            wait(POLL_INTERVAL_S)

    def release_lock(self) -> None:
        """Release the lock if it is held here."""
        if self.lock is not None:
            self.lock.release()

    def raise_if_stopped(self) -> None:
        """Raise KeyboardInterrupt if a stop is requested."""
        if self.is_stop_requested():
            raise KeyboardInterrupt


class ReplayRuns:
    """Measures runs of `program` on `launcher`, one after another; `results` are those of the runs so far.

    Raises KeyboardInterrupt when a stop is requested, and BudgetSpent before a run that may not fit into `budget`.
    """

    def __init__(
        self,
        program: AttemptFactory,
        launcher: Launcher,
        callbacks: ReplayCallbacks,
        budget: NodeHourBudget | None = None,
    ):
        self._program = program
        self._budget = budget
        self._launcher = launcher
        self._callbacks = callbacks
        self._runner = AttemptRunner(launcher, callbacks.is_stop_requested)
        self.results: list[AttemptResult] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold the machine's lock within this block, after waiting for it; a job that its runs share ends with it."""
        self._callbacks.acquire_lock(self._launcher.wait)
        try:
            yield
            self._launcher.release()
        finally:
            self._callbacks.release_lock()

    def pause(self, seconds: float, why: str) -> None:
        """Note the reason and wait."""
        _log.info(why)
        until = self._launcher.now() + seconds
        while self._launcher.now() < until:
            self._runner.wait()

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
        request = replace(self._program.request(trial, attempt), is_repeat=True)
        if self._budget is not None:
            self._budget.require(self._launcher.reservation_node_s(request.time_limit_s, trial.layout.num_nodes) / 3600)
        request.folder.write_spec(self._program.folder.path, request.spec.to_json(), request.require_taken)
        attempt = replace(attempt, submitted_at=self._launcher.now())
        status = self._runner.run(request)
        if self._budget is not None:
            self._budget.spend(node_hours_with_requeues(attempt, status, self._launcher.now()))
        ended = replace(attempt, unknown_since=self._launcher.now())
        while True:
            try:
                return self._program.result(trial, ended, status, self._launcher.now())
            except OSError:
                if self._launcher.now() - (ended.unknown_since or 0.0) > OUTCOME_GRACE_S:
                    raise
                self._runner.wait()
