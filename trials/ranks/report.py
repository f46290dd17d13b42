"""A rank's report on its attempt: phase, heartbeat, outcome. Imports no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trials.failure_policy import Ending, policy_of
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.outcome_types import ThroughputBound
from trials.ranks.environment import started_warm
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialSpec, utc_text


class Report:
    """Writer of one attempt's outcome, as one rank may write it. The watchdog's thread reads `phase` and
    `last_progress`.

    The first outcome stands: a rank that fails later does not overwrite it.
    """

    def __init__(self, spec: TrialSpec, folder: AttemptFolder, rank: int, restart: int, started_at: float):
        self.phase = "start"
        self.last_progress = time.monotonic()
        self.folder = folder
        self.restart = restart
        self._rank = rank
        self._path = folder.outcome(restart)
        self._blank = Outcome(
            search_id=spec.search_id,
            trial=spec.trial,
            attempt=spec.attempt,
            nonce=spec.nonce,
            status=OutcomeStatus.FAILED,
            restart=restart,
            started_at=utc_text(started_at),
            started_warm=started_warm(os.environ),
        )

    def enter(self, phase: str) -> None:
        """Enter a phase: `start`, `build`, `warmup`, `measured`."""
        self.phase = phase
        self.progress()

    def progress(self) -> None:
        """Record progress, which a hanging rank could not make."""
        self.last_progress = time.monotonic()

    def beat(self) -> None:
        """Touch the heartbeat file; rank 0 only."""
        if self._rank == 0:
            self.folder.heartbeat.touch()

    def has_outcome(self) -> bool:
        return self._path.exists()

    def failure(self) -> FailureReason | None:
        """The reason why some rank reported failure; None without one.

        A pruned trial has not failed: its ranks are done, and none is to be ended for it.
        """
        outcome = read_json(self._path)
        if outcome is None or outcome["status"] != OutcomeStatus.FAILED:
            return None
        reason = FailureReason(outcome["reason"])
        return None if policy_of(reason).ending is Ending.STOPPED_EARLY else reason

    def fail(self, reason: FailureReason, excerpt: str, measured: ThroughputBound | None = None, **fields: Any) -> None:
        """Write a failure of this rank, with the bound that it found and other fields as in `Outcome`, unless there is
        an outcome already."""
        if self.has_outcome():
            return
        failed = replace(self._blank, reason=reason, phase=self.phase, rank=self._rank, excerpt=excerpt)
        self.write(replace(failed, measured=measured, **fields))

    def outcome(self, **fields: Any) -> Outcome:
        """A measured outcome, not written yet; other fields as in `Outcome`."""
        return replace(self._blank, status=OutcomeStatus.MEASURED, ended_at=utc_text(), **fields)

    def pruned(self, excerpt: str, **fields: Any) -> Outcome:
        """The outcome of a trial that ended itself, not written yet, with its measurement until then."""
        blank = replace(self._blank, reason=FailureReason.PRUNED, phase=self.phase, rank=self._rank)
        return replace(blank, excerpt=excerpt, ended_at=utc_text(), **fields)

    def write(self, outcome: Outcome) -> None:
        """Write the outcome, replacing an earlier one of this rank."""
        data: Mapping[str, Any] = replace(outcome, ended_at=outcome.ended_at or utc_text()).to_json()
        write_json(self._path, data)
