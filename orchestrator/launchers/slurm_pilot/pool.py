"""Pilots of a search: batch jobs that hold nodes for steps, each submitted exactly once, as an attempt's job is.

A pilot is in its folder (pilot.json) and in the search's record before it is submitted, and its job has its own name.
So the next driver finds all pilots, and no nodes are held that were not reserved.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.launchers.slurm.handover import HandoverFile
from orchestrator.launchers.slurm.job_files import may_exist, write_job_files
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.queries import SlurmQueries
from orchestrator.launchers.slurm.submissions import Submissions
from orchestrator.launchers.slurm_pilot.pilot import (
    Pilot,
    pilot_job,
    pilot_request,
    read_pilot,
    read_pilot_folder,
    startup_timeout_reason,
)
from orchestrator.launchers.slurm_pilot.sizing import (
    IDLE_S,
    STARTUP_S,
    PilotRules,
    RemainingWork,
    min_pilot_s,
    planned_pilot_s,
)
from orchestrator.launchers.timeouts import FOLDER_TIMEOUT_S, HangGuard
from slurm.interface import Slurm, SlurmUnreachable, SubmitStatus
from slurm.request import JobOptions, JobRequest, limit_min, max_job_s
from slurm.script import render_pilot_script
from trials.attempt_result import LaunchStatus, Liveness
from trials.files.folders import SearchFolder, write_json
from trials.files.text import plural
from trials.pilot.files import PILOT_SCHEMA, PilotFolder, PilotPlan, write

_log = logging.getLogger(__name__)


SILENT_S = 60.0
"""An agent without a heartbeat for so long counts as unresponsive."""

CLOSE_WAIT_S = 5.0
"""Time for the agent of a draining pilot to end before the pilot is cancelled."""

_RELEASE_WAIT_S = 60.0
"""After that a search ends although Slurm has not reported the end of its pilots."""

_HINT_S = 0.5

_NEVER_SUBMITTED = "it was never submitted"


class PilotPool:
    """Pilots of the one search whose folder was loaded; `pilots` are all of them, in order.

    `reserve` records a pilot, with its nodes and the most seconds for which they may be held, before its submission.
    """

    def __init__(
        self,
        slurm: Slurm,
        options: JobOptions,
        rules: PilotRules,
        queries: SlurmQueries,
        remaining_work: Callable[[], RemainingWork],
        reserve: Callable[[str, int, float], None],
        handover: HandoverFile,
    ):
        self.pilots: list[Pilot] = []
        self._slurm = slurm
        self._options = options
        self.rules = rules
        self._queries = queries
        self._remaining_work = remaining_work
        self._reserve = reserve
        self._search: SearchFolder | None = None
        self._releasing_since: float | None = None
        self._was_cancelled = self._has_given_up = False
        self._folders = HangGuard(FOLDER_TIMEOUT_S)
        write = partial(write_job_files, render=render_pilot_script)
        self._submissions = Submissions(slurm, options, queries, handover, pilot_job, write)
        self._monitor = JobMonitor(slurm, queries, self._submissions)

    # -- those of an earlier driver

    def load(self, search: SearchFolder) -> bool:
        """Load the search's pilots from its folder, once; False after that. Raises OSError."""
        if self._search is not None:
            return False
        paths = sorted(path for path in search.pilots.glob("p*") if path.is_dir()) if search.pilots.exists() else []
        recorded = self._remaining_work().pilots
        found = (read_pilot(search, PilotFolder(path), recorded) for path in paths)
        pilots = [pilot for pilot in found if pilot is not None]
        for pilot in pilots:
            if pilot.is_ended:
                self._read_folder(pilot)
        self.pilots = pilots
        alive = [pilot for pilot in self.pilots if not pilot.is_ended]
        adopted = self._submissions.adopt({pilot.key: pilot_request(pilot) for pilot in alive})
        for pilot in alive:
            pilot.job_id = adopted.get(pilot.key)
            self._save_job_id(pilot)
            self._read_folder(pilot)
        self._search = search
        self.refresh()
        return True

    # -- watching

    def refresh(self) -> None:
        """Update all pilots from Slurm and from their folders."""
        if not self.pilots:
            return
        alive = [pilot for pilot in self.pilots if not pilot.is_ended]
        statuses = self._monitor.poll([pilot.key for pilot in alive if pilot.job_id is not None])
        for pilot in alive:
            self._find_job_id(pilot)
            if pilot.is_draining:
                self._settle_submission(pilot)
            pilot.status = statuses.get(pilot.key, pilot.status)
            if pilot.status.started and pilot.status.nodes:
                pilot.nodes, pilot.started_at = pilot.status.nodes, pilot.status.started_at
            with suppress(OSError):
                self._read_folder(pilot)
                self._cancel_unstarted(pilot)
                self._end_requeued(pilot)
            self._cancel_again(pilot)
            self._poll_on_hint(pilot)
            if pilot.is_ended:
                self._record_end(pilot)

    def _find_job_id(self, pilot: Pilot) -> None:
        """Set the id of a pilot whose submission was not answered, once Slurm lists it."""
        tracked = self._submissions.tracked.get(pilot.key)
        job = None if tracked is None or pilot.job_id is not None else self._submissions.job_of(tracked)
        if job is not None:
            pilot.job_id = job.job_id
            with suppress(OSError):
                self._save_job_id(pilot)

    def _read_folder(self, pilot: Pilot) -> None:
        """Update from the pilot's folder. Raises OSError where it cannot be read, or not in time."""
        step_files, heartbeat, is_closed = self._folders.call(
            str(pilot.folder.path), lambda: read_pilot_folder(pilot.folder)
        )
        pilot.step_files = step_files
        pilot.is_draining = pilot.is_draining or is_closed
        self._warn_of_plain_starts(pilot)
        if heartbeat is not None and heartbeat != pilot.heartbeat:
            pilot.heartbeat, pilot.heartbeat_at = heartbeat, self._slurm.monotonic()

    def _warn_of_plain_starts(self, pilot: Pilot) -> None:
        """Tell once why the pilot's ranks are not forked."""
        if pilot.plain_starts is not None:
            return
        with suppress(ValueError):
            pilot.plain_starts = self._folders.call(str(pilot.folder.path), pilot.folder.read_plain_starts)
        if pilot.plain_starts is not None:
            _log.warning(f"ranks in pilot {pilot.folder.name} start plain: {pilot.plain_starts.reason}")

    def _poll_on_hint(self, pilot: Pilot) -> None:
        """Query Slurm soon, once each, when the folder shows that the job has started or is about to end."""
        hints = (pilot.heartbeat_at is not None) + (pilot.is_draining and not pilot.live_steps)
        if hints > pilot.hints:
            pilot.hints = hints
            self._queries.refresh_in(_HINT_S)

    def _cancel_unstarted(self, pilot: Pilot) -> None:
        """Cancel a pilot whose agent hangs at its start: it would hold its nodes until its limit."""
        is_awaited = (
            bool(pilot.nodes) and pilot.heartbeat_at is None and not (pilot.is_ended or pilot.startup_timed_out)
        )
        if pilot.started_at is None or not is_awaited or self._slurm.now() - pilot.started_at <= STARTUP_S:
            return
        if not self.cancel([pilot]):  # else it is retried at the next refresh
            pilot.startup_timed_out = True
            _log.warning(f"pilot {pilot.folder.name} is cancelled: {startup_timeout_reason(pilot)}")

    def _end_requeued(self, pilot: Pilot) -> None:
        """Cancel a pilot that was put back into the queue: its steps are gone, and a run of its own may follow for
        which nothing is reserved."""
        if pilot.is_ended or pilot.status.restart <= pilot.ended_restart:
            return
        pilot.is_draining = True
        pilot.folder.drain.touch()
        if not self.cancel([pilot]):  # else it is retried at the next refresh
            pilot.ended_restart = pilot.status.restart

    def _cancel_again(self, pilot: Pilot) -> None:
        """Cancel a pilot again that was to end while it waited, as Slurm may not have heard, once in an interval."""
        is_waiting = pilot.is_draining and pilot.job_id is not None and not (pilot.nodes or pilot.is_ended)
        if is_waiting and self._slurm.monotonic() - pilot.cancelled_at >= self._queries.interval_s:
            self.cancel([pilot])

    def _record_end(self, pilot: Pilot) -> None:
        pilot.status = pilot.status_with_start
        with suppress(OSError):
            write_json(pilot.folder.job_end, {"schema": PILOT_SCHEMA, **asdict(pilot.status)})
        if pilot.status.failed and not (pilot.is_draining or pilot.startup_timed_out):
            _log.info(f"pilot {pilot.folder.name} has ended: {pilot.status.detail}")

    def is_unresponsive(self, pilot: Pilot) -> bool:
        """True if its agent has not had a heartbeat for long, although its job runs."""
        return pilot.heartbeat_at is None or self._slurm.monotonic() - pilot.heartbeat_at > SILENT_S

    def is_closing(self, pilot: Pilot) -> bool:
        """True if its job ends by itself, since its agent has; the next run of a requeued one has none."""
        return pilot.status.restart == 0 and may_exist(pilot.folder.closed)

    # -- the next one

    def submit(self, request: LaunchRequest) -> Pilot:
        """Return a pilot in which this attempt can run; raises as `Launcher.launch`. Continues one whose submission is
        recorded and not confirmed."""
        pilot = next((p for p in self.pilots if p.job_id is None and p.may_accept), None) or self._create(request)
        plan = pilot.plan
        self._reserve(pilot.folder.name, plan.num_nodes, self._reserved_s(plan.time_limit_s))
        try:
            pilot.job_id = self._submissions.launch(pilot_request(pilot, request.is_first))
        except LaunchRefused:
            self._end_unsubmitted(pilot)
            raise
        self._save_job_id(pilot)
        size = f"{plural(plan.num_nodes, 'node')} for {plural(limit_min(plan.time_limit_s), 'minute')}"
        _log.info(f"pilot {pilot.folder.name} is Slurm job {pilot.job_id}: {size}")
        return pilot

    def _create(self, request: LaunchRequest) -> Pilot:
        assert self._search is not None, "opened before anything is launched"
        names = {*(pilot.folder.name for pilot in self.pilots), *self._remaining_work().pilots}
        name = f"p{1 + max((int(name[1:]) for name in names), default=0):04d}"
        folder, rules = PilotFolder(self._search.pilots / name), self.rules
        plan = PilotPlan(
            num_nodes=rules.num_nodes,
            tasks_per_node=rules.tasks_per_node,
            time_limit_s=self._time_limit_s(request, folder, rules),
            python=self._python(request),
            code=request.code,
            idle_s=IDLE_S,
            submitted_at=self._slurm.now(),
            exclude=request.exclude,
        )
        folder.steps.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(folder.plan, plan)
        pilot = Pilot(folder, plan, f"{self._search.search_id}.{name}")
        self.pilots.append(pilot)
        self._releasing_since, self._was_cancelled, self._has_given_up = None, False, False
        return pilot

    def _time_limit_s(self, request: LaunchRequest, folder: PilotFolder, rules: PilotRules) -> float:
        """Return the planned time, or the longest half, quarter and so on of it that Slurm would accept.

        Raises LaunchPostponed while the budget has no room for it.
        """
        work, ending_s = self._remaining_work(), self._queries.ending_s(self._options.partition)
        least, wanted = min_pilot_s(request.time_limit_s), planned_pilot_s(rules, work, request.time_limit_s, ending_s)
        if wanted is None:
            raise self._postpone()
        while wanted > least and not self._would_run(folder, wanted, rules):
            wanted = max(least, wanted / 2)
        return wanted

    def _postpone(self) -> LaunchPostponed:
        """Return what the next pilot waits for; cancel again a drained one of which Slurm may not have heard."""
        ending = [pilot for pilot in self.pilots if not (pilot.is_ended or pilot.may_accept)]
        for pilot in ending:
            if not pilot.nodes:
                self.cancel([pilot])
        names = ", ".join(pilot.folder.name for pilot in ending)
        return LaunchPostponed(f"waiting for pilot {names} to end" if names else "the budget has no room for a pilot")

    def _reserved_s(self, time_limit_s: float) -> float:
        """Return the most seconds for which a pilot of this limit may hold its nodes. Raises LaunchPostponed."""
        return max_job_s(time_limit_s, self._queries.ending_s(self._options.partition))

    def reservation_node_s(self, time_limit_s: float) -> float:
        """Return what is reserved for a pilot of this limit. Raises LaunchPostponed."""
        return self.rules.num_nodes * self._reserved_s(time_limit_s)

    def _would_run(self, folder: PilotFolder, time_limit_s: float, rules: PilotRules) -> bool:
        job = JobRequest(
            name=folder.name,
            directory=folder.path.absolute(),
            num_nodes=rules.num_nodes,
            tasks_per_node=rules.tasks_per_node,
            time_limit_s=time_limit_s,
            argv=("true",),
            options=self._options,
        )
        try:
            return self._slurm.test(job).status is not SubmitStatus.REFUSED
        except SlurmUnreachable as error:
            raise LaunchPostponed(f"no pilot can be submitted at present: {error}") from error

    def _python(self, request: LaunchRequest) -> str:
        """Return the agent's interpreter, which runs outside of a container, where the site's Python may be too old."""
        return request.python if self._options.container is None else sys.executable

    def _save_job_id(self, pilot: Pilot) -> None:
        if pilot.job_id is not None and not pilot.folder.job.exists():
            write_json(pilot.folder.job, {"schema": PILOT_SCHEMA, "job_id": pilot.job_id})

    def ended(self) -> dict[str, LaunchStatus]:
        """Return the status of the ended pilots by name; after the wait in `release` also of those whose nodes are
        still cleaned up."""
        over = (p for p in self.pilots if p.is_ended or (self._has_given_up and p.status.is_metered))
        return {pilot.folder.name: pilot.status for pilot in over}

    # -- the end of one

    def drain(self, pilot: Pilot) -> set[str]:
        """Let it end after its last step; cancel one that has not started. Return ids of jobs that may be alive."""
        if pilot.is_ended:
            return set()
        pilot.is_draining = True
        with suppress(OSError):
            pilot.folder.drain.touch()
        return set() if pilot.nodes else self.cancel([pilot])

    def cancel_waiting(self, name: str) -> bool:
        """Cancel this pilot, as `Launcher.cancel_waiting_pilot`."""
        pilot = next((pilot for pilot in self.pilots if pilot.folder.name == name), None)
        if pilot is None or pilot.is_ended or pilot.nodes:
            return False
        if not pilot.is_draining:
            self.drain(pilot)
        return True

    def release(self, gives_up: bool) -> bool:
        """Release all pilots, as `Launcher.release`. A live agent ends within a second; other pilots are cancelled.

        Slurm is queried once more before it is given up.
        """
        now = self._slurm.monotonic()
        self._releasing_since = now if self._releasing_since is None else self._releasing_since
        waited_s = now - self._releasing_since
        if waited_s >= _RELEASE_WAIT_S:
            self._queries.refresh_in(0.0)
        self.refresh()
        for pilot in self.pilots:
            self._settle_submission(pilot)
        left = [pilot for pilot in self.pilots if not pilot.is_ended]
        for pilot in left:
            if not (pilot.is_draining and pilot.nodes):
                self.drain(pilot)
        if waited_s >= CLOSE_WAIT_S and not self._was_cancelled:
            self._was_cancelled = not self.cancel(pilot for pilot in left if not self.is_closing(pilot))
        self._has_given_up = gives_up and waited_s >= _RELEASE_WAIT_S
        return not left or self._has_given_up

    def _settle_submission(self, pilot: Pilot) -> None:
        """End a pilot that certainly was not submitted; find the id of one that was."""
        tracked = self._submissions.tracked.get(pilot.key)
        if pilot.is_ended or pilot.job_id is not None:
            return
        if tracked is not None and tracked.unconfirmed_since is not None:
            try:
                pilot.job_id = self._submissions.confirm(tracked)
            except LaunchPostponed:
                return
        if pilot.job_id is None:
            self._end_unsubmitted(pilot)

    def _end_unsubmitted(self, pilot: Pilot) -> None:
        pilot.status = LaunchStatus(Liveness.ENDED, detail=_NEVER_SUBMITTED)
        self._record_end(pilot)

    def cancel(self, pilots: Iterable[Pilot]) -> set[str]:
        """Cancel their jobs with all steps; return ids of those that may still be alive."""
        pilots = list(pilots)
        for pilot in pilots:
            pilot.cancelled_at = self._slurm.monotonic()
        tracked = [t for pilot in pilots if (t := self._submissions.tracked.get(pilot.key)) is not None]
        for one in tracked:
            one.cancelled = True
        if not all(self._submissions.jobs_of([one]) for one in tracked):  # perhaps submitted since the last answer
            self._queries.refresh(now=not self._queries.error_message)
        if self._queries.answer is None:
            return {one.job_id for one in tracked if one.job_id is not None}
        jobs = [job for job in self._submissions.jobs_of(tracked) if not job.state.is_ended]
        self._queries.refresh_in(_HINT_S)
        return self._submissions.cancel(jobs) if jobs else set()

    def may_be_submitted(self, pilot: Pilot) -> bool:
        """True while it is unknown whether it was submitted."""
        return pilot.job_id is None and not pilot.is_ended and self._queries.answer is None

    def save(self) -> None:
        """Save the state for the next driver."""
        self._submissions.save()
