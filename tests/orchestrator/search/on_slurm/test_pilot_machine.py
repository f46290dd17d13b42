"""A search in pilots where anything happens in any order: whatever it is, nothing is lost, nothing twice, and all that
Slurm charged is booked."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from orchestrator.launchers.slurm_pilot.sizing import LONGEST_PILOT_S
from orchestrator.search.stopping import Limits
from slurm.fake.jobs import FakeJob
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.machine import MANY, DisturbedSearch
from tests.orchestrator.search.on_slurm.test_pilot_crashes import KILL_POINTS
from tests.orchestrator.search.pilot_rig import PilotRig, pilot_rig
from tests.orchestrator.search.slurm_rig import speed_of
from trials.trial import FailureReason

pytestmark = pytest.mark.slow

SECONDS = st.sampled_from([1.0, 7.0, 20.0, 60.0, 300.0])


class SearchInPilots(DisturbedSearch):
    """Search with attempts as steps of pilots."""

    kill_points = KILL_POINTS
    rig: PilotRig

    def __init__(self) -> None:
        super().__init__(pilot_rig)

    @initialize(
        trials=st.integers(1, 5),
        parallel=st.integers(1, 3),
        budget=st.none() | st.floats(1.0, 6.0),
        startup_s=st.sampled_from([1.0, 3.0, 40.0, 100.0, 280.0]),
        longest_s=st.sampled_from([1.0, LONGEST_PILOT_S]),
        has_dirty_gpu=st.booleans(),
    )
    def a_search(
        self,
        trials: int,
        parallel: int,
        budget: float | None,
        startup_s: float,
        longest_s: float,
        has_dirty_gpu: bool,
    ) -> None:
        self.rig.limits = Limits(trials, parallel, budget_node_hours=budget, finalists=1, finalist_repeats=1)
        self.rig.startup_s, self.rig.longest_s = startup_s, longest_s

        def script(spec, restart: int) -> Script:
            if has_dirty_gpu and (spec.trial, spec.attempt) == ("t0001", "a1"):
                return Script(reason=FailureReason.GPU_MEMORY_IN_USE)
            if spec.trial == "t0002":
                return Script(reason=FailureReason.GPU_OOM)
            return Script(duration_s=200.0 if spec.trial == "t0003" else 60.0, tokens_per_sec=speed_of(spec))

        self.rig.script = script

    # -- time and Slurm

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.rig.cluster.advance(seconds)

    @rule(seconds=SECONDS)
    def the_controller_is_down(self, seconds: float) -> None:
        self.rig.cluster.controller_down(seconds)

    @precondition(lambda self: self._pilots())
    @rule()
    def a_pilot_is_cancelled(self) -> None:
        self.rig.cluster.cancel(self._pilots()[-1].job_id)

    @precondition(lambda self: self._running())
    @rule()
    def a_pilot_is_preempted(self) -> None:
        self.rig.cluster.preempt(self._running()[-1].job_id)

    @precondition(lambda self: not self.rig.cluster.is_down)
    @rule(node=st.sampled_from(["n1", "n2"]))
    def a_node_fails_for_a_while(self, node: str) -> None:
        cluster = self.rig.cluster
        cluster.fail_node(node)
        cluster.at(cluster.time + 30.0, lambda: cluster.resume_node(node))

    # -- what must hold

    @invariant()
    def the_budget_holds(self) -> None:
        limit = self.rig.limits.budget_node_hours
        if self.driver is not None and limit is not None:
            assert self.driver.search.node_hours_used <= limit + 1e-9

    def ends_well(self) -> None:
        self.rig.cluster.advance(400.0)
        self.rig.check_pilots(self.the_driver().run(), slack_s=1.0)

    def _pilots(self) -> list[FakeJob]:
        """Pilots that can be ended: without a controller, their time on the nodes is unknown."""
        return [job for job in self.rig.cluster.jobs() if not (job.state.is_ended or self.rig.cluster.is_down)]

    def _running(self) -> list[FakeJob]:
        return [job for job in self._pilots() if job.run]


@pytest.mark.walks
@pytest.mark.timeout(300)
class TestSearchInPilots(SearchInPilots.TestCase):
    settings = settings(MANY, max_examples=12, stateful_step_count=20, derandomize=True)


class TestSomeSearchesInPilots(SearchInPilots.TestCase):
    settings = settings(MANY, max_examples=3, stateful_step_count=20, derandomize=True)
