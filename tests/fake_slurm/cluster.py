"""Simulated Slurm cluster on a simulated clock: nodes, queue, controller and accounting, with injected faults.

Behaviour and messages were observed on Slurm 22.05. State changes only in `advance`, in `advance_to_next_event` and in
methods called from outside. Times are UTC seconds since the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm.interface import SlurmSettings
from slurm.job_state import JobState
from slurm.request import JobRequest
from slurm.script import NEXT_RUN
from tests.fake_slurm.accounting import FakeAccounting
from tests.fake_slurm.jobs import FakeJob, JobEnding, JobPlan, Run, StartedJob, natural_ending
from tests.fake_slurm.placement import Allocation, FakeNode, schedule
from tests.fake_slurm.usage import FakeUsage

FAKE_SETTINGS = SlurmSettings("fake", "22.05.8", has_accounting=True)

SRUN_TERMINATED, SRUN_GAVE_UP = 143, 0
"""Exit codes of a batch script that is only srun, when its job is killed by SIGTERM, or by SIGKILL after it."""


class FakeCluster:
    """Cluster whose jobs run as `on_start` decides when they start; without it they run until they are ended.

    `on_start` may call only `at` of the cluster.

    Fields that tests may set at any time:

    - `clock_ahead_s`: offset of the cluster's clock from the simulated one; a change makes that clock jump.
    - `schedule_s`: delay from a submission to its first scheduling.
    - `limit_check_s`: interval of time limit checks; with 60 a job outlives its limit by up to a minute.
    - `requeue_wait_s`: delay before a requeued job may start again.
    - `accounting.lag_s`: delay from a change to its row in accounting.
    - `purges_at_once`: ended jobs are forgotten at once.
    - `next_id`: the next job's id; set it back to reuse ids.
    - `unmet`: dependencies that do not let a job start yet, with its reason.
    - `billing_per_node`: billing units of each node of a job; None: it does not tell.

    `usage` is what really ran, `unavailable` the nodes that accept no jobs.
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
        self.unmet: dict[str, str] = {}
        self.billing_per_node: float | None = None
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
        """Simulated time, unaffected by clock skew."""
        return self._time

    @property
    def cluster_time(self) -> float:
        """Time by the cluster's clock."""
        return self._time + self.clock_ahead_s

    def advance(self, seconds: float) -> None:
        """Let time pass and process all events in order."""
        target = self._time + seconds
        while (moment := self._next_moment()) <= target:
            self._time = max(self._time, moment)
            self._settle()
        self._time = target
        self._settle()

    def advance_to_next_event(self, at_most: float) -> float:
        """Advance to the next event, by `at_most` seconds; return the seconds that passed."""
        before = self._time
        self.advance(min(at_most, max(0.0, self._next_moment() - before)))
        return self._time - before

    def at(self, moment: float, action: Callable[[], object]) -> None:
        """Run `action` at this moment of the simulated time."""
        self._actions.append((moment, action))

    # -- users and scheduler

    def jobs(self) -> list[FakeJob]:
        """Return the jobs that the controller knows, in the order of submission."""
        self._settle()
        return list(self._known.values())

    def job(self, job_id: str) -> FakeJob:
        """Return the record of an id; KeyError when the controller does not know it."""
        self._settle()
        return self._known[job_id]

    def accept(self, user: str, request: JobRequest, job_id: str | None = None) -> FakeJob:
        """Put any user's job into the queue, under `job_id` if given."""
        while job_id is None or job_id in self._known:
            job_id, self.next_id = str(self.next_id), self.next_id + 1
        job = FakeJob(job_id, user, request, self._stamp(), self._time, begins=self._time + self.schedule_s)
        job.billing_per_node = self.billing_per_node
        self._known[job_id] = job
        self.accounting.open(job)
        self.accounting.note(job, self._time)
        self._settle()
        return job

    def refuse(self, user: str, request: JobRequest) -> None:
        """Leave the record of a submission that no node can ever run: a failed job that never existed."""
        job = self.accept(user, request)
        job.ending = JobEnding(JobState.FAILED, "BadConstraints", exit_code=1)
        job.ended_at = self._stamp()
        self._release(job)

    def cancel(self, job_id: str) -> None:
        """Cancel a job: a pending one is gone at once, a running one gets SIGTERM and, KillWait later, SIGKILL."""
        job = self._known[job_id]
        if job.state.waits:
            job.ending = JobEnding(JobState.CANCELLED, job.reason)
            job.ended_at = self._stamp()
            self._release(job)
        elif job.state is JobState.RUNNING:
            self._kill(job, JobEnding(JobState.CANCELLED))
        self._settle()

    # -- job faults

    def requeue(self, job_id: str, processes_live_s: float = 0.0) -> None:
        """Requeue a running job, as an administrator does: same id, new submit time, start `requeue_wait_s` later.

        With `processes_live_s` its first processes go on for that long: two copies may run.
        """
        self._put_back(job_id, JobState.REQUEUED, processes_live_s=processes_live_s)

    def hold(self, job_id: str, reason: str = "JobHeldUser") -> None:
        """Hold a job until `release`; a running one is requeued first (`job requeued in held state`)."""
        job = self.job(job_id)
        if job.state.waits:
            job.held, job.reason = True, reason
        else:
            self._put_back(job_id, JobState.REQUEUED, hold="job requeued in held state")

    def release(self, job_id: str) -> None:
        """Release a held job."""
        self._known[job_id].held = False
        self._settle()

    def preempt(self, job_id: str, requeue: bool = False) -> None:
        """Preempt a job: PREEMPTED, or requeued where the cluster does that."""
        if requeue:
            self._put_back(job_id, JobState.PREEMPTED)
        else:
            self._kill(self.job(job_id), JobEnding(JobState.PREEMPTED))
            self._settle()

    def purge(self, job_id: str) -> None:
        """Forget an ended job before MinJobAge."""
        del self._known[job_id]

    def crash(self, loses_s: float) -> None:
        """Kill the controller and restart it from its state of `loses_s` ago.

        Jobs submitted since are lost, their processes killed and their ids reused. Accounting keeps its rows.
        """
        lost = [job for job in self._known.values() if job.submitted > self._time - loses_s]
        self.next_id = min([self.next_id, *(int(job.job_id) for job in lost)])
        for job in lost:
            del self._known[job.job_id]
            if job.run:
                self._leave(job, 0.0)
        self._settle()

    # -- faults of nodes, controller and accounting

    def fail_node(self, name: str, processes_live_s: float = 0.0) -> None:
        """Fail a node: its jobs end as NODE_FAIL, yet their processes may live on for a while."""
        self.unavailable.add(name)
        for job in [job for job in self._known.values() if name in job.nodes and job.run and not job.state.is_ended]:
            code = 15 if len(job.nodes) > 1 else 0
            job.log_cancellation(JobState.NODE_FAIL, self._stamp())
            job.ending = JobEnding(JobState.NODE_FAIL, "NodeDown", signal=code)
            job.ended_at = self._stamp()
            self._leave(job, processes_live_s)
            self._release(job)
        self._settle()

    def drain_node(self, name: str) -> None:
        """Let a node accept no new jobs; its running ones go on."""
        self.unavailable.add(name)

    def resume_node(self, name: str) -> None:
        """Let a failed or drained node accept jobs again."""
        self.unavailable.discard(name)
        self._settle()

    def controller_down(self, for_s: float) -> None:
        """Stop the controller: no answers, no scheduling, no ends noticed; jobs go on."""
        self._down_until = self._time + for_s

    def controller_hung(self, for_s: float) -> None:
        """Hang the controller: as if down, but it receives requests, and submissions are carried out afterwards."""
        self._hung_until = self._time + for_s

    def accounting_down(self, for_s: float, wrong_for_s: float = 0.0) -> None:
        """Stop accounting; it records what happened only afterwards.

        For `wrong_for_s` more it reports jobs that ended meanwhile as FAILED, without exit code and end time.
        """
        self.accounting.go_down(self._time + for_s, wrong_for_s)

    @property
    def is_down(self) -> bool:
        return self._time < self._down_until

    @property
    def is_hung(self) -> bool:
        return self._time < self._hung_until

    @property
    def controller_back(self) -> float:
        """Time at which the controller works again."""
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
        """Return the time of the next limit check that finds this job beyond its limit."""
        assert job.run
        over_time_s = self.settings.over_time_s(job.request.options.partition)
        earliest = max(job.run.started + job.limit_s + over_time_s, self.controller_back)
        if math.isinf(earliest):
            return earliest
        return self._origin + math.ceil((earliest - self._origin) / self.limit_check_s) * self.limit_check_s

    def _settle(self) -> None:
        """Process everything that is due, until nothing more follows from it."""
        while self._act() or self._end_processes() or (self._time >= self.controller_back and self._control()):
            pass
        self._forget_old()
        self.usage.update(self._known.values(), self._runs)

    def _act(self) -> bool:
        due = sorted((entry for entry in self._actions if entry[0] <= self._time), key=lambda entry: entry[0])
        self._actions = [entry for entry in self._actions if entry not in due]  # an action may call this method again
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
        due = [job for job in known if job.state.waits and not job.held and job.begins <= self._time]
        for job in due:
            job.reason = self._unmet_reason(job) or job.reason
        waiting = [job for job in due if self._unmet_reason(job) is None]
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

    def _unmet_reason(self, job: FakeJob) -> str | None:
        return self.unmet.get(job.request.options.dependency or "") if job.request.is_first else None

    def _unavailable_reason(self) -> str:
        return f"ReqNodeNotAvail, UnavailableNodes:{','.join(sorted(self.unavailable))}"

    def _start(self, job: FakeJob, nodes: tuple[str, ...]) -> None:
        job.append_to_log(f"{NEXT_RUN}{job.restarts}\n" if job.restarts else "")
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
        """Send SIGTERM, and SIGKILL after KillWait. Accounting has the job ended from SIGTERM on."""
        run = job.run
        if job.state is not JobState.RUNNING or run is None:
            return
        last = self._time + (0.0 if run.plan.heeds_term else self.settings.kill_wait_s)
        if last < run.ends:
            run.ends, run.killed = last, True
        job.log_cancellation(ending.state, self._stamp())
        job.ending = replace(ending, exit_code=SRUN_TERMINATED if run.plan.heeds_term else SRUN_GAVE_UP)
        self._begin_completing(job)

    def _begin_completing(self, job: FakeJob) -> None:
        assert job.run
        assert job.ending
        job.state, job.reason, job.ended_at = JobState.COMPLETING, job.ending.reason, self._stamp()
        job.clean = self._time + job.run.plan.completing_s
        self.accounting.note(job, self._time)
        if job.ending.requeue:  # already counted and restarted while the previous run is cleaned up (Slurm 22.05)
            job.restarts, job.started_at = job.restarts + 1, self._stamp()

    def _release(self, job: FakeJob) -> None:
        """Free the nodes and set the job's final state."""
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
        """Forget the job's processes, which live on for at most so long."""
        run = job.run
        assert run
        self.usage.add(run, self._time)
        last = self._time + processes_live_s
        if last < run.ends:
            run.ends, run.killed = last, True
        job.run = None

    def _forget_old(self) -> None:
        """Forget jobs past MinJobAge; 0 keeps every record (slurm.conf(5))."""
        age_s = 0.0 if self.purges_at_once else self.settings.min_job_age_s or math.inf
        ended = [job for job in self._known.values() if job.released is not None]
        for job in ended:
            if job.released is not None and self._time >= job.released + age_s:
                del self._known[job.job_id]

    def _stamp(self) -> float:
        """Return the cluster's time in whole seconds, as Slurm records it."""
        return float(math.floor(self.cluster_time))
