"""Intents that were written down are launched, each once."""

from __future__ import annotations

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.search.context import SearchContext
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import Attempt, TrialState


class AttemptSubmitter:
    """Hands attempts to the launcher, and writes down what it calls them."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._taken: dict[str, str | None] = {}  # launched, and not written down yet: a disk may be full just then

    def launch(self) -> None:
        """Launch every intent that waits."""
        for attempt in self._context.index.in_flight:
            if attempt.state is TrialState.SUBMITTED and self._context.search.state is not SearchState.STOPPING:
                self._context.callbacks.renew_lease()  # many launches may take longer together than a lease lasts
                self._launch(attempt)

    def _launch(self, attempt: Attempt) -> None:
        key = self._context.key(attempt)
        try:
            if key not in self._taken:
                request = self._context.factory.with_spec_file(self._context.request(attempt))
                self._taken[key] = self._context.launcher.launch(request)
        except LaunchPostponed as postponed:
            self._context.say_once(str(postponed))
            return
        except LaunchRefused as refusal:
            self._context.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
            return
        except OSError as error:  # its folder cannot be written now; others' may
            self._context.say_once(f"retrying: {error}")
            return
        if (job_id := self._taken[key]) is not None:
            self._context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)
        del self._taken[key]
