"""A search on a Slurm with random faults in random order: nothing is lost, nothing is repeated."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.stopping import Limits
from slurm.job_state import JobState
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.machine import MANY, DisturbedSearch
from tests.orchestrator.search.slurm_rig import SlurmRig, slurm_rig, speed_of
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, Trial

pytestmark = pytest.mark.slow

SECONDS = st.sampled_from([1.0, 20.0, 60.0, 300.0, 1800.0])
NODES = st.sampled_from(["n1", "n2", "n3", "n4"])


class SearchOnSlurm(DisturbedSearch):
    """Search with one job an attempt; all faults are repaired at the end."""

    rig: SlurmRig

    def __init__(self) -> None:
        super().__init__(slurm_rig)
        self.rig.script = self._script
        self.ended: dict[str, Trial] = {}
        self.books_are_uncertain = False
        self.requeued = False

    @initialize(
        trials=st.integers(1, 5),
        parallel=st.integers(1, 3),
        budget=st.none() | st.floats(0.3, 3.0),
        accounting=st.booleans(),
    )
    def a_search(self, trials: int, parallel: int, budget: float | None, accounting: bool) -> None:
        self.rig.limits = Limits(trials, parallel, budget_node_hours=budget, finalists=1, finalist_repeats=1)
        if not accounting:
            self.rig.cluster.accounting_down(10**9)

    def _script(self, spec, restart: int) -> Script:
        kinds = [
            Script(tokens_per_sec=speed_of(spec)),
            Script(reason=FailureReason.GPU_OOM),
            Script(duration_s=None),
            Script(duration_s=200.0, tokens_per_sec=speed_of(spec)),
            Script(tokens_per_sec=None, leaves_outcome=False),
        ]
        return kinds[(int(spec.trial[1:]) * 7 + len(spec.layout.key)) % len(kinds)]

    # -- time and Slurm

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.rig.cluster.advance(seconds)

    @rule(ahead_s=st.sampled_from([-3600.0, 0.0, 3600.0]))
    def the_clock_jumps(self, ahead_s: float) -> None:
        self.books_are_uncertain = True
        self.rig.cluster.clock_ahead_s = ahead_s

    @rule(seconds=SECONDS)
    def the_controller_is_down(self, seconds: float) -> None:
        self.books_are_uncertain = True
        self.rig.cluster.controller_down(seconds)

    @rule(seconds=SECONDS)
    def the_controller_hangs(self, seconds: float) -> None:
        self.books_are_uncertain = True
        self.rig.cluster.controller_hung(seconds)

    @rule(seconds=SECONDS, wrong_for_s=SECONDS)
    def accounting_is_down(self, seconds: float, wrong_for_s: float) -> None:
        self.rig.cluster.accounting_down(seconds, wrong_for_s)

    @rule(appears_after_s=st.sampled_from([None, 0.0, CONFIRM_WINDOW_S / 2]))
    def a_submission_times_out(self, appears_after_s: float | None) -> None:
        self.rig.slurm.submissions_time_out(1, appears_after_s)

    @rule(seconds=SECONDS)
    def the_queue_is_full(self, seconds: float) -> None:
        self.rig.slurm.submissions_busy(for_s=seconds)

    @rule()
    def a_cancel_fails(self) -> None:
        self.rig.slurm.failing_cancels = 1

    @rule(node=NODES)
    def a_node_fails(self, node: str) -> None:
        self.rig.cluster.fail_node(node)

    @rule(node=NODES)
    def a_node_is_back(self, node: str) -> None:
        self.rig.cluster.resume_node(node)

    @precondition(lambda self: self._running())
    @rule()
    def a_job_is_requeued(self) -> None:
        self.requeued = True
        self.rig.cluster.requeue(self._running()[0].job_id)

    @precondition(lambda self: self._running())
    @rule(requeue=st.booleans())
    def a_job_is_preempted(self, requeue: bool) -> None:
        self.requeued |= requeue
        self.rig.cluster.preempt(self._running()[-1].job_id, requeue)

    # -- what must hold

    @invariant()
    def no_attempt_has_two_jobs(self) -> None:
        for name in {job.request.name for job in self.rig.cluster.jobs()}:
            assert self.rig.slurm.most_alive(name) <= 1, f"{name} was alive twice"

    @invariant()
    def a_finished_trial_never_changes(self) -> None:
        if self.driver is None:
            return
        for trial in self.driver.search.trials:
            if trial.state.is_ended:
                assert self.ended.setdefault(trial.trial, trial) == trial

    @invariant()
    def the_budget_holds(self) -> None:
        limit = self.rig.limits.budget_node_hours
        if self.driver is not None and limit is not None and not (self.books_are_uncertain or self.requeued):
            assert self.driver.search.node_hours_used <= limit + 1e-9

    def ends_well(self) -> None:
        cluster = self.rig.cluster
        for node in cluster.nodes:
            cluster.resume_node(node)
        self.rig.slurm.failing_cancels = 0
        cluster.advance(4000.0)
        search = self.the_driver().run()
        self.rig.check(search, books_are_uncertain=self.books_are_uncertain, requeued=self.requeued)
        with closing(LedgerReader(f"sqlite:///{self.folder / 'ledger.db'}")) as reader:
            assert reader.search(search.search_id) == search

    def _running(self) -> list:
        return [job for job in self.rig.cluster.jobs() if job.state is JobState.RUNNING]


@pytest.mark.walks
@pytest.mark.timeout(300)
class TestSearchOnSlurm(SearchOnSlurm.TestCase):
    settings = settings(MANY, max_examples=30, stateful_step_count=25)


class TestSomeSearchesOnSlurm(SearchOnSlurm.TestCase):
    settings = settings(MANY, max_examples=3, stateful_step_count=25, derandomize=True)
