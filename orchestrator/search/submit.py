"""Launches recorded intents, each once."""

from __future__ import annotations

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.search.context import SearchContext
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import Attempt, TrialState


class AttemptSubmitter:
    """Passes attempts to the launcher and records their job ids."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._launched: dict[str, str | None] = {}  # launched but not recorded: the disk may be full

    def submit(self) -> None:
        """Launch every attempt that is recorded as submitted."""
        for attempt in self._context.index.in_flight:
            if attempt.state is TrialState.SUBMITTED and self._context.search.state is not SearchState.STOPPING:
                self._context.callbacks.renew_lease()  # many launches may together outlast the lease
                self._submit(attempt)

    def _submit(self, attempt: Attempt) -> None:
        key = self._context.key(attempt)
        try:
            if key not in self._launched:
                request = self._context.factory.with_spec_file(self._context.request(attempt))
                self._launched[key] = self._context.launcher.launch(request)
        except LaunchPostponed as postponed:
            self._context.log_once.info(str(postponed))
            return
        except LaunchRefused as refusal:
            self._context.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
            return
        except OSError as error:  # this folder cannot be written; others may be
            self._context.log_once.warning(f"retrying: {error}")
            return
        if (job_id := self._launched[key]) is not None:
            self._context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)
        del self._launched[key]
