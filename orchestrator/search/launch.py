"""Intents that were written down are launched, each once."""

from __future__ import annotations

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.search.context import Course
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import Attempt, TrialState


class Launching:
    """Hands attempts to the launcher, and writes down what it calls them."""

    def __init__(self, course: Course):
        self._course = course
        self._taken: dict[str, str | None] = {}  # launched, and not written down yet: a disk may be full just then

    def launch(self) -> None:
        """Launch every intent that waits."""
        for attempt in self._course.now.in_flight:
            if attempt.state is TrialState.SUBMITTED and self._course.search.state is not SearchState.STOPPING:
                self._course.hooks.keep_lease()  # many launches may take longer together than a lease lasts
                self._launch(attempt)

    def _launch(self, attempt: Attempt) -> None:
        key = self._course.key(attempt)
        try:
            if key not in self._taken:
                request = self._course.program.prepared(self._course.request(attempt))
                self._taken[key] = self._course.launcher.launch(request)
        except LaunchPostponed as postponed:
            self._course.say_once(str(postponed))
            return
        except LaunchRefused as refusal:
            self._course.stop(EndReason.SUBMISSION_REJECTED, str(refusal))
            return
        except OSError as error:  # its folder cannot be written now; others' may
            self._course.say_once(f"trying again: {error}")
            return
        if (job_id := self._taken[key]) is not None:
            self._course.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=job_id)
        del self._taken[key]
