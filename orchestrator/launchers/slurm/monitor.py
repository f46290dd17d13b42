"""From Slurm's answers to what is known of each attempt: what runs, what has ended and how, what nobody remembers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from orchestrator.common.timeouts import FOLDER_TIMEOUT_S, HangGuard
from orchestrator.launchers.local.rank_groups import last_sign_of_life
from orchestrator.launchers.slurm.attempt_logs import failure_excerpt, has_outcome, last_restart, log_tail
from orchestrator.launchers.slurm.job_status import alive_status, describe_job, ended_status, unknown_status
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import Submissions, TrackedJob, submission_order
from slurm.interface import Slurm
from slurm.job_state import JobSnapshot, JobState
from trials.attempt_result import LaunchStatus, Liveness
from trials.trial import FailureReason


class JobMonitor:
    """Reads each answer once. Between two of them what was known last stands; what has ended stays as it ended."""

    def __init__(self, slurm: Slurm, queries: SlurmQueries, submissions: Submissions):
        self._slurm = slurm
        self._queries = queries
        self._submissions = submissions
        self._folders = HangGuard(FOLDER_TIMEOUT_S)

    def poll(self, keys: Iterable[str]) -> dict[str, LaunchStatus]:
        """What is known of these attempts, as `Launcher.poll` says."""
        keys, tracked = list(keys), self._submissions.tracked
        wanted = [key for key in keys if key in tracked]
        self._queries.refresh()
        if self._queries.has_news:
            self.read(wanted)
        return {key: tracked[key].status if key in tracked else LaunchStatus(Liveness.UNKNOWN) for key in keys}

    def read(self, keys: Iterable[str]) -> None:
        """Take what the last answer says of these attempts. A Slurm that is silent freezes all as unknown."""
        self._queries.has_news = False
        if self._queries.answer is None:
            self._set_all_unknown()
            return
        known = [self._submissions.tracked[key] for key in keys]
        missing = [tracked for tracked in known if self._is_open(tracked) and not self._read(tracked)]
        if missing:
            self._read_accounting({tracked.request.key: tracked for tracked in missing})
        for tracked in known:
            if tracked.twins or tracked.status.twin_node_s:
                tracked.status = replace(tracked.status, twin_node_s=sum(tracked.twins.values()))
        self._cancel_strays()

    def _set_all_unknown(self) -> None:
        for tracked in self._submissions.tracked.values():
            if self._is_open(tracked):
                tracked.status = LaunchStatus(Liveness.UNKNOWN, detail=self._queries.error_message)

    def _cancel_strays(self) -> None:
        """Jobs that live although their attempt has ended: a twin that came too late, or one put back after its end."""
        ended = [tracked for tracked in self._submissions.named() if tracked.status.liveness is Liveness.ENDED]
        jobs = [job for job in self._submissions.jobs_of(ended) if not job.state.is_ended]
        if strays := [job for job in jobs if job.state not in (JobState.COMPLETING, JobState.UNKNOWN)]:
            self._submissions.cancel(strays)

    def _is_open(self, tracked: TrackedJob) -> bool:
        """Whether the last answer, or silence, can say anything new of it: it has not ended, and was there by then."""
        return tracked.status.liveness is not Liveness.ENDED and self._queries.asked_at >= tracked.accepted_at

    def _read(self, tracked: TrackedJob) -> bool:
        """Whether its job is in the answer, which is then what is known of it."""
        job = self._submissions.job_of(tracked)
        if job is None:
            return False
        tracked.job_id, tracked.absent_since = job.job_id, None
        tracked.twins = self._node_s_of_twins(tracked, job)
        tracked.status = self._status_of(tracked, job)
        return True

    def _node_s_of_twins(self, tracked: TrackedJob, elder: JobSnapshot) -> dict[str, float]:
        """What the attempt's other jobs have held so far, by id; also of those that the controller has forgotten."""
        most_s = self._known_s(tracked)
        held = {
            job.job_id: len(job.nodes) * min(max(0.0, (job.ended_at or self._slurm.now()) - job.started_at), most_s)
            for job in self._submissions.jobs_of([tracked])
            if job.started_at is not None
        }
        return {job_id: node_s for job_id, node_s in (tracked.twins | held).items() if job_id != elder.job_id}

    def _status_of(self, tracked: TrackedJob, job: JobSnapshot) -> LaunchStatus:
        if job.state is JobState.UNKNOWN:
            return unknown_status(job)
        if job.state.is_ended:
            described = self._queries.describe(job)
            if described is None and job.state is JobState.FAILED:  # how it failed, only the controller can say
                detail = f"Slurm does not tell how job {job.job_id} failed"
                return LaunchStatus(Liveness.UNKNOWN, detail=detail, job_id=job.job_id)
            return self._from_folder(tracked, partial(self._ended, tracked, described or job))
        is_requeued = self._note_restart(tracked, job)
        return alive_status(job, tracked.restart, is_requeued)

    def _note_restart(self, tracked: TrackedJob, job: JobSnapshot) -> bool:
        """A job that waits again, or started anew, was requeued; only its full description counts how often. Whether
        its last run is being cleaned up: Slurm counts the next one by then, and calls it begun.

        One that was requeued before it was first seen waits for its time (BeginTime), which a new job never does.
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

    def _ended(self, tracked: TrackedJob, job: JobSnapshot) -> LaunchStatus:
        """The end of a job; where only the trial can know why it failed, with the words its ranks left."""
        log = log_tail(tracked.job.log)
        status = ended_status(job, log, tracked.cancelled)
        restart = last_restart(tracked.request.folder) if job.restarts is None else job.restarts
        is_metered = status.is_metered and self._is_plausible_duration(tracked, job)
        status = replace(status, restart=max(tracked.restart, restart), is_metered=is_metered)
        if status.failed and status.reason in (None, FailureReason.LAUNCH_FAILURE):
            return replace(status, detail=failure_excerpt(tracked.request.folder, describe_job(job), log))
        return status

    def _is_plausible_duration(self, tracked: TrackedJob, job: JobSnapshot) -> bool:
        """Whether the job's times are at most as far apart as its attempt is old: else a clock was set between them."""
        if job.started_at is None or job.ended_at is None:
            return True
        return job.ended_at - job.started_at <= self._known_s(tracked)

    def _known_s(self, tracked: TrackedJob) -> float:
        """Seconds since this driver submitted the attempt, infinite where an earlier one did; one more, since Slurm's
        are whole ones."""
        if tracked.submitted_at is None:
            return math.inf
        return self._slurm.monotonic() - tracked.submitted_at + 1.0

    def _from_folder(self, tracked: TrackedJob, read: Callable[[], LaunchStatus]) -> LaunchStatus:
        """What needs a look into the attempt's folder; while that hangs, only this attempt waits."""
        try:
            return self._folders.call(str(tracked.request.folder.path), read)
        except OSError as error:
            return LaunchStatus(Liveness.UNKNOWN, detail=f"its folder does not answer: {error}")

    # -- jobs the controller has forgotten

    def _read_accounting(self, missing: Mapping[str, TrackedJob]) -> None:
        accounted_jobs = (self._submissions.accounted_jobs(missing) if self._queries.accounting_is_due else None) or ()
        for tracked in missing.values():
            job = max(
                (job for job in accounted_jobs if self._submissions.is_job_of(tracked, job)),
                key=submission_order,
                default=None,
            )
            if job is not None and job.state.is_ended and job.ended_at is not None:
                tracked.status = self._from_folder(tracked, partial(self._ended, tracked, job))
            else:
                grace_s = self._queries.absence_grace_s()
                tracked.status = self._from_folder(tracked, partial(self._absent, tracked, grace_s))

    def _absent(self, tracked: TrackedJob, grace_s: float) -> LaunchStatus:
        """Neither the controller nor accounting knows it: its outcome tells, or the time without any sign of life."""
        folder = tracked.request.folder
        restart = max(tracked.restart, last_restart(folder))
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
            message = f"neither Slurm nor its accounting knows job {tracked.job_id} for {grace_s:.0f} s"
            ran, lost = tracked.job.log.exists(), FailureReason.JOB_LOST
            return LaunchStatus(
                Liveness.ENDED, ran, reason=lost, detail=message, job_id=tracked.job_id, restart=restart
            )
        message = f"job {tracked.job_id} is gone from Slurm{self._queries.accounting_error}; waiting for its outcome"
        return LaunchStatus(Liveness.UNKNOWN, detail=message)
