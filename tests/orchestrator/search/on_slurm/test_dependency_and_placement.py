"""Dependency of a search's first jobs, preemptions, and placement of its repeats, on a simulated cluster."""

from __future__ import annotations

import pytest

from orchestrator.search.stopping import Limits
from slurm.request import JobOptions, Placement
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.slurm_rig import SlurmRig
from trials.ledger.events import EndReason
from trials.trial import FailureReason, TrialKind, TrialState

DEPENDENCY = "afterok:12345"


@pytest.fixture
def rig(tmp_path) -> SlurmRig:
    return SlurmRig(tmp_path, limits=Limits(max_trials=3, parallel_trials=2), options=JobOptions(dependency=DEPENDENCY))


def test_the_first_jobs_wait_for_the_users_and_later_ones_do_not(rig):
    rig.cluster.unmet = {DEPENDENCY: "Dependency"}
    rig.cluster.at(rig.cluster.time + 1000, rig.cluster.unmet.clear)
    search = rig.open_driver().run()
    rig.check(search)
    assert [job.request.is_first for job in rig.cluster.jobs()] == [True, True, False]
    first = min(attempt.started_at for trial in search.trials for attempt in trial.attempts)
    assert first >= search.created_at + 990
    assert search.end_reason is EndReason.MAX_TRIALS


def test_a_dependency_that_is_never_satisfied_ends_the_search_with_clear_words(rig):
    rig.cluster.unmet = {DEPENDENCY: "DependencyNeverSatisfied"}
    search = rig.open_driver().run()
    rig.check(search)
    assert search.end_reason is EndReason.SUBMISSION_REJECTED
    assert search.detail.startswith("DependencyNeverSatisfied: a job of launcher.slurm.dependency has not ended as")
    assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


def test_a_trial_that_is_preempted_again_and_again_is_given_up_at_last(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.cluster.unmet = {}
    start = rig.cluster.on_start

    def preempted(job):
        rig.cluster.at(rig.cluster.time + 20, lambda: rig.cluster.preempt(job.job_id))
        return start(job)

    rig.cluster.on_start = preempted
    rig.script = lambda spec, restart: Script(duration_s=100.0, tokens_per_sec=1000.0)
    search = rig.open_driver().run()
    rig.check(search)
    [trial] = search.trials
    assert (trial.state, trial.reason, len(trial.attempts)) == (TrialState.FAILED, FailureReason.PREEMPTED, 9)


def test_repeats_have_the_placement_and_each_attempt_the_leaves_of_its_nodes(rig):
    rig.options = JobOptions(repeat_placement=Placement.ONE_SWITCH)
    rig.limits = Limits(max_trials=2, parallel_trials=2, finalists=1, finalist_repeats=1)
    rig.slurm.leaf_of_node = {name: f"leaf{place // 2}" for place, name in enumerate(rig.cluster.nodes)}
    search = rig.open_driver().run()
    rig.check(search)
    attempts = {f"{search.search_id}.{a.trial}.{a.attempt}": (t, a) for t in search.trials for a in t.attempts}
    for job in rig.cluster.jobs():
        trial, attempt = attempts[job.request.name]
        assert job.request.is_repeat == (trial.kind is TrialKind.REPEAT)
        assert attempt.leaves == tuple(rig.slurm.leaf_of_node[node] for node in attempt.nodes) != ()


def test_without_a_topology_leaves_are_unknown(rig):
    search = rig.open_driver().run()
    assert {a.leaves for t in search.trials for a in t.attempts} == {()}
