"""Exactly-once submission: each attempt gets one job, whatever fails on the way.

The intent is in the journal before anything is submitted, and the job's name is the attempt's key. While it is
uncertain whether a submission was accepted, the job is searched for by its name, and submitted again only after
CONFIRM_WINDOW_S. A job that is absent from an answer, and a Slurm that does not answer, both mean unknown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.launchers.slurm.handover import HandoverFile, HandoverState
from orchestrator.launchers.slurm.job_files import job_request, may_exist, write_job_files
from orchestrator.launchers.slurm.queries import SlurmQueries
from slurm.hostlist import compress
from slurm.interface import Slurm, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.parse import reports_no_answer
from slurm.request import JobOptions, JobRequest
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import AttemptFolder

_log = logging.getLogger(__name__)


CONFIRM_WINDOW_S = 60.0
"""Seconds for which a possibly accepted job is searched for before it is submitted again: one appeared after 35 s."""

UNACCOUNTED = "unknown"
"""Id of a job that left its files but is known to neither Slurm nor its accounting."""

CLOCK_SKEW_S = 300.0
"""Tolerated difference between this machine's clock and the controller's."""

_LONGEST_BACK_OFF_S = 300.0
_FIRST_BACK_OFF_S = 15.0


class JobIntent(Protocol):
    """Request for a job: a LaunchRequest, or a pilot's. Fields have the meaning of LaunchRequest's."""

    @property
    def key(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def folder(self) -> AttemptFolder: ...
    @property
    def submitted_at(self) -> float | None: ...
    @property
    def job_id(self) -> str | None: ...
    @property
    def restart(self) -> int: ...


@dataclass
class TrackedJob(HandoverState):
    """State of an attempt's job. `unaccounted_at` identifies the answer for which accounting did not answer."""

    request: JobIntent
    job: JobRequest
    job_id: str | None = None
    accepted_at: float = 0.0
    unaccounted_at: float | None = None
    cancelled_at: float | None = None
    status: LaunchStatus = field(default_factory=lambda: LaunchStatus(Liveness.ALIVE))

    @property
    def is_ended(self) -> bool:
        return self.status.liveness is Liveness.ENDED


class Submissions:
    """Submits attempts to `slurm` with the user's `options`, and identifies their jobs.

    `tracked` are the attempts launched or adopted, by key; `handover` passes
    state between drivers. `make` and `write` turn an intent into a job and its files.
    """

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        queries: SlurmQueries,
        handover: HandoverFile,
        make: Callable[[Any, JobOptions], JobRequest] = job_request,
        write: Callable[[JobRequest], None] = write_job_files,
    ):
        self.tracked: dict[str, TrackedJob] = {}
        self._slurm = slurm
        self._options = options
        self._queries = queries
        self._handover = handover
        self._make = make
        self._write = write
        self._back_off_s = 0.0
        self._submit_again_at = 0.0
        self._postponed = ""

    # -- launching

    def launch(self, request: JobIntent) -> str:
        """Return the id of the attempt's job, as `Launcher.launch`."""
        tracked = self.tracked.setdefault(request.key, TrackedJob(request, self._make(request, self._options)))
        if tracked.job_id is not None:
            raise ValueError(f"{request.key} was launched before")
        if tracked.unconfirmed_since is not None and (job_id := self.confirm(tracked)) is not None:
            return job_id
        if self._queries.is_future(self._submit_again_at):
            raise LaunchPostponed(self._postponed)
        return self._submit(tracked)

    def confirm(self, tracked: TrackedJob) -> str | None:
        """Return the job id of an unconfirmed submission; None if there certainly is none, however long the queue stays
        full; else LaunchPostponed."""
        if (job_id := self._confirmed_job_id(tracked)) is not None:
            return self._accept(tracked, job_id)
        tracked.unconfirmed_since = None
        return None

    def _confirmed_job_id(self, tracked: TrackedJob) -> str | None:
        unconfirmed_since = tracked.unconfirmed_since or 0.0
        self._queries.refresh()
        if self._queries.answer is not None and self._queries.asked_at >= unconfirmed_since:
            if (found := self.job_of(tracked)) is not None:
                return found.job_id
            if self._queries.asked_at >= unconfirmed_since + CONFIRM_WINDOW_S:
                return self._unaccounted_job_id(tracked)
        raise LaunchPostponed(f"Slurm may have accepted {tracked.request.key}: searching for it by its name")

    def _unaccounted_job_id(self, tracked: TrackedJob) -> str | None:
        """Return the id of a job that came and went between two queries, by accounting or by its log; None if there was
        none.

        Accounting is queried once for every list of jobs. While it does not answer, the job is waited for as long as
        one that is absent everywhere.
        """
        key, asked_at = tracked.request.key, self._queries.asked_at
        accounted_jobs = None if tracked.unaccounted_at == asked_at else self.accounted_jobs({key: tracked})
        job = max(
            (job for job in accounted_jobs or () if self.is_job_of(tracked, job)), key=submission_order, default=None
        )
        if job is not None:
            return job.job_id
        if may_exist(tracked.job.log):
            return UNACCOUNTED
        if accounted_jobs is None and asked_at < (tracked.unconfirmed_since or 0.0) + self._queries.absence_grace_s():
            tracked.unaccounted_at = asked_at
            raise LaunchPostponed(f"it is not known yet whether Slurm accepted {key}: its accounting does not answer")
        return None

    def _submit(self, tracked: TrackedJob) -> str:
        tracked.submitted_at = self._slurm.monotonic()
        request = tracked.job
        tracked.request.folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._write(request)
        submission = self._slurm.submit(request)
        if submission.status is SubmitStatus.REFUSED and request.exclude:
            # Perhaps only because too few nodes are left: a suspect node is better than none.
            avoided, request = request.exclude, replace(request, exclude=())
            self._write(request)
            submission = self._slurm.submit(request)
            if submission.status in (SubmitStatus.ACCEPTED, SubmitStatus.UNCONFIRMED):
                _log.warning(
                    f"{tracked.request.label} may run on {compress(avoided)} again: too few other nodes are left"
                )
        if submission.status is SubmitStatus.ACCEPTED and submission.job_id is not None:
            return self._accept(tracked, submission.job_id)
        if submission.status is SubmitStatus.REFUSED:
            raise LaunchRefused(f"Slurm refused {request.name}: {submission.message}")
        if submission.status is SubmitStatus.BUSY:
            raise self._postpone(submission)
        tracked.unconfirmed_since = self._slurm.monotonic()
        self._postpone(submission)  # further attempts would time out as well, for longer than a lease lasts
        raise LaunchPostponed(f"no answer from Slurm about {request.name}, searching for it: {submission.message}")

    def _accept(self, tracked: TrackedJob, job_id: str) -> str:
        self._back_off_s = 0.0
        tracked.job_id = job_id
        tracked.accepted_at = self._slurm.monotonic()
        tracked.unconfirmed_since = None
        tracked.status = LaunchStatus(Liveness.ALIVE)
        return job_id

    def _postpone(self, submission: Submission) -> LaunchPostponed:
        """Delay all submissions, longer each time: further ones would fail as well."""
        self._back_off_s = min(_LONGEST_BACK_OFF_S, max(_FIRST_BACK_OFF_S, 2 * self._back_off_s))
        self._submit_again_at = self._slurm.monotonic() + self._back_off_s
        answered = submission.status is SubmitStatus.BUSY and not reports_no_answer(submission.message)
        why = "accepts no more jobs at present" if answered else "does not answer"
        self._postponed = f"Slurm {why}: {submission.message}"
        return LaunchPostponed(self._postponed)

    # -- after a crash

    def adopt(self, requests: Mapping[str, JobIntent]) -> dict[str, str]:
        """Take over attempts by their recorded ids; submissions without an answer are searched for by name."""
        remembered = self._handover.load()
        for key, request in requests.items():
            self.tracked[key] = self._restored(request, remembered.get(key))
        if any(tracked.unconfirmed_since is not None for tracked in self.tracked.values()):
            self._queries.refresh(now=True)
        for tracked in self.tracked.values():
            found = self.job_of(tracked)
            if found is not None and tracked.job_id is None:
                self._accept(tracked, found.job_id)
        return {key: tracked.job_id for key, tracked in self.tracked.items() if tracked.job_id is not None}

    def _restored(self, request: JobIntent, known: HandoverState | None) -> TrackedJob:
        """Restore the last driver's state; without it, an unanswered submission is unconfirmed from now on."""
        job = self._make(request, self._options)
        tracked = TrackedJob(request, job, request.job_id, **vars(known or HandoverState(is_described=False)))
        tracked.restart = max(request.restart, tracked.restart)
        if request.job_id is not None:
            tracked.unconfirmed_since = None
        elif known is None and may_exist(job.script):
            tracked.unconfirmed_since = self._slurm.monotonic()
        return tracked

    def save(self) -> None:
        """Save the state of open attempts for the next driver."""
        open_ones = ((k, tracked) for k, tracked in self.tracked.items() if not tracked.is_ended)
        self._handover.save({key: _for_next_driver(tracked) for key, tracked in open_ones})

    # -- whose job it is

    def job_of(self, tracked: TrackedJob) -> JobSnapshot | None:
        """Return the attempt's job in the last answer; a running job comes before a pending one, then the oldest.

        A duplicate, from a repeated submission, is cancelled.
        """
        jobs = self.jobs_of([tracked])
        alive = sorted(
            (job for job in jobs if not job.state.is_ended), key=lambda job: (job.state.waits, submission_order(job))
        )
        if len(alive) > 1:
            self.cancel(alive[1:])
        if alive:
            return alive[0]
        return min(jobs, key=lambda job: (job.job_id != tracked.job_id, submission_order(job)), default=None)

    def jobs_of(self, attempts: Iterable[TrackedJob]) -> list[JobSnapshot]:
        """Return all jobs of these attempts in the last answer, duplicates included; [] while Slurm does not answer."""
        answer = self._queries.answer
        if answer is None:
            return []
        found = ((tracked, job) for tracked in attempts for job in answer.by_name.get(tracked.request.key, ()))
        return [job for tracked, job in found if self.is_job_of(tracked, job)]

    def attempts_in_answer(self) -> list[TrackedJob]:
        """Return the attempts with a job of their name in the last answer."""
        answer = self._queries.answer
        return [] if answer is None else [self.tracked[name] for name in answer.by_name if name in self.tracked]

    def is_job_of(self, tracked: TrackedJob, job: JobSnapshot) -> bool:
        """Compare name, user and submit time: ids are reused after a controller lost its records.

        A refused submission may leave the record of a failed job that never had a node; it is ignored.
        """
        if job.state is JobState.FAILED and not job.nodes and job.job_id != tracked.job_id:
            return False
        intent = tracked.request.submitted_at
        is_too_old = None not in (intent, job.submitted_at) and job.submitted_at < intent - CLOCK_SKEW_S  # type: ignore[operator]
        return job.name == tracked.request.key and job.user == self._slurm.user and not is_too_old

    def accounted_jobs(self, attempts: Mapping[str, TrackedJob]) -> tuple[JobSnapshot, ...] | None:
        """Return the accounting records of these attempts' jobs, as `SlurmQueries.accounted_jobs`."""
        known = [tracked.request.submitted_at for tracked in attempts.values()]
        since = min((at for at in known if at is not None), default=0.0) - CLOCK_SKEW_S
        return self._queries.accounted_jobs(attempts, since)

    def cancel(self, jobs: list[JobSnapshot]) -> set[str]:
        """Cancel all with one scancel; return ids of those that may still be alive."""
        try:
            return self._slurm.cancel(jobs)
        except SlurmUnreachable:
            return {job.job_id for job in jobs}


def _for_next_driver(tracked: TrackedJob) -> TrackedJob:
    """Return the state to hand over, in case the id of its job could not be recorded."""
    is_recorded = tracked.job_id is None or tracked.request.job_id is not None
    return tracked if is_recorded else replace(tracked, unconfirmed_since=tracked.accepted_at)


def submission_order(job: JobSnapshot) -> tuple[float, int]:
    """Sort key from the oldest job to the newest."""
    digits = "".join(c for c in job.job_id if c.isdigit())
    return (job.submitted_at or 0.0, int(digits or 0))
