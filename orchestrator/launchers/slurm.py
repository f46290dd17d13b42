"""SlurmLauncher: each attempt is a batch job of its own, named by its attempt key. Jobs outlive the driver.

Exactly once: the intent stands in the journal before anything is submitted, and the job's name is the attempt's key.
Whenever it is not certain whether a submission was accepted, the job is looked for by its name until the settle window
is over, and only then submitted again. Absent is not done, and unreachable is not gone: both are unknown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from orchestrator.in_time import FOLDER_ANSWERS_WITHIN_S, InTime
from orchestrator.launchers.base import Launcher, LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.launchers.rank_groups import device_environment, last_sign_of_life, program_environment
from orchestrator.launchers.slurm_endings import alive_ending, ended_ending, job_words, unknown_ending
from orchestrator.launchers.slurm_traces import end_of, excerpt, has_outcome, last_restart, may_exist
from slurm.hostlist import compress
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable, SubmitStatus
from slurm.jobs import JobSnapshot, JobState
from slurm.pace import PollPace
from slurm.request import JobOptions, JobRequest
from slurm.script import render_script
from slurm.shared_answer import Answer
from trials.classify import Ending, Life
from trials.folder import write_text
from trials.trial import FailureReason

SETTLE_S = 60.0
"""How long a job that may have been accepted is looked for before it is submitted again: one was seen after 35 s."""

FORGOTTEN = "unknown"
"""The id of a job that left its files, and that neither Slurm nor its accounting remembers."""

CLOCK_SKEW_S = 300.0
"""How far this machine's clock and the controller's may be apart."""

CHECK_INTERVAL_S = 60.0
"""Slurm looks for jobs over their limit about every half minute and was seen to end them up to a minute late."""

_NEVER_ENDED_S = 365 * 86400.0  # OverTimeLimit=UNLIMITED, which no journal can hold as it is
_LONGEST_BACK_OFF_S = 300.0
_FIRST_BACK_OFF_S = 15.0


@dataclass
class _Tracked:
    """What is known of an attempt. Moments are those of `Slurm.monotonic`, but for `started_at`, which is Slurm's word.

    `doubtful_since` is set while nobody knows whether it was submitted, `is_described` once the controller was asked
    how often its job was requeued before this driver came. `unaccounted_at` is the answer for which accounting did not
    answer. `twins` are other jobs of its name, with the seconds times nodes they held.
    """

    request: LaunchRequest
    job_id: str | None = None
    submitted_at: float | None = None
    is_described: bool = True
    accepted_at: float = 0.0
    doubtful_since: float | None = None
    unaccounted_at: float | None = None
    cancelled: bool = False
    cancelled_at: float | None = None
    absent_since: float | None = None
    started_at: float | None = None
    restart: int = 0
    twins: dict[str, float] = field(default_factory=dict)
    ending: Ending = field(default_factory=lambda: Ending(Life.ALIVE))


class SlurmLauncher(Launcher):
    """Submits to `slurm` with the user's `options`; `sleep` lets seconds of its clock pass, `note` is told what a user
    should know of a launch.

    `jobs` answers with all the user's jobs, as they were at most so many seconds ago: one question for all attempts of
    all searches, no oftener than `pace` allows. Between two answers the last one stands.
    """

    name = "slurm"

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        pace: PollPace,
        jobs: Callable[[float], Answer],
        sleep: Callable[[float], None] = time.sleep,
        note: Callable[[str], None] = lambda text: None,
    ):
        self._slurm = slurm
        self._options = options
        self._pace = pace
        self._jobs = jobs
        self._sleep = sleep
        self._note = note
        self._settings: SlurmSettings | None = None
        self._settings_again_at = 0.0
        self._is_silent = False
        self._tracked: dict[str, _Tracked] = {}
        self._answer: Answer | None = None
        self._asked_at = 0.0
        self._next_look_at = 0.0
        self._back_off_s = 0.0
        self._submit_again_at = 0.0
        self._postponed = ""
        self._accounting_words = ""
        self._folders = InTime(FOLDER_ANSWERS_WITHIN_S)

    # -- launching

    def launch(self, request: LaunchRequest) -> str | None:
        tracked = self._tracked.setdefault(request.spec.attempt_key, _Tracked(request))
        if tracked.job_id is not None:
            raise ValueError(f"{request.spec.attempt_key} was launched before")
        if tracked.doubtful_since is not None and (job_id := self._settled(tracked)) is not None:
            return self._accepted(tracked, job_id)
        tracked.doubtful_since = None  # there is none for certain, however long the queue may still be full
        if self._is_to_come(self._submit_again_at):
            raise LaunchPostponed(self._postponed)
        return self._submit(tracked)

    def _settled(self, tracked: _Tracked) -> str | None:
        """The job id of a doubtful submission; None once it is certain that there is none, LaunchPostponed before."""
        doubtful_since = tracked.doubtful_since or 0.0
        self._look()
        if self._answer is not None and self._asked_at >= doubtful_since:
            if (found := self._elder(tracked, self._answer)) is not None:
                return found.job_id
            if self._asked_at >= doubtful_since + SETTLE_S:
                return self._forgotten_job_id(tracked)
        raise LaunchPostponed(f"Slurm may have accepted {tracked.request.spec.attempt_key}: looking for it by its name")

    def _forgotten_job_id(self, tracked: _Tracked) -> str | None:
        """The id of a job that came and went unseen: accounting may know it, or its log tells that there was one.

        Accounting that does not answer tells nothing; it is asked once for every list of jobs, and waited for as long
        as a job that is absent everywhere.
        """
        key = tracked.request.spec.attempt_key
        accounted = None if tracked.unaccounted_at == self._asked_at else self._accounted({key: tracked})
        job = max((job for job in accounted or () if self._is_job_of(tracked, job)), key=_age, default=None)
        if job is not None:
            return job.job_id
        if may_exist(self._job_request(tracked.request).log):
            return FORGOTTEN
        if accounted is None and self._asked_at < (tracked.doubtful_since or 0.0) + self._absence_grace_s():
            tracked.unaccounted_at = self._asked_at
            raise LaunchPostponed(f"nobody knows yet whether Slurm accepted {key}: its accounting does not answer")
        return None

    def _submit(self, tracked: _Tracked) -> str:
        tracked.submitted_at = self._slurm.monotonic()
        request = self._job_request(tracked.request)
        tracked.request.folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_text(request.script, render_script(request))
        submission = self._slurm.submit(request)
        if submission.status is SubmitStatus.REFUSED and request.exclude:
            # Perhaps only because too few nodes are left: a suspect node is better than none.
            avoided, request = request.exclude, self._job_request(tracked.request, exclude=())
            write_text(request.script, render_script(request))
            submission = self._slurm.submit(request)
            if submission.status in (SubmitStatus.ACCEPTED, SubmitStatus.DOUBTFUL):
                spec = tracked.request.spec
                self._note(f"{spec.trial}.{spec.attempt} may run on {compress(avoided)} again: too few others are left")
        if submission.status is SubmitStatus.ACCEPTED and submission.job_id is not None:
            return self._accepted(tracked, submission.job_id)
        if submission.status is SubmitStatus.REFUSED:
            raise LaunchRefused(f"Slurm refused {request.name}: {submission.words}")
        if submission.status is SubmitStatus.BUSY:
            raise self._postpone(submission.words)
        tracked.doubtful_since = self._slurm.monotonic()
        self._postpone(submission.words)  # the others would wait as long, and add up to more than a lease lasts
        raise LaunchPostponed(f"no answer from Slurm about {request.name}, looking for it: {submission.words}")

    def _accepted(self, tracked: _Tracked, job_id: str) -> str:
        self._back_off_s = 0.0
        tracked.job_id = job_id
        tracked.accepted_at = self._slurm.monotonic()
        tracked.doubtful_since = None
        tracked.ending = Ending(Life.ALIVE)
        return job_id

    def _postpone(self, words: str) -> LaunchPostponed:
        """Nobody submits for a while, longer each time: every further attempt would be told the same."""
        self._back_off_s = min(_LONGEST_BACK_OFF_S, max(_FIRST_BACK_OFF_S, 2 * self._back_off_s))
        self._submit_again_at = self._slurm.monotonic() + self._back_off_s
        self._postponed = f"Slurm takes no more jobs just now: {words}"
        return LaunchPostponed(self._postponed)

    def _job_request(self, request: LaunchRequest, exclude: tuple[str, ...] | None = None) -> JobRequest:
        spec = request.spec
        return JobRequest(
            name=spec.attempt_key,
            directory=Path(request.folder.path).absolute(),
            num_nodes=spec.num_nodes,
            tasks_per_node=-(-spec.num_gpus // spec.num_nodes),
            time_limit_s=request.time_limit_s,
            argv=request.argv,
            environment=program_environment(request.code) | device_environment(spec),
            options=self._options,
            exclude=request.exclude if exclude is None else exclude,
        )

    def longest_s(self, time_limit_s: float) -> float:
        """Slurm rounds a limit up to minutes, grants OverTimeLimit, looks once in a while, and waits for SIGKILL."""
        settings = self._cluster_settings()
        if settings is None:
            raise LaunchPostponed("Slurm does not tell its settings, so that nobody knows what a job may cost")
        return longest_job_s(time_limit_s, settings)

    def _cluster_settings(self) -> SlurmSettings | None:
        """The cluster's configuration; None while it does not answer."""
        if self._settings is None and not self._is_to_come(self._settings_again_at):
            try:
                self._settings = self._slurm.settings()
            except SlurmUnreachable:
                self._settings_again_at = self._slurm.monotonic() + self._pace.interval_s
        return self._settings

    # -- after a crash

    def adopt(self, requests: Mapping[str, LaunchRequest]) -> dict[str, str]:
        """Takes over what the journal knows by id; what was perhaps submitted without an answer is looked for first."""
        for key, request in requests.items():
            self._tracked[key] = _Tracked(request, request.job_id, is_described=False, restart=request.restart)
            if request.job_id is None and may_exist(self._job_request(request).script):
                self._tracked[key].doubtful_since = self._slurm.monotonic()
        if any(tracked.doubtful_since is not None for tracked in self._tracked.values()):
            self._look(now=True)
        for tracked in self._tracked.values():
            found = None if self._answer is None else self._elder(tracked, self._answer)
            if found is not None and tracked.job_id is None:
                self._accepted(tracked, found.job_id)
        return {key: tracked.job_id for key, tracked in self._tracked.items() if tracked.job_id is not None}

    # -- watching

    def poll(self, keys: Iterable[str]) -> dict[str, Ending]:
        wanted = [key for key in keys if key in self._tracked]
        if self._look():
            self._read_answer(wanted)
        unknown = dict.fromkeys(set(keys) - set(wanted), Ending(Life.UNKNOWN))
        return unknown | {key: self._tracked[key].ending for key in wanted}

    def _look(self, now: bool = False) -> bool:
        """Ask what there is when it is time to, or at once; whether there is a new answer, or the news of having none.

        A controller that does not answer freezes everything as unknown, and is asked less and less often.
        """
        if not now and self._is_to_come(self._next_look_at):
            return False
        self._is_silent = False
        began = self._slurm.monotonic()
        try:
            self._answer = self._jobs(0.0 if now else self._pace.interval_s / 2)
            # Another driver may have asked a while ago: of that only the clock that people set tells.
            age_s = max(0.0, self.now() - self._answer.asked_at)
            self._asked_at = min(began, self._slurm.monotonic() - age_s)
            self._pace.answered(self._answer.took_s)
        except SlurmUnreachable as error:
            self._answer = None
            self._pace.failed()
            self._freeze(f"Slurm does not answer: {error}")
        self._next_look_at = self._slurm.monotonic() + self._pace.interval_s
        return True

    def _freeze(self, detail: str) -> None:
        for tracked in self._tracked.values():
            if tracked.ending.life is not Life.ENDED:
                tracked.ending = Ending(Life.UNKNOWN, detail=detail)

    def _read_answer(self, keys: Iterable[str]) -> None:
        answer = self._answer
        if answer is None:
            return
        missing: dict[str, _Tracked] = {}
        for key in keys:
            tracked = self._tracked[key]
            if tracked.ending.life is Life.ENDED or self._asked_at < tracked.accepted_at:
                continue
            job = self._elder(tracked, answer)
            if job is None:
                missing[key] = tracked
            else:
                tracked.job_id, tracked.absent_since = job.job_id, None
                tracked.twins = self._node_s_of_twins(tracked, job, answer)
                tracked.ending = self._ending_of(tracked, job)
        if missing:
            self._look_in_accounting(missing)
        for tracked in (self._tracked[key] for key in keys):
            tracked.ending = replace(tracked.ending, twin_node_s=sum(tracked.twins.values()))

    def _elder(self, tracked: _Tracked, answer: Answer) -> JobSnapshot | None:
        """The attempt's job among these; a younger twin, from a submission that was repeated, is cancelled.

        One that runs stays, whatever still waits.
        """
        jobs = [job for job in answer.jobs if self._is_job_of(tracked, job)]
        alive = sorted((job for job in jobs if not job.state.is_ended), key=lambda job: (job.state.waits, _age(job)))
        if len(alive) > 1:
            self._cancel_jobs(alive[1:])
        if alive:
            return alive[0]
        return min(jobs, key=lambda job: (job.job_id != tracked.job_id, _age(job)), default=None)

    def _node_s_of_twins(self, tracked: _Tracked, elder: JobSnapshot, answer: Answer) -> dict[str, float]:
        """What the attempt's other jobs have held so far, by id; also of those that the controller has forgotten."""
        most_s = self._known_s(tracked)
        held = {
            job.job_id: len(job.nodes) * min(max(0.0, (job.ended_at or self.now()) - job.started_at), most_s)
            for job in answer.jobs
            if job.started_at is not None and self._is_job_of(tracked, job)
        }
        return {job_id: node_s for job_id, node_s in (tracked.twins | held).items() if job_id != elder.job_id}

    def _is_job_of(self, tracked: _Tracked, job: JobSnapshot) -> bool:
        """Name, user and time of submission: ids are given out again after a controller lost its records.

        A refused submission may leave the record of a job that failed without ever having a node; it is none of ours.
        """
        if job.state is JobState.FAILED and not job.nodes and job.job_id != tracked.job_id:
            return False
        intent = tracked.request.submitted_at
        is_too_old = None not in (intent, job.submitted_at) and job.submitted_at < intent - CLOCK_SKEW_S  # type: ignore[operator]
        return job.name == tracked.request.spec.attempt_key and job.user == self._slurm.user and not is_too_old

    def _ending_of(self, tracked: _Tracked, job: JobSnapshot) -> Ending:
        if job.state is JobState.UNKNOWN:
            return unknown_ending(job)
        if job.state.is_ended:
            described = self._described(job)
            if described is None and job.state is JobState.FAILED:  # how it failed, only the controller can say
                detail = f"Slurm does not tell how job {job.job_id} failed"
                return Ending(Life.UNKNOWN, detail=detail, job_id=job.job_id)
            return self._from_folder(tracked, partial(self._ended, tracked, described or job))
        self._note_restart(tracked, job)
        return alive_ending(job, tracked.restart)

    def _note_restart(self, tracked: _Tracked, job: JobSnapshot) -> None:
        """A job that waits again, or started anew, was requeued; only its full description counts how often.

        One that was requeued before it was first seen waits for its time (BeginTime), which a new job never does.
        """
        started_at = None if job.state.waits else job.started_at
        has_changed = tracked.started_at is not None and started_at != tracked.started_at
        if has_changed or job.reason == "BeginTime" or not tracked.is_described:
            described = self._described(job)
            restarts = None if described is None else described.restarts
            tracked.is_described = restarts is not None
            tracked.restart = max(tracked.restart, restarts or 0)
        tracked.started_at = started_at

    def _described(self, job: JobSnapshot) -> JobSnapshot | None:
        """The job with exit code and restarts, where the controller still knows them; None while it does not answer.

        After one question without an answer nothing more is asked until the next look.
        """
        if self._is_silent:
            return None
        try:
            described = self._slurm.describe(job.job_id)
        except SlurmUnreachable:
            self._is_silent = True
            return None
        is_same = described is not None and (described.name, described.user) == (job.name, job.user)
        return described if described is not None and is_same else job

    def _ended(self, tracked: _Tracked, job: JobSnapshot) -> Ending:
        """The end of a job; where only the trial can know why it failed, with the words its ranks left."""
        log = end_of(self._job_request(tracked.request).log)
        ending = ended_ending(job, log, tracked.cancelled)
        restart = last_restart(tracked.request.folder) if job.restarts is None else job.restarts
        is_metered = ending.is_metered and self._can_have_lasted(tracked, job)
        ending = replace(ending, restart=max(tracked.restart, restart), is_metered=is_metered)
        if ending.reason is None and ending.failed:
            return replace(ending, detail=excerpt(tracked.request.folder, job_words(job), log))
        return ending

    def _can_have_lasted(self, tracked: _Tracked, job: JobSnapshot) -> bool:
        """Whether the job's times are at most as far apart as its attempt is old: else a clock was set between them."""
        if job.started_at is None or job.ended_at is None:
            return True
        return job.ended_at - job.started_at <= self._known_s(tracked)

    def _known_s(self, tracked: _Tracked) -> float:
        """Seconds since this driver submitted the attempt, infinite where an earlier one did; one more, since Slurm's
        are whole ones."""
        if tracked.submitted_at is None:
            return math.inf
        return self._slurm.monotonic() - tracked.submitted_at + 1.0

    def _from_folder(self, tracked: _Tracked, read: Callable[[], Ending]) -> Ending:
        """What needs a look into the attempt's folder; while that hangs, only this attempt waits."""
        try:
            return self._folders.call(str(tracked.request.folder.path), read)
        except OSError as error:
            return Ending(Life.UNKNOWN, detail=f"its folder does not answer: {error}")

    # -- jobs the controller has forgotten

    def _look_in_accounting(self, missing: Mapping[str, _Tracked]) -> None:
        accounted = self._accounted(missing) or ()
        for key, tracked in missing.items():
            jobs = [job for job in accounted if job.name == key and self._is_job_of(tracked, job)]
            job = max(jobs, key=_age, default=None)
            if job is not None and job.state.is_ended and job.ended_at is not None:
                tracked.ending = self._from_folder(tracked, partial(self._ended, tracked, job))
            else:
                grace_s = self._absence_grace_s()
                tracked.ending = self._from_folder(tracked, partial(self._absent, tracked, grace_s))

    def _absence_grace_s(self) -> float:
        """How long a job must be absent everywhere to be taken for lost."""
        return max(600.0, 2 * (self._cluster_settings() or SlurmSettings()).min_job_age_s)

    def _accounted(self, missing: Mapping[str, _Tracked]) -> tuple[JobSnapshot, ...] | None:
        """What accounting says of these: nothing where there is none, None where it does not answer."""
        self._accounting_words = ""
        known = [tracked.request.submitted_at for tracked in missing.values()]
        since = min((at for at in known if at is not None), default=0.0) - CLOCK_SKEW_S
        try:
            return self._slurm.accounted(missing, since) or ()
        except SlurmUnreachable as error:
            self._accounting_words = f" (accounting does not answer: {error})"
            return None

    def _absent(self, tracked: _Tracked, grace_s: float) -> Ending:
        """Neither the controller nor accounting knows it: its outcome tells, or the time without any sign of life."""
        folder = tracked.request.folder
        restart = max(tracked.restart, last_restart(folder))
        if tracked.absent_since is None:
            tracked.absent_since = self._slurm.monotonic()
        if has_outcome(folder, restart):
            return Ending(Life.ENDED, started=True, detail="gone from Slurm", job_id=tracked.job_id, restart=restart)
        silent_s = self._slurm.monotonic() - tracked.absent_since
        if (last_sign := last_sign_of_life(folder, None)) is not None:
            silent_s = min(silent_s, max(0.0, self.now() - last_sign))
        if silent_s >= grace_s:
            words = f"neither Slurm nor its accounting knows job {tracked.job_id} for {grace_s:.0f} s"
            ran, lost = self._job_request(tracked.request).log.exists(), FailureReason.LOST
            return Ending(Life.ENDED, ran, reason=lost, detail=words, job_id=tracked.job_id, restart=restart)
        words = f"job {tracked.job_id} is gone from Slurm{self._accounting_words}; waiting for its outcome"
        return Ending(Life.UNKNOWN, detail=words)

    # -- cancelling

    def cancel(self, keys: Iterable[str]) -> set[str]:
        """One scancel for all, and a look at what it did; repeated at the pace of the other questions."""
        wanted = {key: self._tracked[key] for key in keys if key in self._tracked}
        for tracked in wanted.values():
            tracked.cancelled = True
        due = {key: tracked for key, tracked in wanted.items() if self._may_live(tracked) and self._is_due(tracked)}
        if due:
            self._look(now=True)
            self._read_answer(due)
            self._cancel_due(due)
        return {key for key, tracked in wanted.items() if self._may_live(tracked)}

    def _may_live(self, tracked: _Tracked) -> bool:
        never_submitted = tracked.job_id is None and tracked.doubtful_since is None
        return not never_submitted and tracked.ending.life is not Life.ENDED

    def _is_due(self, tracked: _Tracked) -> bool:
        return tracked.cancelled_at is None or not self._is_to_come(tracked.cancelled_at + self._pace.interval_s)

    def _cancel_due(self, due: Mapping[str, _Tracked]) -> None:
        answer = self._answer
        if answer is None:
            return
        for tracked in due.values():
            tracked.cancelled_at = self._slurm.monotonic()
            settled = tracked.doubtful_since is not None and self._asked_at >= tracked.doubtful_since + SETTLE_S
            if settled and self._elder(tracked, answer) is None:
                tracked.doubtful_since = None
        mine = [job for job in answer.jobs if any(self._is_job_of(tracked, job) for tracked in due.values())]
        if alive := [job for job in mine if not job.state.is_ended]:
            self._cancel_jobs(alive)
            self._look(now=True)
            self._read_answer(due)
        self._next_look_at = self._slurm.monotonic() + 1.0

    def _cancel_jobs(self, jobs: list[JobSnapshot]) -> None:
        with suppress(SlurmUnreachable):  # asked again as long as an answer shows them
            self._slurm.cancel(jobs)

    # -- the clock

    def now(self) -> float:
        return self._slurm.now()

    def _is_to_come(self, moment: float) -> bool:
        return self._slurm.monotonic() < moment

    def wait(self, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        """Nothing is held: jobs outlive their driver."""


def longest_job_s(time_limit_s: float, settings: SlurmSettings) -> float:
    """Seconds for which a job of this limit may hold its nodes at most on a cluster with these settings."""
    minutes = max(1, -(-time_limit_s // 60))
    over_time_s = min(settings.over_time_limit_s, _NEVER_ENDED_S)
    return minutes * 60 + over_time_s + CHECK_INTERVAL_S + settings.kill_wait_s


def _age(job: JobSnapshot) -> tuple[float, int]:
    """What sorts jobs from the oldest to the youngest."""
    digits = "".join(c for c in job.job_id if c.isdigit())
    return (job.submitted_at or 0.0, int(digits or 0))
