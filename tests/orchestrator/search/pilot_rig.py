"""A search in pilots on a simulated Slurm: the agent is simulated, its files and its costs are real."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import LONGEST_PILOT_S, PilotRules, RemainingWork
from orchestrator.search.driver import Driver
from orchestrator.search.stopping import remaining_layouts
from slurm.fake.jobs import JobPlan, Run, StartedJob
from slurm.poll_backoff import PollBackoff
from tests.orchestrator.launchers.on_fake_slurm import POLL_S, asking, four_nodes
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import Rig
from tests.orchestrator.search.slurm_rig import SlurmRig, leave
from trials.files.folders import AttemptFolder, read_json
from trials.ledger.events import SearchRecord
from trials.pilot.agent import HEARTBEAT_S
from trials.pilot.cost_splitter import CostSplitter
from trials.pilot.files import PilotFolder, StepEnd, StepEndReason, StepFileKind, StepRequest, StepStart, write
from trials.trial import TrialSpec, TrialState

TURN_S = 1.0
PILOT_NODES = 2

LONGEST_SETTLED_S = 200.0
"""Seconds after a search until an unreleased pilot has found itself idle and ended."""


@dataclass
class RunningStep:
    """A step that the agent has started, and its script; `number` is the step's in the job."""

    request: StepRequest
    spec: TrialSpec
    script: Script
    began: float
    began_at: float
    number: str


class SimulatedAgent:
    """Simulated agent of one pilot, advanced in simulated seconds; mirrors trials/pilot/agent.py."""

    def __init__(self, rig: PilotRig, job: StartedJob):
        self.folder = PilotFolder(job.directory)
        plan = self.folder.read_plan()
        assert plan is not None, "the plan is there before the job is"
        self._rig, self._job, self._plan = rig, job, plan
        self._cluster = rig.cluster
        self._last_beat = -HEARTBEAT_S
        self._steps: dict[str, RunningStep] = {}
        self._num_begun = 0
        self._run: Run | None = None

    def serve(self) -> None:
        """Start with the job that runs now: the first cycle; the others follow by themselves."""
        self._run = self._cluster.job(self._job.job_id).run
        self._costs = CostSplitter(self._plan.num_nodes, self._cluster.time)
        self._began_at = self._cluster.cluster_time
        self._idle_since = self._cluster.time
        self._turn()

    def _turn(self) -> None:
        if self._run is None or self._run.over or self._run.killed:
            return
        self._beat()
        for name, seen in sorted(self.folder.step_files().items()):
            if StepFileKind.REQUESTED in seen and self.folder.take(name, StepFileKind.CLAIMED):
                seen.add(StepFileKind.CLAIMED)
            if StepFileKind.CLAIMED in seen and name not in self._steps and StepFileKind.ENDED not in seen:
                self._begin(name)
            if StepFileKind.CANCEL in seen and name in self._steps:
                self._end(name, StepEndReason.CANCELLED)
        for name, step in list(self._steps.items()):
            lasted_s = self._cluster.time - step.began
            if lasted_s >= step.request.time_limit_s:
                self._end(name, StepEndReason.TIME_LIMIT)
            elif lasted_s >= step.script.duration_s:
                leave(AttemptFolder(Path(step.request.directory)), step.spec, step.script, 0)
                self._end(name, StepEndReason.EXITED)
        if self._is_done:
            write(self.folder.closed, self._plan)
            self._run.ends = self._cluster.time
        else:
            self._cluster.at(self._cluster.time + TURN_S, self._turn)

    @property
    def _is_done(self) -> bool:
        is_idle = self._cluster.time - self._idle_since >= self._plan.idle_s
        return not self._steps and (is_idle or self.folder.drain.exists())

    def _beat(self) -> None:
        now = self._cluster.time
        if now - self._last_beat >= HEARTBEAT_S:
            self.folder.heartbeat.touch()
            os.utime(self.folder.heartbeat, (now, now))
            self._last_beat = now

    def _begin(self, name: str) -> None:
        request = self.folder.request(name, StepFileKind.CLAIMED)
        if not self._num_begun and request.pilot_started_at is not None:
            self._costs.add_debt(self._plan.num_nodes * max(0.0, self._began_at - request.pilot_started_at))
        self._check_begun(name, request)
        data = read_json(AttemptFolder(Path(request.directory)).spec)
        assert data is not None, "the spec is there before the step is asked for"
        spec, now = TrialSpec.from_json(data), self._cluster.time
        number, self._num_begun = str(self._num_begun), self._num_begun + 1
        self._costs.start(name, request.num_nodes, now)
        started_at = self._cluster.cluster_time
        self._steps[name] = RunningStep(request, spec, self._rig.script(spec, 0), now, started_at, number)
        self._idle_since = now
        write(self.folder.step_file(name, StepFileKind.STARTED), StepStart(started_at, number))

    def _check_begun(self, name: str, request: StepRequest) -> None:
        """Check that each step is started once, on nodes of this pilot that no other step uses."""
        assert name not in self._rig.begun, f"{name} is begun twice"
        self._rig.begun.add(name)
        busy = {node for step in self._steps.values() for node in step.request.nodes}
        assert not busy.intersection(request.nodes), f"{name} shares {request.nodes}"
        assert set(request.nodes) <= set(self._job.nodes), f"{name} is elsewhere"

    def _end(self, name: str, reason: StepEndReason) -> None:
        step, now = self._steps.pop(name), self._cluster.time
        exit_code = 0 if step.script.reason is None else 1
        ended_at, node_s = self._cluster.cluster_time, self._costs.end(name, now)
        end = StepEnd(reason, step.began_at, ended_at, exit_code, 0, node_s, step.number)
        write(self.folder.step_file(name, StepFileKind.ENDED), end)
        self._idle_since = now


@dataclass
class PilotRig(SlurmRig):
    """Pilots of PILOT_NODES, for at most `longest_s` where a trial needs no more.

    An agent starts `startup_s` after its job, or never (None).
    """

    startup_s: float | None = 3.0
    longest_s: float = LONGEST_PILOT_S
    begun: set[str] = field(default_factory=set)

    def open_driver(self) -> Driver:
        rules, handover = (
            PilotRules(PILOT_NODES, 4, self.longest_s),
            self.path / "runs" / "rig-aaaaaa" / "launcher.json",
        )
        self.launcher = SlurmPilotLauncher(  # type: ignore[assignment]
            self.slurm,
            self.options,
            rules,
            PollBackoff(POLL_S),
            asking(self.slurm),
            lambda: self._work_left(driver.search),
            self.cluster.advance,
            handover,
        )
        driver = Rig.open_driver(self)
        return driver

    def _work_left(self, search: SearchRecord) -> RemainingWork:
        budget = self.limits.budget_node_hours
        left = None if budget is None else max(0.0, budget - search.node_hours_used)
        attempts = max(1, remaining_layouts(search.num_layouts, self.limits) + len(search.in_flight) + 2)
        return RemainingWork(attempts, self.limits.parallel_trials, left, booked=search.pilots)

    def _start(self, job: StartedJob) -> JobPlan:
        if job.user != self.slurm.user:
            return JobPlan()
        agent = SimulatedAgent(self, job)
        if agent.folder.heartbeat.exists():  # put back into the queue: its steps are gone
            return JobPlan(0.5, exit_code=1)
        if self.startup_s is not None:
            self.cluster.at(self.cluster.time + self.startup_s, agent.serve)
        return JobPlan()

    # -- what must hold

    def check_pilots(self, search: SearchRecord, slack_s: float = 0.0) -> None:
        """Check I1, I2, I4 and I11 of an ended search.

        Nothing is left or was there twice, everything that Slurm charged is booked and within the budget, and each step
        has an id of its own. Slurm reports whole seconds: up to `slack_s` of each node of a pilot may be missing.
        """
        self.launcher.close()
        self.cluster.advance(LONGEST_SETTLED_S)
        jobs = [job for job in self.cluster.jobs() if job.user == self.slurm.user]
        attempts = [attempt for trial in search.trials for attempt in trial.attempts]
        assert search.state.is_ended
        assert not [job for job in jobs if not job.state.is_ended]
        assert len({(t.layout.key, t.kind) for t in search.trials}) == len(search.trials)
        names = {job.request.name for job in jobs}
        assert all(self.slurm.most_alive(name) <= 1 for name in names)
        steps = [a.job_id for a in attempts if a.job_id is not None and "." in a.job_id]
        assert len(steps) == len(set(steps))
        assert {a.job_id for a in attempts if a.state is TrialState.MEASURED} <= set(steps)
        held = sum(self.slurm.used_node_s(name) for name in names) / 3600
        slack = slack_s * PILOT_NODES * len(names) / 3600
        booked = search.node_hours_used
        assert held <= booked + slack + 1e-9, f"{held} node-hours were held, {booked} booked"
        assert booked <= held + slack + 1e-9, f"{booked} node-hours are booked, {held} were held"
        assert booked <= (self.limits.budget_node_hours or float("inf")) + 1e-9


def pilot_rig(path: Path) -> PilotRig:
    """A rig on four nodes whose controller keeps its job records."""
    return PilotRig(path, cluster=four_nodes(min_job_age_s=86400.0))
