"""Cancellation of attempts: one scancel for all, repeated until nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S, Submissions, TrackedJob
from slurm.interface import Slurm
from trials.attempt_result import Liveness

_NEXT_QUERY_S = 1.0
"""Delay after a scancel before the other attempts are polled again."""


class JobCanceller:
    """Cancels the attempts that `submissions` tracks and observes the result by `monitor`."""

    def __init__(self, slurm: Slurm, queries: SlurmQueries, submissions: Submissions, monitor: JobMonitor):
        self._slurm = slurm
        self._queries = queries
        self._submissions = submissions
        self._monitor = monitor

    def cancel(self, keys: Iterable[str]) -> set[str]:
        """Cancel with one scancel for all and poll once; repeated at the interval of other queries."""
        known = self._submissions.tracked
        wanted = {key: known[key] for key in keys if key in known}
        for tracked in wanted.values():
            tracked.cancelled = True
        due = {key: tracked for key, tracked in wanted.items() if _may_live(tracked) and self._is_due(tracked)}
        if due:
            self._queries.refresh(now=not self._queries.error_message)  # no extra query of a Slurm that does not answer
            self._monitor.read(due)
            self._cancel_due(due)
        return {key for key, tracked in wanted.items() if _may_live(tracked)}

    def _is_due(self, tracked: TrackedJob) -> bool:
        at = tracked.cancelled_at
        return at is None or not self._queries.is_future(at + self._queries.interval_s)

    def _cancel_due(self, due: Mapping[str, TrackedJob]) -> None:
        if self._queries.answer is None:
            return
        for tracked in due.values():
            tracked.cancelled_at = self._slurm.monotonic()
            since = tracked.unconfirmed_since
            window_is_over = since is not None and self._queries.asked_at >= since + CONFIRM_WINDOW_S
            if window_is_over and self._submissions.job_of(tracked) is None:
                tracked.unconfirmed_since = None
        if alive := [job for job in self._submissions.jobs_of(due.values()) if not job.state.is_ended]:
            self._submissions.cancel(alive)
            self._queries.refresh(now=True)
            self._monitor.read(due)
        self._queries.refresh_in(_NEXT_QUERY_S)


def _may_live(tracked: TrackedJob) -> bool:
    never_submitted = tracked.job_id is None and tracked.unconfirmed_since is None
    return not never_submitted and tracked.status.liveness is not Liveness.ENDED
