"""Status of attempts from Slurm's answers, accounting and the attempts' folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from orchestrator.launchers.local.rank_groups import last_sign_of_life
from orchestrator.launchers.slurm.job_files import failure_excerpt, has_outcome, last_restart, log_tail
from orchestrator.launchers.slurm.job_status import alive_status, describe_job, ended_status, unknown_status
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import Submissions, TrackedJob, submission_order
from orchestrator.launchers.timeouts import FOLDER_TIMEOUT_S, HangGuard
from slurm.interface import Slurm
from slurm.job_state import JobSnapshot, JobState
from trials.attempt_result import LaunchStatus, Liveness
from trials.failure_policy import policy_of
from trials.trial import FailureReason


class JobMonitor:
    """Reads each answer once. Between answers the last status stays; an ended attempt keeps its status."""

    def __init__(self, slurm: Slurm, queries: SlurmQueries, submissions: Submissions):
        self._slurm = slurm
        self._queries = queries
        self._submissions = submissions
        self._folders = HangGuard(FOLDER_TIMEOUT_S)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        """Return the status of these attempts, as `Launcher.poll`."""
        keys, tracked = list(keys), self._submissions.tracked
        wanted = [key for key in keys if key in tracked]
        self._queries.refresh()
        if self._queries.has_news:
            self.read(wanted)
        return {key: tracked[key].status if key in tracked else LaunchStatus(Liveness.UNKNOWN) for key in keys}

    def read(self, keys: Iterable[str]) -> None:
        """Update these attempts from the last answer. Without an answer all become unknown."""
        self._queries.has_news = False
        if self._queries.answer is None:
            self._set_all_unknown()
            return
        known = [self._submissions.tracked[key] for key in keys]
        missing = [tracked for tracked in known if self._is_open(tracked) and not self._read(tracked)]
        if missing:
            self._read_accounting({tracked.request.key: tracked for tracked in missing})
        for tracked in known:
            if tracked.duplicates or tracked.status.extra_node_s:
                tracked.status = replace(tracked.status, extra_node_s=sum(tracked.duplicates.values()))
        self._cancel_strays()

    def _set_all_unknown(self) -> None:
        for tracked in self._submissions.tracked.values():
            if self._is_open(tracked):
                tracked.status = LaunchStatus(Liveness.UNKNOWN, detail=self._queries.error_message)

    def _cancel_strays(self) -> None:
        """Cancel live jobs of ended attempts: a duplicate that appeared late, or a job requeued after its end."""
        ended = [tracked for tracked in self._submissions.attempts_in_answer() if tracked.is_ended]
        jobs = [job for job in self._submissions.jobs_of(ended) if not job.state.is_ended]
        if strays := [job for job in jobs if job.state not in (JobState.COMPLETING, JobState.UNKNOWN)]:
            self._submissions.cancel(strays)

    def _is_open(self, tracked: TrackedJob) -> bool:
        """True if the last answer can change the status: the attempt has not ended and was submitted before it."""
        return not tracked.is_ended and self._queries.asked_at >= tracked.accepted_at

    def _read(self, tracked: TrackedJob) -> bool:
        """Update from its job; False if it has none in the answer."""
        job = self._submissions.job_of(tracked)
        if job is None:
            return False
        tracked.job_id, tracked.absent_since = job.job_id, None
        tracked.duplicates = self._node_s_of_duplicates(tracked, job)
        tracked.status = self._status_of(tracked, job)
        return True

    def _node_s_of_duplicates(self, tracked: TrackedJob, current: JobSnapshot) -> dict[str, float]:
        """Return the node-seconds that the attempt's other jobs have held so far, by id, forgotten ones included."""
        most_s = self._known_s(tracked)
        held = {
            job.job_id: len(job.nodes) * min(max(0.0, (job.ended_at or self._slurm.now()) - job.started_at), most_s)
            for job in self._submissions.jobs_of([tracked])
            if job.started_at is not None
        }
        return {job_id: node_s for job_id, node_s in (tracked.duplicates | held).items() if job_id != current.job_id}

    def _status_of(self, tracked: TrackedJob, job: JobSnapshot) -> LaunchStatus:
        if job.state is JobState.UNKNOWN:
            return unknown_status(job)
        if job.state.is_ended:
            described = self._queries.describe(job)
            if described is None and job.state is JobState.FAILED:  # only the controller knows how it failed
                detail = f"Slurm does not report how job {job.job_id} failed"
                return LaunchStatus(Liveness.UNKNOWN, detail=detail, job_id=job.job_id)
            return self._from_folder(tracked, partial(self._ended_status, tracked, described or job))
        is_requeued = self._note_restart(tracked, job)
        status = alive_status(job, tracked.restart, is_requeued)
        if not (status.is_metered and self._is_plausible_duration(tracked, job)):
            return replace(status, is_metered=False)
        described = self._queries.describe(job)  # its usage may be booked from now on
        return replace(status, billing=None if described is None else self._queries.billing(described))

    def _note_restart(self, tracked: TrackedJob, job: JobSnapshot) -> bool:
        """Count restarts; return True while the last run of a requeued job is cleaned up.

        A job that waits again, or started anew, was requeued; only its full description counts how often. Slurm counts
        the next run while the last one is cleaned up, and reports it as started. A job requeued before it was first
        seen waits for its begin time (BeginTime), which a new job never does.
        """
        before = tracked.restart
        started_at = None if job.state.waits else job.started_at
        has_changed = tracked.started_at is not None and started_at != tracked.started_at
        if has_changed or job.reason == "BeginTime" or not tracked.is_described:
            described = self._queries.describe(job)
            restarts = None if described is None else described.restarts
            tracked.is_described = restarts is not None
            tracked.restart = max(tracked.restart, restarts or 0)
        is_new = tracked.restart > before or (tracked.restart > 0 and tracked.started_at is None)
        is_requeued = job.state is JobState.COMPLETING and is_new
        tracked.started_at = None if is_requeued else started_at
        return is_requeued

    def _ended_status(self, tracked: TrackedJob, job: JobSnapshot) -> LaunchStatus:
        """Return the status of an ended job, with an excerpt of its logs where only the trial can know the reason."""
        log = log_tail(tracked.job.log)
        status = ended_status(job, log, tracked.cancelled)
        restart = last_restart(tracked.request.folder, tracked.job.log) if job.restarts is None else job.restarts
        is_metered = status.is_metered and self._is_plausible_duration(tracked, job)
        status = replace(status, restart=max(tracked.restart, restart), is_metered=is_metered)
        status = replace(status, billing=self._queries.billing(job))
        status = self._queries.with_neighbours(status)
        if status.failed and (status.reason is None or policy_of(status.reason).stops_search):
            return replace(status, detail=failure_excerpt(tracked.request.folder, describe_job(job), log))
        return status

    def _is_plausible_duration(self, tracked: TrackedJob, job: JobSnapshot) -> bool:
        """True if the job's times are no further apart than its attempt is old: else a clock was set between them."""
        if job.started_at is None or job.ended_at is None:
            return True
        return job.ended_at - job.started_at <= self._known_s(tracked)

    def _known_s(self, tracked: TrackedJob) -> float:
        """Return the seconds since this driver submitted the attempt, plus one for rounding; infinite if another
        did."""
        if tracked.submitted_at is None:
            return math.inf
        return self._slurm.monotonic() - tracked.submitted_at + 1.0

    def _from_folder(self, tracked: TrackedJob, read: Callable[[], LaunchStatus]) -> LaunchStatus:
        """Run a read of the attempt's folder with a timeout, so that a hanging folder delays only this attempt."""
        try:
            return self._folders.call(str(tracked.request.folder.path), read)
        except OSError as error:
            return LaunchStatus(Liveness.UNKNOWN, detail=f"its folder cannot be read: {error}")

    # -- jobs unknown to the controller

    def _read_accounting(self, missing: Mapping[str, TrackedJob]) -> None:
        accounted_jobs = (self._submissions.accounted_jobs(missing) if self._queries.accounting_is_due else None) or ()
        for tracked in missing.values():
            job = max(
                (job for job in accounted_jobs if self._submissions.is_job_of(tracked, job)),
                key=submission_order,
                default=None,
            )
            if job is not None and job.state.is_ended and job.ended_at is not None:
                tracked.status = self._from_folder(tracked, partial(self._ended_status, tracked, job))
            else:
                grace_s = self._queries.absence_grace_s()
                tracked.status = self._from_folder(tracked, partial(self._absent_status, tracked, grace_s))

    def _absent_status(self, tracked: TrackedJob, grace_s: float) -> LaunchStatus:
        """Return the status of an attempt that neither the controller nor accounting knows.

        It has ended if there is an outcome, or after the grace period without any activity.
        """
        folder = tracked.request.folder
        restart = max(tracked.restart, last_restart(folder, tracked.job.log))
        if tracked.absent_since is None:
            tracked.absent_since = self._slurm.monotonic()
        if has_outcome(folder, restart):
            return LaunchStatus(
                Liveness.ENDED, started=True, detail="gone from Slurm", job_id=tracked.job_id, restart=restart
            )
        silent_s = self._slurm.monotonic() - tracked.absent_since
        if (last_sign := last_sign_of_life(folder, None)) is not None:
            silent_s = min(silent_s, max(0.0, self._slurm.now() - last_sign))
        if silent_s >= grace_s:
            message = f"neither Slurm nor its accounting has known job {tracked.job_id} for {grace_s:.0f} s"
            ran, lost = tracked.job.log.exists(), FailureReason.JOB_LOST
            return LaunchStatus(
                Liveness.ENDED, ran, reason=lost, detail=message, job_id=tracked.job_id, restart=restart
            )
        message = (
            f"job {tracked.job_id} is gone from Slurm{self._queries.accounting_error}; waiting for its outcome file"
        )
        return LaunchStatus(Liveness.UNKNOWN, detail=message)
