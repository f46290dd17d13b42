"""A search on a Slurm with random faults in random order: nothing is lost, nothing is repeated."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.launchers.slurm_pilot.sizing import LONGEST_PILOT_S
from orchestrator.search.driver import Driver
from orchestrator.search.stopping import Limits
from tests.fake_slurm.jobs import FakeJob
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_crashes import KILL_POINTS, KillPoint, counting
from tests.rig import Killed, Rig, speed_of
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, Trial, TrialSpec

pytestmark = pytest.mark.slow

MANY = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a counterexample here takes minutes to shrink
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SECONDS = st.sampled_from([1.0, 7.0, 20.0, 60.0, 300.0])
NODES = st.sampled_from(["n1", "n2", "n3", "n4"])
NOTHING_FOUND = {"slow_nodes": [], "num_available": 4, "findings": [], "links": None}
"""What follows from a fabric check of like nodes."""


class DisturbedSearch(RuleBasedStateMachine):
    """The driver's iterations and kills, and faults that any search on a Slurm may meet."""

    kind: ClassVar[str]
    settings_of_cluster: ClassVar[dict[str, object]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="parlay-machine-"))
        self.rig = Rig(self.kind, self.folder, settings=self.settings_of_cluster)
        self.rig.callbacks = replace(self.rig.callbacks, cancel_requested=lambda: self.cancelling)
        self.driver: Driver | None = None
        self.cancelling = False
        self.allowed: dict[str, object] = {}
        self.ended: dict[str, Trial] = {}

    @rule(turns=st.integers(1, 30))
    def goes_on(self, turns: int) -> None:
        driver = self.the_driver()
        for _ in range(turns):
            if not driver.search.state.is_ended:
                driver.iterate()
                self.rig.launcher.wait(self.rig.launcher.iteration_interval_s)

    @rule(kill_point=st.integers(0, 11), number=st.integers(1, 12), after=st.booleans())
    def is_killed(self, kill_point: int, number: int, after: bool) -> None:
        points = sorted(KILL_POINTS[self.kind])
        with counting(self.kind, points[kill_point % len(points)], KillPoint(number, after)):
            try:
                self.goes_on(20)
            except Killed:
                self.driver = None

    @rule()
    def the_user_cancels(self) -> None:
        self.cancelling = True

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.rig.cluster.advance(seconds)

    @rule(seconds=SECONDS)
    def the_controller_is_down(self, seconds: float) -> None:
        self.allowed["books_are_uncertain" if self.kind == "jobs" else "ends_are_unknown"] = True
        self.rig.cluster.controller_down(seconds)

    @rule(appears_after_s=st.sampled_from([None, 0.0, CONFIRM_WINDOW_S / 2]))
    def a_submission_times_out(self, appears_after_s: float | None) -> None:
        self.rig.slurm.submissions_time_out(1, appears_after_s)

    @rule(seconds=SECONDS)
    def the_queue_is_full(self, seconds: float) -> None:
        self.rig.slurm.submissions_busy(for_s=seconds)

    @invariant()
    def no_name_has_two_jobs(self) -> None:
        for name in {job.request.name for job in self.rig.cluster.jobs()}:
            assert self.rig.slurm.most_alive(name) <= 1, f"{name} was alive twice"

    @invariant()
    def a_finished_trial_never_changes(self) -> None:
        for trial in self.driver.search.trials if self.driver is not None else ():
            if trial.state.is_ended:
                assert self.ended.setdefault(trial.trial, trial) == trial

    @invariant()
    def the_budget_holds(self) -> None:
        limit = self.rig.limits.budget_node_hours
        in_doubt = self.allowed.keys() & {"books_are_uncertain", "requeued"}
        if self.driver is not None and limit is not None and not in_doubt:
            search = self.driver.search
            assert search.node_hours_used + search.node_hours_reserved <= limit + 1e-9

    def teardown(self) -> None:
        try:
            self.ends_well()
        finally:
            shutil.rmtree(self.folder)

    def ends_well(self) -> None:
        """Let the search end, and check its invariants."""
        search = self.the_driver().run()
        self.rig.check(search, **self.allowed)
        with closing(LedgerReader(f"sqlite:///{self.folder / 'ledger.db'}")) as reader:
            assert reader.search(search.search_id) == search

    def the_driver(self) -> Driver:
        if self.driver is None:
            self.driver = self.rig.open_driver()
            if not self.driver.search.state.is_ended:
                self.driver.recover()
        return self.driver

    def alive(self, is_wanted: Callable[[FakeJob], object] = lambda job: True) -> list[FakeJob]:
        return [job for job in self.rig.cluster.jobs() if not job.state.is_ended and is_wanted(job)]

    def running(self) -> list[FakeJob]:
        return self.alive(lambda job: job.run)


class SearchOnSlurm(DisturbedSearch):
    """Search with one job an attempt; all faults are repaired at the end."""

    kind = "jobs"

    @initialize(
        trials=st.integers(1, 5),
        parallel=st.integers(1, 3),
        budget=st.none() | st.floats(0.3, 3.0),
        accounting=st.booleans(),
        checks=st.booleans(),
    )
    def a_search(self, trials: int, parallel: int, budget: float | None, accounting: bool, checks: bool) -> None:
        self.rig.found = NOTHING_FOUND if checks else None
        self.rig.limits = Limits(trials, parallel, budget_node_hours=budget, finalists=1, finalist_repeats=1)
        self.rig.script = one_of_five
        if not accounting:
            self.rig.cluster.accounting_down(10**9)

    @rule(ahead_s=st.sampled_from([-3600.0, 0.0, 3600.0]))
    def the_clock_jumps(self, ahead_s: float) -> None:
        self.allowed["books_are_uncertain"] = True
        self.rig.cluster.clock_ahead_s = ahead_s

    @rule(seconds=SECONDS)
    def the_controller_hangs(self, seconds: float) -> None:
        self.allowed["books_are_uncertain"] = True
        self.rig.cluster.controller_hung(seconds)

    @rule(seconds=SECONDS, wrong_for_s=SECONDS)
    def accounting_is_down(self, seconds: float, wrong_for_s: float) -> None:
        self.rig.cluster.accounting_down(seconds, wrong_for_s)

    @rule()
    def a_cancel_fails(self) -> None:
        self.rig.slurm.failing_cancels = 1

    @rule(node=NODES)
    def a_node_fails(self, node: str) -> None:
        self.rig.cluster.fail_node(node)

    @rule(node=NODES)
    def a_node_is_back(self, node: str) -> None:
        self.rig.cluster.resume_node(node)

    @precondition(lambda self: self.running())
    @rule()
    def a_job_is_requeued(self) -> None:
        self.allowed["requeued"] = True
        self.rig.cluster.requeue(self.running()[0].job_id)

    @precondition(lambda self: self.running())
    @rule(requeue=st.booleans())
    def a_job_is_preempted(self, requeue: bool) -> None:
        self.allowed |= {"requeued": True} if requeue else {}
        self.rig.cluster.preempt(self.running()[-1].job_id, requeue)

    def ends_well(self) -> None:
        for node in self.rig.cluster.nodes:
            self.rig.cluster.resume_node(node)
        self.rig.slurm.failing_cancels = 0
        self.rig.cluster.advance(4000.0)
        super().ends_well()


def one_of_five(spec: TrialSpec, restart: int) -> Script:
    kinds = [
        Script(tokens_per_sec=speed_of(spec)),
        Script(reason=FailureReason.GPU_OOM),
        Script(duration_s=None),
        Script(duration_s=200.0, tokens_per_sec=speed_of(spec)),
        Script(tokens_per_sec=None, leaves_outcome=False),
    ]
    return kinds[(int(spec.trial[1:]) * 7 + len(spec.layout.key)) % len(kinds)]


class SearchInPilots(DisturbedSearch):
    """Search with attempts as steps of pilots; pilots end only while Slurm can tell when."""

    kind = "pilot"
    settings_of_cluster: ClassVar[dict[str, object]] = {"min_job_age_s": 86400.0}

    @initialize(
        trials=st.integers(1, 5),
        parallel=st.integers(1, 3),
        budget=st.none() | st.floats(1.0, 6.0),
        startup_s=st.sampled_from([1.0, 3.0, 40.0, 100.0, 280.0]),
        longest_s=st.sampled_from([1.0, LONGEST_PILOT_S]),
        has_dirty_gpu=st.booleans(),
        checks=st.booleans(),
    )
    def a_search(self, trials, parallel, budget, startup_s, longest_s, has_dirty_gpu, checks) -> None:
        self.rig.found = NOTHING_FOUND if checks else None
        self.rig.limits = Limits(trials, parallel, budget_node_hours=budget, finalists=1, finalist_repeats=1)
        self.rig.startup_s, self.rig.longest_s = startup_s, longest_s
        self.allowed["slack_s"] = 1.0

        def script(spec: TrialSpec, restart: int) -> Script:
            if has_dirty_gpu and spec.attempt == "a1" and spec.trial in ("t0001", "t0003"):
                return Script(reason=FailureReason.GPU_MEMORY_IN_USE)
            if spec.trial == "t0002":
                return Script(reason=FailureReason.GPU_OOM)
            return Script(duration_s=200.0 if spec.trial == "t0003" else 60.0, tokens_per_sec=speed_of(spec))

        self.rig.script = script

    @precondition(lambda self: self.alive() and not self.rig.cluster.is_down)
    @rule()
    def a_pilot_is_cancelled(self) -> None:
        self.rig.cluster.cancel(self.alive()[-1].job_id)

    @precondition(lambda self: self.running() and not self.rig.cluster.is_down)
    @rule()
    def a_pilot_is_preempted(self) -> None:
        self.rig.cluster.preempt(self.running()[-1].job_id)

    @precondition(lambda self: not self.rig.cluster.is_down)
    @rule(node=st.sampled_from(["n1", "n2"]))
    def a_node_fails_for_a_while(self, node: str) -> None:
        cluster = self.rig.cluster
        cluster.fail_node(node)
        cluster.at(cluster.time + 30.0, lambda: cluster.resume_node(node))

    def ends_well(self) -> None:
        self.rig.cluster.advance(400.0)
        super().ends_well()


@pytest.mark.walks
@pytest.mark.timeout(300)
class TestSearchOnSlurm(SearchOnSlurm.TestCase):
    settings = settings(MANY, max_examples=30, stateful_step_count=25)


class TestSomeSearchesOnSlurm(SearchOnSlurm.TestCase):
    settings = settings(MANY, max_examples=3, stateful_step_count=25, derandomize=True)


@pytest.mark.walks
@pytest.mark.timeout(300)
class TestSearchInPilots(SearchInPilots.TestCase):
    settings = settings(MANY, max_examples=12, stateful_step_count=20, derandomize=True)


class TestSomeSearchesInPilots(SearchInPilots.TestCase):
    settings = settings(MANY, max_examples=3, stateful_step_count=20, derandomize=True)
