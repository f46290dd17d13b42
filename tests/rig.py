"""The rig of searches: on a simulated clock with scripted attempts, or on a simulated Slurm, in jobs or in pilots."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.slurm.launcher import SlurmAccess, SlurmLauncher
from orchestrator.launchers.slurm.queries import PollBackoff
from orchestrator.launchers.slurm.squeue_cache import SqueueSnapshot
from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import LONGEST_PILOT_S, PilotRules, RemainingWork
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.fabric_check import FabricProgram
from orchestrator.search.samplers.base import GridSampler, PairedSampler, Sampler, without
from orchestrator.search.stopping import Limits, remaining_layouts
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from slurm.client import SlurmClient
from slurm.interface import Slurm
from slurm.request import Container, JobOptions
from slurm.sandbox.sandbox import SlurmSandbox
from tests import kit
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FAKE_SETTINGS, FakeCluster
from tests.fake_slurm.jobs import FakeJob, JobPlan, Run, StartedJob
from tests.fake_slurm.placement import FakeNode
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from tests.orchestrator.scripted import Script, ScriptedLauncher, outcome_of
from trials.analysis.ranking import Objective
from trials.analysis.setting_failures import SettingValue
from trials.attempt_result import LaunchStatus
from trials.diagnostics.fabric import fabric_check_section
from trials.files.folders import AttemptFolder, SearchFolder, read_json, write_json
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.measure_rules import MeasureRules
from trials.pilot.agent import HEARTBEAT_S
from trials.pilot.files import PilotFolder, StepEnd, StepEndReason, StepFileKind, StepRequest, StepStart, write
from trials.trial import Attempt, TrialKind, TrialSpec, TrialState

MODEL = kit.model(vocab_size=256, seq_length=64, tied_embeddings=False)
RULES = MeasureRules(min_steps=5, time_limit_s=570.0)
LAYOUTS = tuple(
    Layout(tensor_parallel=tp, data_parallel=4 // tp, micro_batch_size=mb, grad_accum_steps=16 * tp // (4 * mb))
    for tp in (1, 2, 4)
    for mb in (1, 2, 4)
)
_SPEEDS = {layout.canonical().key: 1000.0 + 100.0 * number for number, layout in enumerate(LAYOUTS)}
NINE_TRIALS = Limits(max_trials=9, parallel_trials=2)
POLL_S = 30.0
LIMIT_S = 600.0
PILOT_NODES = 2
LONGEST_SETTLED_S = 200.0
"""Seconds after a search until an unreleased pilot has found itself idle and ended."""


class Killed(BaseException):
    """Stands for a kill of the driver's process at this instruction."""


def raise_killed(now: bool) -> None:
    if now:
        raise Killed


def assert_kills_change_nothing(
    make: Callable[[str], Rig],
    story: Callable[[Rig, SearchRecord], object],
    is_due: Callable[[Event], bool] = lambda event: True,
    every: int = 1,
) -> None:
    """Kill the driver right after each of the events that are due; the next driver ends the search with this story."""
    events: list[Event] = []
    whole = make("whole")
    whole.callbacks = DriverCallbacks(on_event=lambda search, event: events.append(event))
    wanted = story(whole, whole.run())
    for killing in [event for event in events if is_due(event)][::every]:
        rig = make(f"killed-after-{killing.seq}")
        rig.callbacks = DriverCallbacks(on_event=lambda search, event, seq=killing.seq: raise_killed(event.seq == seq))
        with pytest.raises(Killed):
            rig.run()
        rig.callbacks = DriverCallbacks()
        assert story(rig, rig.run()) == wanted, f"killed after event {killing.seq}, {killing.kind}"


def speed_of(spec: TrialSpec) -> float:
    """Throughput of a layout; each of LAYOUTS is faster than the one before."""
    return _SPEEDS.get(spec.layout.canonical().key, 1000.0)


def steady(spec: TrialSpec, restart: int = 0) -> Script:
    return Script(tokens_per_sec=speed_of(spec))


def four_nodes(plan: Callable[[StartedJob], JobPlan] = lambda job: JobPlan(), **settings: object) -> FakeCluster:
    """A cluster whose jobs run as planned, or until they are ended."""
    return FakeCluster([FakeNode(f"n{i}") for i in range(1, 5)], plan, replace(FAKE_SETTINGS, **settings))


def access_to(sandbox: SlurmSandbox, options: JobOptions | None = None) -> SlurmAccess:
    """The sandbox's Slurm for a launcher, which queries it often."""
    slurm = SlurmClient(os.environ | sandbox.environment)
    sleep = lambda seconds: time.sleep(min(seconds, 0.1))  # noqa: E731
    return SlurmAccess(slurm, options or JobOptions(), PollBackoff(0.1), asking(slurm), sleep)


def asking(slurm: Slurm) -> Callable[[float], SqueueSnapshot]:
    """Query squeue without a cache, as for a single driver."""

    def jobs(max_age_s: float) -> SqueueSnapshot:
        asked_at = slurm.now()
        return SqueueSnapshot(slurm.jobs(), asked_at, getattr(slurm, "answer_s", 0.0))

    return jobs


@dataclass
class Rig:
    """A search of nine layouts for nodes of four ranks. `open_driver` can be called again, as after a crash.

    `script` says how each start of a trial's attempt goes, given its spec and restart. On a simulated Slurm there are
    four nodes; an agent of a pilot starts `startup_s` after its job, or never (None).
    """

    kind: Literal["scripted", "jobs", "pilot"]
    path: Path
    limits: Limits = NINE_TRIALS
    layouts: tuple[Layout, ...] = LAYOUTS
    first: tuple[Layout, ...] = ()
    script: Callable[[TrialSpec, int], Script] = steady
    callbacks: DriverCallbacks = field(default_factory=DriverCallbacks)
    num_nodes: int = 1
    headroom: MemoryHeadroom | None = None
    found: dict[str, Any] | None = None
    """What follows from the fabric check of two nodes with which the search begins; None: it begins with none."""
    software: Mapping[str, str] = field(default_factory=dict)
    """The other software of an experiment with `limits.max_trials` / 2 layouts."""
    settings: Mapping[str, object] = field(default_factory=dict)
    options: JobOptions = field(default_factory=JobOptions)
    poll_s: float = POLL_S
    startup_s: float | None = 3.0
    longest_s: float = LONGEST_PILOT_S
    fencing: int = 0
    begun: set[str] = field(default_factory=set)
    """Steps that agents have begun."""

    def __post_init__(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.folder = SearchFolder(self.path / "runs" / "rig-aaaaaa")
        self.launcher: Any = ScriptedLauncher(lambda spec: self.script(spec, 0))
        if self.kind != "scripted":
            self.cluster = four_nodes(self._start, **self.settings)
            self.slurm = FakeSlurm(self.cluster)

    def now(self) -> float:
        return self.launcher.now() if self.kind == "scripted" else self.cluster.time

    def open_driver(self) -> Driver:
        if self.kind != "scripted":
            self.launcher = self.new_launcher(lambda: self._work_left(driver.search))
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.fencing += 1
        ledger = LedgerWriter(f"sqlite:///{self.path / 'ledger.db'}")
        history = EventStore(
            self.folder.search_id, Journal(self.folder.journal), ledger, self.fencing, self.launcher.now
        )
        if history.is_empty:
            spec = {"name": "rig", "folder": str(self.folder.path)}
            history.record(EventKind.SEARCH_CREATED, spec=spec, code_hash="0" * 64)
        cluster = Cluster(ACCELERATORS["cpu"], 4, self.num_nodes)
        baseline = self.first[0] if self.first else None
        program = AttemptFactory(self.folder, MODEL, cluster, RULES, "python3", baseline=baseline)
        goal = SearchObjective(Objective.TOKENS_PER_SEC, 16, self.first, self.headroom)

        def make_sampler(failing: frozenset[SettingValue]) -> Sampler:
            sampler = GridSampler(without(failing, self.layouts))
            return PairedSampler(sampler, self.software, self.limits.max_trials // 2) if self.software else sampler

        parts = history, program, make_sampler, self.launcher, goal, self.limits, self.callbacks
        found, checked = self.found, replace(cluster, num_nodes=2)
        check = None if found is None else FabricProgram(checked, fabric_check_section([]), lambda times: found)
        driver = Driver(*parts, fabric_check=check)
        return driver

    def new_launcher(self, work: Callable[[], RemainingWork]) -> Any:
        slurm, handover, backoff, jobs = self.slurm, self.folder.launcher, PollBackoff(self.poll_s), asking(self.slurm)
        if self.kind == "jobs":
            return SlurmLauncher(SlurmAccess(slurm, self.options, backoff, jobs, self._sleep, handover))
        rules = PilotRules(PILOT_NODES, 4, self.longest_s)
        return SlurmPilotLauncher(
            SlurmAccess(slurm, self.options, backoff, jobs, self.cluster.advance, handover), rules, work
        )

    def run(self, **allowed: Any) -> SearchRecord:
        """Drive the search to its end by a driver of its own, and check its invariants."""
        search = self.open_driver().run()
        if search.state.is_ended:
            self.check(search, **allowed)
        return search

    def iterate(self, until: Callable[[SearchRecord], bool]) -> Driver:
        """Iterate once a second until the search is so, and return its driver, which can be left as if killed."""
        driver = self.open_driver()
        driver.recover()
        while not until(driver.search):
            driver.iterate()
            self.launcher.wait(1.0)
        return driver

    def own_jobs(self) -> list[FakeJob]:
        return [job for job in self.cluster.jobs() if job.user == self.slurm.user]

    def held_node_hours(self) -> float:
        return sum(self.slurm.used_node_s(name) for name in {job.request.name for job in self.own_jobs()}) / 3600

    def _sleep(self, seconds: float) -> None:
        self.cluster.advance_to_next_event(at_most=max(seconds, self.poll_s / 2))
        self.cluster.advance(seconds)

    def _work_left(self, search: SearchRecord) -> RemainingWork:
        budget = self.limits.budget_node_hours
        left = None if budget is None else max(0.0, budget - search.node_hours_used - search.node_hours_reserved)
        attempts = max(1, remaining_layouts(search.num_layouts, self.limits) + len(search.in_flight) + 2)
        return RemainingWork(attempts, self.limits.parallel_trials, left, pilots=search.pilots)

    def _start(self, job: StartedJob) -> JobPlan:
        if job.user != self.slurm.user:
            return JobPlan()
        if PilotFolder(job.directory).plan.exists():
            return self._start_pilot(job)
        folder = AttemptFolder(job.directory)
        script = self.script(spec_in(folder), job.restart)
        on_end = (lambda: leave(folder, script, job.restart)) if script.leaves_outcome else (lambda: None)
        failed = 0 if script.reason is None and script.tokens_per_sec is not None else 1
        return JobPlan(script.duration_s, exit_code=failed, on_end=on_end)

    def _start_pilot(self, job: StartedJob) -> JobPlan:
        agent = SimulatedAgent(self, job)
        if agent.folder.heartbeat.exists():  # put back into the queue: its steps are gone
            return JobPlan(0.5, exit_code=1)
        if self.startup_s is not None:
            self.cluster.at(self.cluster.time + self.startup_s, agent.serve)
        return JobPlan()

    # -- what must hold

    def check(
        self,
        search: SearchRecord,
        twins: bool = False,
        books_are_uncertain: bool = False,
        requeued: bool = False,
        ends_are_unknown: bool = False,
        slack_s: float = 0.0,
    ) -> None:
        """Check what holds of every search that has ended.

        Nothing is left or was there twice, and what Slurm charged is booked and within the budget. `twins`: a job
        appeared long after its submission was given up. `books_are_uncertain`: the controller was down for longer than
        any limit, or a clock jumped. `requeued`: jobs were requeued while no driver could cancel what the budget no
        longer covers. `ends_are_unknown`: a search may have ended while the controller was down, so that a pilot was
        charged its reservation. `slack_s`: what of each node of a pilot may be missing, since Slurm reports whole
        seconds.
        """
        attempts = search.attempts
        assert search.state.is_ended
        assert all(attempt.state.is_ended for attempt in attempts)
        assert all((a.reason is None) == (a.outcome is not None and not a.outcome.reason) for a in attempts)
        runs = Counter(trial.layout.key for trial in search.trials if trial.kind is TrialKind.SEARCH)
        assert max(runs.values(), default=1) == 1
        budget = self.limits.budget_node_hours if self.limits.budget_node_hours is not None else float("inf")
        in_doubt = books_are_uncertain or requeued
        assert in_doubt or search.node_hours_used <= budget + 1e-9
        if self.kind != "scripted":
            self._check_jobs(search, attempts, twins)
            if not books_are_uncertain:
                self._check_books(search, attempts, float("inf") if requeued else budget)
                self._check_charges(search, slack_s, ends_are_unknown)

    def _check_jobs(self, search: SearchRecord, attempts: Sequence[Attempt], twins: bool) -> None:
        if self.kind == "pilot":
            self.launcher.close()
            self.cluster.advance(LONGEST_SETTLED_S)
        names = {job.request.name for job in self.own_jobs()}
        assert not [job for job in self.own_jobs() if not job.state.is_ended]
        assert twins or all(self.slurm.most_alive(name) <= 1 for name in names)
        repeats = Counter(trial.layout.key for trial in search.trials if trial.kind is TrialKind.REPEAT)
        assert max(repeats.values(), default=0) <= self.limits.finalist_repeats
        steps = [attempt.job_id for attempt in attempts if "." in (attempt.job_id or "")]
        assert len(steps) == len(set(steps))
        if self.kind == "pilot":
            assert {a.job_id for a in attempts if a.state is TrialState.MEASURED} <= set(steps)
        else:
            assert {name for name in names if ".p0" not in name} <= {self._name(attempt) for attempt in attempts}

    def _check_books(self, search: SearchRecord, attempts: Sequence[Attempt], budget: float) -> None:
        held = self.held_node_hours()
        assert held <= budget + 1e-9
        for attempt in attempts if self.kind == "jobs" else ():
            used = self.slurm.used_node_s(self._name(attempt)) / 3600
            assert attempt.node_hours >= used - POLL_S / 3600, f"{attempt} used {used} node-hours"

    def _check_charges(self, search: SearchRecord, slack_s: float, ends_are_unknown: bool) -> None:
        """Check that each pilot was charged what it held, and that nothing stays reserved."""
        assert search.node_hours_reserved == 0.0
        for name, pilot in search.pilots.items():
            held = self.slurm.used_node_s(f"{search.search_id}.{name}") / 3600
            is_unknown = ends_are_unknown and pilot.node_hours == pilot.reserved_node_hours > held
            is_exact = abs(held - pilot.node_hours) <= slack_s * PILOT_NODES / 3600 + 1e-9
            assert is_exact or is_unknown, f"{name} held {held} h and was charged {pilot}"

    def _name(self, attempt: Attempt) -> str:
        return f"{self.folder.search_id}.{attempt.trial}.{attempt.attempt}"


def spec_in(folder: AttemptFolder) -> TrialSpec:
    data = read_json(folder.spec)
    assert data is not None, "the spec is there before the job or the step is"
    return TrialSpec.from_json(data)


def leave(folder: AttemptFolder, script: Script, restart: int) -> None:
    write_json(folder.outcome(restart), outcome_of(spec_in(folder), script, restart).to_json())


def one_attempt(search: SearchRecord, trial: str = "t0001") -> Attempt:
    """The only attempt of a trial."""
    [attempt] = search.trial(trial).attempts
    return attempt


@dataclass
class RunningStep:
    """A step that the agent has started, and its script; `number` is the step's in the job."""

    request: StepRequest
    script: Script
    began: float
    began_at: float
    number: str


class SimulatedAgent:
    """Simulated agent of one pilot, advanced in simulated seconds; its files are real."""

    TURN_S = 1.0

    def __init__(self, rig: Rig, job: StartedJob):
        self.folder = PilotFolder(job.directory)
        plan = self.folder.read_plan()
        assert plan is not None, "the plan is there before the job is"
        self._rig, self._job, self._plan, self._cluster = rig, job, plan, rig.cluster
        self._last_beat = -HEARTBEAT_S
        self._steps: dict[str, RunningStep] = {}
        self._num_begun = 0
        self._run: Run | None = None

    def serve(self) -> None:
        """Start with the job that runs now: the first turn; the others follow by themselves."""
        self._run = self._cluster.job(self._job.job_id).run
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
            elif step.script.duration_s is not None and lasted_s >= step.script.duration_s:
                leave(AttemptFolder(Path(step.request.directory)), step.script, 0)
                self._end(name, StepEndReason.EXITED)
        if self._is_done:
            write(self.folder.closed, self._plan)
            self._run.ends = self._cluster.time
        else:
            self._cluster.at(self._cluster.time + self.TURN_S, self._turn)

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
        """Begin a step: once, on nodes of this pilot that no other step uses."""
        request = self.folder.request(name, StepFileKind.CLAIMED)
        assert name not in self._rig.begun, f"{name} is begun twice"
        self._rig.begun.add(name)
        busy = {node for step in self._steps.values() for node in step.request.nodes}
        assert not busy.intersection(request.nodes), f"{name} shares {request.nodes}"
        assert set(request.nodes) <= set(self._job.nodes), f"{name} is elsewhere"
        script = self._rig.script(spec_in(AttemptFolder(Path(request.directory))), 0)
        now, started_at, number = self._cluster.time, self._cluster.cluster_time, str(self._num_begun)
        self._num_begun += 1
        self._steps[name] = RunningStep(request, script, now, started_at, number)
        self._idle_since = now
        write(self.folder.step_file(name, StepFileKind.STARTED), StepStart(started_at, number))

    def _end(self, name: str, reason: StepEndReason) -> None:
        step, now = self._steps.pop(name), self._cluster.time
        exit_code = 0 if step.script.reason is None else 1
        end = StepEnd(reason, step.began_at, self._cluster.cluster_time, exit_code, 0, step.number)
        write(self.folder.step_file(name, StepFileKind.ENDED), end)
        self._idle_since = now


class JobsBench:
    """Four nodes, a launcher, and the times of its calls of Slurm (simulated seconds since the start)."""

    def __init__(self, root: Path, **settings: object):
        self.root = root
        self.cluster = four_nodes(**settings)
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time
        self.asked: dict[str, list[float]] = {}
        for name in ("submit", "jobs", "cancel", "accounted_jobs"):
            self.note(name)
        self.launcher = self.new_launcher()

    def note(self, name: str) -> list[float]:
        """Note the times at which this method of Slurm is called."""
        method, times = getattr(self.slurm, name), self.asked.setdefault(name, [])
        setattr(self.slurm, name, lambda *args: (times.append(self.cluster.time - self.began), method(*args))[1])
        return times

    def new_launcher(self, interval_s: float = POLL_S, **options: Any) -> SlurmLauncher:
        backoff, advance = PollBackoff(interval_s), self.cluster.advance
        return SlurmLauncher(SlurmAccess(self.slurm, JobOptions(**options), backoff, asking(self.slurm), advance))

    def request(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = replace(attempt_request(self.root, "hang", trial=trial), submitted_at=self.cluster.time)
        return replace(request, **changes)

    def launched(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = self.request(trial, **changes)
        assert self.launcher.launch(request)
        self.cluster.advance(POLL_S)
        return request

    def poll_for(self, seconds: float, *requests: LaunchRequest) -> None:
        """Poll every half second, as a driver does."""
        for _ in range(int(2 * seconds)):
            self.launcher.poll([request.spec.attempt_key for request in requests])
            self.cluster.advance(0.5)


class PilotBench:
    """Four nodes, and a launcher with pilots of two; `plan` is what a pilot's job does. The test acts as the agent."""

    def __init__(self, root: Path, attempts: int = 1):
        self.root = root
        self.work = RemainingWork(attempts, parallel=1)
        self.plan = JobPlan()
        self.cluster = four_nodes(lambda job: self.plan)
        self.slurm = FakeSlurm(self.cluster)
        self.folder = SearchFolder(root / "searches" / "demo-abc234")
        self.launcher: Any = self.new_launcher()

    def new_launcher(self, container: Container | None = None) -> Any:
        options, jobs = JobOptions(container=container), asking(self.slurm)
        handover, sleep = self.folder.launcher, self.cluster.advance
        access = SlurmAccess(self.slurm, options, PollBackoff(5.0), jobs, sleep, handover)
        return SlurmPilotLauncher(access, PilotRules(2, 2), lambda: self.work)

    def request(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        return replace(attempt_request(self.root, trial=trial, time_limit_s=LIMIT_S), **changes)

    def launch(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = self.request(trial, **changes)
        self.launcher.launch(request)
        return request

    def pilot(self, number: int = 1) -> PilotFolder:
        return PilotFolder(self.folder.path / "pilots" / f"p{number:04d}")

    def job(self, number: int = 1) -> FakeJob:
        return next(job for job in self.cluster.jobs() if job.request.name == f"demo-abc234.p{number:04d}")

    def held_node_s(self, number: int = 1) -> float:
        job = self.job(number)
        assert None not in (job.ended_at, job.started_at)
        return 2 * (job.ended_at - job.started_at)  # type: ignore[operator]

    def serve(self, number: int = 1) -> PilotFolder:
        """Write the agent's heartbeat and claim the requested steps."""
        folder = self.pilot(number)
        folder.heartbeat.write_text(str(self.cluster.time))
        self.look()
        for name, step_files in folder.step_files().items():
            if StepFileKind.REQUESTED in step_files:
                assert folder.take(name, StepFileKind.CLAIMED)
        self.look()
        return folder

    def look(self, seconds: float = 6.0, times: int = 1) -> None:
        for _ in range(times):
            self.cluster.advance(seconds)
            self.launcher.poll([])

    def status(self, request: LaunchRequest) -> LaunchStatus:
        return poll_one(self.launcher, request)


def nodes_asked(folder: PilotFolder, name: str) -> tuple[str, ...]:
    is_claimed = StepFileKind.CLAIMED in folder.step_files()[name]
    return folder.request(name, StepFileKind.CLAIMED if is_claimed else StepFileKind.REQUESTED).nodes


def finish(folder: PilotFolder, name: str, at: float = 1e9) -> None:
    """Write that a step has started and ended."""
    write(folder.step_file(name, StepFileKind.STARTED), StepStart(at, "0"))
    end = StepEnd(StepEndReason.EXITED, at, at + 10, 0, 0, "0")
    write(folder.step_file(name, StepFileKind.ENDED), end)
