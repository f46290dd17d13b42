"""A Slurm cluster on a simulated clock: nodes, queue, controller and accounting; each goes wrong when it is told to.

What it does, and the words it says, were found by running Slurm 22.05. Nothing happens but in `advance`, in
`advance_to_next_event` and in what a caller asks for. Times are UTC seconds since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from slurm.fake.accounting import FakeAccounting
from slurm.fake.jobs import FakeJob, JobEnding, JobPlan, Run, StartedJob, natural_ending
from slurm.fake.placement import Allocation, FakeNode, schedule
from slurm.fake.usage import FakeUsage
from slurm.interface import SlurmSettings
from slurm.job_state import JobState
from slurm.request import JobRequest
from slurm.script import NEXT_RUN

FAKE_SETTINGS = SlurmSettings("fake", "22.05.8", has_accounting=True)

SRUN_TERMINATED, SRUN_GAVE_UP = 143, 0
"""What the script that is nothing but srun leaves when its job is killed: by SIGTERM, or by SIGKILL after it."""

_LAST_WORDS = {
    JobState.TIMEOUT: " DUE TO TIME LIMIT",
    JobState.CANCELLED: "",
    JobState.PREEMPTED: " DUE TO PREEMPTION",
    JobState.NODE_FAIL: " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
    JobState.REQUEUED: " DUE TO JOB REQUEUE",
}


class FakeCluster:
    """`on_start` is called when a job starts and says how it will go; without one, jobs run until they are ended.
    Of the cluster it may use nothing but `at`.

    Fields that tests may set at any time:

    - `clock_ahead_s`: the cluster's clock is this far ahead of the simulated one; changing it makes that clock jump.
    - `schedule_s`: from a submission to the first look at it.
    - `limit_check_s`: how often time limits are looked at; with 60 a job outlives its limit by up to a minute.
    - `requeue_wait_s`: how long a job that was put back waits before it may start again.
    - `accounting.lag_s`: from a change to its row in accounting.
    - `purges_at_once`: ended jobs are forgotten the moment they have ended.
    - `next_id`: the next job's id; set back, ids of the past are given out again.

    `usage` is what really ran, `unavailable` the nodes that take no jobs.
    """

    def __init__(
        self,
        nodes: Sequence[FakeNode],
        on_start: Callable[[StartedJob], JobPlan] = lambda job: JobPlan(),
        settings: SlurmSettings = FAKE_SETTINGS,
        start_at: float = 1_800_000_000.0,
        partitions: Sequence[str] = ("main",),
    ):
        self.nodes = {node.name: node for node in nodes}
        self.on_start = on_start
        self.settings = settings
        self.partitions = tuple(partitions)
        self.clock_ahead_s = 0.0
        self.schedule_s = 1.0
        self.limit_check_s = 60.0
        self.requeue_wait_s = 120.0
        self.purges_at_once = False
        self.next_id = 1
        self.accounting = FakeAccounting()
        self.usage = FakeUsage()
        self._time = self._origin = start_at
        self._known: dict[str, FakeJob] = {}
        self._runs: list[Run] = []
        self._actions: list[tuple[float, Callable[[], object]]] = []
        self.unavailable: set[str] = set()
        self._down_until = self._hung_until = start_at

    # -- the clock

    @property
    def time(self) -> float:
        """The simulated time, which no skew touches."""
        return self._time

    @property
    def cluster_time(self) -> float:
        """The time by the cluster's clock."""
        return self._time + self.clock_ahead_s

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything that falls into it happen in its order."""
        target = self._time + seconds
        while (moment := self._next_moment()) <= target:
            self._time = max(self._time, moment)
            self._settle()
        self._time = target
        self._settle()

    def advance_to_next_event(self, at_most: float) -> float:
        """Go straight to the next thing that happens, by `at_most` seconds; returns the seconds that passed."""
        before = self._time
        self.advance(min(at_most, max(0.0, self._next_moment() - before)))
        return self._time - before

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Do `action` at this moment of the simulated time."""
        self._actions.append((moment, action))

    # -- what users and schedulers do

    def jobs(self) -> list[FakeJob]:
        """What the controller remembers, in the order of submission."""
        self._settle()
        return list(self._known.values())

    def job(self, job_id: str) -> FakeJob:
        """The record of an id; KeyError when the controller does not know it."""
        self._settle()
        return self._known[job_id]

    def accept(self, user: str, request: JobRequest, job_id: str | None = None) -> FakeJob:
        """Put a job into the queue, whoever's it is; with `job_id`, under an id of its own."""
        while job_id is None or job_id in self._known:
            job_id, self.next_id = str(self.next_id), self.next_id + 1
        job = FakeJob(job_id, user, request, self._stamp(), self._time, begins=self._time + self.schedule_s)
        self._known[job_id] = job
        self.accounting.open(job)
        self.accounting.note(job, self._time)
        self._settle()
        return job

    def refuse(self, user: str, request: JobRequest) -> None:
        """What a submission leaves that no node can ever satisfy: a job that failed and never was."""
        job = self.accept(user, request)
        job.ending = JobEnding(JobState.FAILED, "BadConstraints", exit_code=1)
        job.ended_at = self._stamp()
        self._release(job)

    def cancel(self, job_id: str) -> None:
        """scancel: a job that waits is gone at once, one that runs gets SIGTERM and, KillWait later, SIGKILL."""
        job = self._known[job_id]
        if job.state.waits:
            job.ending = JobEnding(JobState.CANCELLED, job.reason)
            job.ended_at = self._stamp()
            self._release(job)
        elif job.state is JobState.RUNNING:
            self._kill(job, JobEnding(JobState.CANCELLED))
        self._settle()

    # -- what goes wrong with jobs

    def requeue(self, job_id: str, processes_live_s: float = 0.0) -> None:
        """An administrator puts a running job back: same id, new submit time, started again `requeue_wait_s` later.

        With `processes_live_s` its first processes go on for that long: two copies may run.
        """
        self._put_back(job_id, JobState.REQUEUED, processes_live_s=processes_live_s)

    def hold(self, job_id: str, reason: str = "JobHeldUser") -> None:
        """A job is held until `release`; one that runs is put back first (`job requeued in held state`)."""
        job = self.job(job_id)
        if job.state.waits:
            job.held, job.reason = True, reason
        else:
            self._put_back(job_id, JobState.REQUEUED, hold="job requeued in held state")

    def release(self, job_id: str) -> None:
        """A held job may start again."""
        self._known[job_id].held = False
        self._settle()

    def preempt(self, job_id: str, requeue: bool = False) -> None:
        """A job of higher priority takes the nodes: PREEMPTED, or put back where the cluster does that."""
        if requeue:
            self._put_back(job_id, JobState.PREEMPTED)
        else:
            self._kill(self.job(job_id), JobEnding(JobState.PREEMPTED))
            self._settle()

    def purge(self, job_id: str) -> None:
        """The controller forgets a job that has ended, before MinJobAge."""
        del self._known[job_id]

    def crash(self, loses_s: float) -> None:
        """The controller is killed and starts again from what it saved `loses_s` ago: jobs submitted since are lost,
        their processes killed, their ids given out again. Accounting keeps the rows it had."""
        lost = [job for job in self._known.values() if job.submitted > self._time - loses_s]
        self.next_id = min([self.next_id, *(int(job.job_id) for job in lost)])
        for job in lost:
            del self._known[job.job_id]
            if job.run:
                self._leave(job, 0.0)
        self._settle()

    # -- what goes wrong with nodes, controller and accounting

    def fail_node(self, name: str, processes_live_s: float = 0.0) -> None:
        """A node stops answering: its jobs end as NODE_FAIL, yet their processes may live on for a while."""
        self.unavailable.add(name)
        for job in [job for job in self._known.values() if name in job.nodes and job.run and not job.state.is_ended]:
            code = 15 if len(job.nodes) > 1 else 0
            self._log_cancellation(job, JobState.NODE_FAIL)
            job.ending = JobEnding(JobState.NODE_FAIL, "NodeDown", signal=code)
            job.ended_at = self._stamp()
            self._leave(job, processes_live_s)
            self._release(job)
        self._settle()

    def drain_node(self, name: str) -> None:
        """A node takes no new jobs; those it has go on."""
        self.unavailable.add(name)

    def resume_node(self, name: str) -> None:
        """A node that failed or was drained takes jobs again."""
        self.unavailable.discard(name)
        self._settle()

    def controller_down(self, for_s: float) -> None:
        """Nobody answers, and nothing is scheduled, ended or noticed; jobs go on."""
        self._down_until = self._time + for_s

    def controller_hung(self, for_s: float) -> None:
        """The same, but the controller takes requests and answers none: a submission is carried out afterwards."""
        self._hung_until = self._time + for_s

    def accounting_down(self, for_s: float, lies_s: float = 0.0) -> None:
        """Accounting does not answer, and hears what happened only afterwards. For `lies_s` more it then calls jobs
        that ended meanwhile FAILED, without an exit code and without a time."""
        self.accounting.go_down(self._time + for_s, lies_s)

    @property
    def is_down(self) -> bool:
        return self._time < self._down_until

    @property
    def is_hung(self) -> bool:
        return self._time < self._hung_until

    @property
    def controller_back(self) -> float:
        """When the controller works again, if it does not now."""
        return max(self._down_until, self._hung_until)

    # -- time passes

    def _next_moment(self) -> float:
        known = self._known.values()
        controller = [job.begins for job in known if job.state.waits and not job.held and job.begins > self._time]
        controller += [self._limit_moment(job) for job in known if job.state is JobState.RUNNING]
        controller += [job.clean for job in known if job.state is JobState.COMPLETING and job.run and job.run.over]
        moments = [moment for moment, _ in self._actions] + [run.ends for run in self._runs]
        moments += [max(moment, self.controller_back) for moment in controller]
        if self._time < self.controller_back:
            moments.append(self.controller_back)
        return min(moments, default=math.inf)

    def _limit_moment(self, job: FakeJob) -> float:
        """When the controller next looks at time limits and finds this job beyond its own."""
        assert job.run
        over_time_s = self.settings.over_time_s(job.request.options.partition)
        earliest = max(job.run.started + job.limit_s + over_time_s, self.controller_back)
        if math.isinf(earliest):
            return earliest
        return self._origin + math.ceil((earliest - self._origin) / self.limit_check_s) * self.limit_check_s

    def _settle(self) -> None:
        """Let everything happen that is due, until nothing more follows from it."""
        while self._act() or self._end_processes() or (self._time >= self.controller_back and self._control()):
            pass
        self._forget_old()
        self.usage.look(self._known.values(), self._runs)

    def _act(self) -> bool:
        due = sorted((entry for entry in self._actions if entry[0] <= self._time), key=lambda entry: entry[0])
        self._actions = [entry for entry in self._actions if entry not in due]  # an action may lead back to here
        for _, action in due:
            action()
        return bool(due)

    def _end_processes(self) -> bool:
        due = [run for run in self._runs if run.ends <= self._time]
        for run in due:
            self._runs.remove(run)
            run.over = True
            if not run.killed:
                run.plan.on_end()
        return bool(due)

    def _control(self) -> bool:
        return self._hear_of_ends() or self._enforce_limits() or self._clean_up() or self._start_jobs()

    def _hear_of_ends(self) -> bool:
        ended = [job for job in self._known.values() if job.state is JobState.RUNNING and job.run and job.run.over]
        for job in ended:
            assert job.run
            job.ending = natural_ending(job.run.plan)
            self._begin_completing(job)
        return bool(ended)

    def _enforce_limits(self) -> bool:
        running = [job for job in self._known.values() if job.state is JobState.RUNNING]
        late = [job for job in running if self._limit_moment(job) <= self._time]
        for job in late:
            self._kill(job, JobEnding(JobState.TIMEOUT, "TimeLimit"))
        return bool(late)

    def _clean_up(self) -> bool:
        completing = [job for job in self._known.values() if job.state is JobState.COMPLETING]
        done = [job for job in completing if job.run and job.run.over and job.clean <= self._time]
        for job in done:
            self._release(job)
        return bool(done)

    def _start_jobs(self) -> bool:
        known = self._known.values()
        waiting = [job for job in known if job.state.waits and not job.held and job.begins <= self._time]
        held = [Allocation(job.nodes, job.request, job.run.started + job.limit_s) for job in known if job.run]
        free = [node for name, node in self.nodes.items() if name not in self.unavailable]
        wanted = [(job.request, self._time + job.limit_s) for job in waiting]
        placements = schedule(wanted, free, held)
        for job, placement in zip(waiting, placements, strict=True):
            if placement.nodes:
                self._start(job, placement.nodes)
            else:
                job.reason = placement.reason or self._unavailable_reason()
        return any(placement.nodes for placement in placements)

    def _unavailable_reason(self) -> str:
        return f"ReqNodeNotAvail, UnavailableNodes:{','.join(sorted(self.unavailable))}"

    def _start(self, job: FakeJob, nodes: tuple[str, ...]) -> None:
        _append_to_log(job, f"{NEXT_RUN}{job.restarts}\n" if job.restarts else "")
        request = job.request
        started = StartedJob(job.job_id, request.name, job.user, request.directory, nodes, job.restarts, self._time)
        plan = self.on_start(started)
        ends = math.inf if plan.duration_s is None else self._time + plan.duration_s
        job.run = Run(job, plan, nodes, self._time, ends)
        job.state, job.reason, job.nodes, job.started_at = JobState.RUNNING, None, nodes, self._stamp()
        self._runs.append(job.run)
        self.accounting.note(job, self._time)

    # -- jobs end

    def _kill(self, job: FakeJob, ending: JobEnding) -> None:
        """SIGTERM, and SIGKILL after KillWait. Accounting calls the job ended from SIGTERM on."""
        run = job.run
        if job.state is not JobState.RUNNING or run is None:
            return
        last = self._time + (0.0 if run.plan.heeds_term else self.settings.kill_wait_s)
        if last < run.ends:
            run.ends, run.killed = last, True
        self._log_cancellation(job, ending.state)
        job.ending = replace(ending, exit_code=SRUN_TERMINATED if run.plan.heeds_term else SRUN_GAVE_UP)
        self._begin_completing(job)

    def _begin_completing(self, job: FakeJob) -> None:
        assert job.run
        assert job.ending
        job.state, job.reason, job.ended_at = JobState.COMPLETING, job.ending.reason, self._stamp()
        job.clean = self._time + job.run.plan.completing_s
        self.accounting.note(job, self._time)
        if job.ending.requeue:  # counted, and called begun anew, while the run before it is cleaned up (Slurm 22.05)
            job.restarts, job.started_at = job.restarts + 1, self._stamp()

    def _release(self, job: FakeJob) -> None:
        """The nodes are free again, and the job is what its ending says."""
        ending, run = job.ending, job.run
        assert ending
        if run:
            self.usage.add(run, self._time)
        job.run = job.ending = None
        if ending.requeue:
            self._queue_again(job, ending)
            return
        job.state, job.reason = ending.state, ending.reason
        job.exit_code, job.signal = ending.exit_code, ending.signal
        job.released = self._time
        if run is None:
            self.accounting.note(job, self._time)
        self._forget_old()

    def _queue_again(self, job: FakeJob, ending: JobEnding) -> None:
        job.state, job.reason, job.held = JobState.PENDING, ending.hold or "BeginTime", ending.hold is not None
        job.nodes, job.started_at, job.ended_at = (), None, None
        job.submitted_at, job.begins = self._stamp(), self._time + self.requeue_wait_s
        self.accounting.note(job, self._time)

    def _put_back(
        self, job_id: str, accounted_as: JobState, hold: str | None = None, processes_live_s: float = 0.0
    ) -> None:
        job = self.job(job_id)
        ending = JobEnding(accounted_as, requeue=True, hold=hold)
        if processes_live_s and job.state is JobState.RUNNING:
            job.ending, job.ended_at = ending, self._stamp()
            self.accounting.note(job, self._time)
            job.restarts += 1
            self._leave(job, processes_live_s)
            self._release(job)
        else:
            self._kill(job, ending)
        self._settle()

    def _leave(self, job: FakeJob, processes_live_s: float) -> None:
        """Slurm no longer knows of the job's processes, which live on for so long at most."""
        run = job.run
        assert run
        self.usage.add(run, self._time)
        last = self._time + processes_live_s
        if last < run.ends:
            run.ends, run.killed = last, True
        job.run = None

    def _log_cancellation(self, job: FakeJob, state: JobState) -> None:
        at = datetime.fromtimestamp(self._stamp(), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
        node = job.nodes[0]
        line = f"slurmstepd-{node}: error: *** JOB {job.job_id} ON {node} CANCELLED AT {at}{_LAST_WORDS[state]} ***\n"
        _append_to_log(job, f"{line}srun: error: {node}: task 0: Terminated\n")

    def _forget_old(self) -> None:
        """MinJobAge 0 keeps every record (slurm.conf(5))."""
        age_s = 0.0 if self.purges_at_once else self.settings.min_job_age_s or math.inf
        ended = [job for job in self._known.values() if job.released is not None]
        for job in ended:
            if job.released is not None and self._time >= job.released + age_s:
                del self._known[job.job_id]

    def _stamp(self) -> float:
        """Slurm knows whole seconds."""
        return float(math.floor(self.cluster_time))


def _append_to_log(job: FakeJob, text: str) -> None:
    """job.log appears when the job starts, and takes the script's words and the last ones of slurmd and srun."""
    if job.request.directory.is_dir():
        with job.request.log.open("a") as log:
            log.write(text)
