"""What happens to jobs, their nodes and their files on a simulated cluster; at least one test for each fault."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest

from orchestrator.launchers.slurm import monitor
from orchestrator.search.attempt_factory import SILENT_NODES_GRACE_S
from orchestrator.search.driver import Driver
from orchestrator.search.stopping import Limits
from slurm.association_limits import AssociationLimits, Qos
from slurm.job_state import JobState
from slurm.request import JobOptions, Placement
from tests.fake_slurm.jobs import JobPlan
from tests.orchestrator.scripted import Script
from tests.rig import POLL_S, Rig, one_attempt, speed_of
from trials.files import folders
from trials.ledger.events import EndReason
from trials.trial import FailureReason, TrialKind, TrialState

DEPENDENCY = "afterok:12345"


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(max_trials=1, parallel_trials=1))


def in_s(rig: Rig, seconds: float, action) -> None:
    rig.cluster.at(rig.cluster.time + seconds, action)


def turns_of_a_second(rig: Rig, driver: Driver, seconds: float) -> None:
    for _ in range(int(seconds)):
        driver.iterate()
        rig.cluster.advance(1.0)


@pytest.mark.fault(18)
def test_a_requeued_job_is_the_next_restart_of_its_attempt(rig):
    rig.script = lambda spec, restart: Script(duration_s=100.0, tokens_per_sec=1000.0 + restart)
    in_s(rig, 45, lambda: rig.cluster.requeue("1"))
    search = rig.run()
    attempt = one_attempt(search)
    assert (attempt.job_id, attempt.restart, attempt.outcome.restart) == ("1", 1, 1)
    assert search.trial("t0001").measured.tokens_per_sec == 1001.0
    assert attempt.node_hours * 3600 >= 100 + 40


@pytest.mark.fault(18)
def test_an_outcome_of_the_run_before_the_requeue_is_ignored(rig):
    rig.script = lambda spec, restart: Script(duration_s=60.0, tokens_per_sec=5000.0 if restart == 0 else 1000.0)
    in_s(rig, 61.5, lambda: rig.cluster.requeue("1") if rig.cluster.job("1").state is JobState.RUNNING else None)
    attempt = one_attempt(rig.run())
    assert attempt.outcome.restart == attempt.restart


@pytest.mark.fault(18)
@pytest.mark.parametrize(("duration_s", "seen_for_s"), [(100.0, 1.0), (None, 300.0)], ids=["outcome", "job log"])
def test_a_requeue_that_nobody_saw_is_counted_by_the_jobs_own_files(rig, duration_s, seen_for_s):
    rig.script = lambda spec, restart: Script(duration_s=duration_s)
    driver = rig.open_driver()
    driver.recover()
    turns_of_a_second(rig, driver, seen_for_s)
    rig.cluster.advance(20.0)
    rig.cluster.requeue("1")
    rig.cluster.advance(3600.0)
    assert rig.cluster.jobs() == [], "the controller has forgotten the job"
    attempt = one_attempt(rig.run())
    assert attempt.restart == 1
    assert duration_s is None or attempt.outcome.restart == 1


@pytest.mark.fault(18)
def test_a_requeued_job_is_queued_until_it_starts_again(rig):
    """Also if seen during the cleanup of its first run, when Slurm already reports it as restarted."""
    rig.cluster.on_start = lambda job: JobPlan(400.0, completing_s=3 * POLL_S)
    driver = rig.open_driver()
    driver.recover()
    turns_of_a_second(rig, driver, 2 * POLL_S)
    assert one_attempt(driver.search).state is TrialState.RUNNING
    rig.cluster.requeue("1")
    put_back_at = rig.cluster.time
    turns_of_a_second(rig, driver, 1.5 * POLL_S)
    assert rig.cluster.job("1").state is JobState.COMPLETING
    assert one_attempt(driver.search).state is TrialState.QUEUED
    turns_of_a_second(rig, driver, 3 * POLL_S)
    waits = one_attempt(driver.search)
    assert (waits.state, waits.waits_for) == (TrialState.QUEUED, "BeginTime")
    turns_of_a_second(rig, driver, 120.0 + 2 * POLL_S)
    again = one_attempt(driver.search)
    assert (again.state, again.restart, again.waits_for) == (TrialState.RUNNING, 1, None)
    assert again.started_at >= put_back_at + 120.0


@pytest.mark.fault(19)
def test_a_failed_node_costs_a_retry_elsewhere_soon(rig):
    in_s(rig, 20, lambda: rig.cluster.fail_node("n1"))
    in_s(rig, 25, lambda: rig.cluster.resume_node("n1"))
    began = rig.cluster.cluster_time
    first, second = rig.run().trial("t0001").attempts
    assert (first.reason, first.nodes) == (FailureReason.NODE_FAILURE, ("n1",))
    assert (second.exclude, second.state) == (("n1",), TrialState.MEASURED)
    assert "n1" not in second.nodes
    assert first.ended_at - began == pytest.approx(20, abs=1)
    assert second.submitted_at - first.ended_at < POLL_S + SILENT_NODES_GRACE_S + 5


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        pytest.param(JobPlan(), FailureReason.TIME_LIMIT, marks=pytest.mark.fault(20)),
        pytest.param(
            JobPlan(30.0, ends_as=JobState.OUT_OF_MEMORY), FailureReason.HOST_OOM, marks=pytest.mark.fault(22)
        ),
    ],
)
def test_what_slurm_says_of_a_jobs_end_is_the_reason_and_it_costs_what_was_reserved_at_most(rig, plan, reason):
    rig.cluster.on_start = lambda job: plan
    attempt = one_attempt(rig.run())
    assert attempt.reason is reason
    assert attempt.node_hours * 3600 <= attempt.reserved_s


@pytest.mark.fault(24)
def test_a_job_that_fails_after_its_result_is_measured_and_flagged(rig):
    start = rig.cluster.on_start
    rig.cluster.on_start = lambda job: replace(start(job), exit_code=1)
    assert rig.run().trial("t0001").flags == ("failed_after_result",)


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_folder_that_hangs_holds_up_its_own_attempt_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "FOLDER_TIMEOUT_S", 0.1)
    monkeypatch.setattr("orchestrator.search.attempt_factory.FOLDER_TIMEOUT_S", 0.1)
    rig = Rig("jobs", tmp_path, Limits(max_trials=4, parallel_trials=2), settings={"has_accounting": False})
    rig.cluster.purges_at_once = True
    rig.script = lambda spec, restart: Script(tokens_per_sec=speed_of(spec), leaves_outcome=spec.trial != "t0001")
    hanging, is_over, read_plain = rig.folder.attempt("t0001", "a1").outcome(), Event(), folders.read_plain

    def read(path, most_bytes=None):
        if path == hanging:
            is_over.wait()  # as for a file system that is gone
        return read_plain(path, most_bytes)

    driver = rig.open_driver()
    driver.recover()
    driver.iterate()
    hanging.touch()
    monkeypatch.setattr(folders, "read_plain", read)
    for _ in range(40):
        driver.iterate()
        rig.launcher.wait(1.0)
    measured = [trial.trial for trial in driver.search.trials if trial.state is TrialState.MEASURED]
    assert measured == ["t0002", "t0003", "t0004"]
    assert driver.search.trial("t0001").attempts[0].unknown_since is not None
    is_over.set()


@pytest.mark.fault(40)
@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_clock_that_jumps_gives_no_negative_duration_and_no_lost_job(rig, jump_s):
    rig.limits = Limits(max_trials=3, parallel_trials=2)
    in_s(rig, 30, lambda: setattr(rig.cluster, "clock_ahead_s", jump_s))
    search = rig.run(books_are_uncertain=True)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert all(0 <= attempt.node_hours * 3600 <= attempt.reserved_s for attempt in search.attempts)


@pytest.mark.fault(46)
def test_a_requeue_that_breaks_the_budget_cancels_what_waits(rig):
    rig.script = lambda spec, restart: Script(duration_s=500.0, tokens_per_sec=speed_of(spec))
    rig.limits = Limits(max_trials=5, parallel_trials=3, budget_node_hours=3 * 720 / 3600 + 0.01)
    in_s(rig, 300, lambda: rig.cluster.requeue("1"))
    rig.cluster.drain_node("n3")
    rig.cluster.drain_node("n4")
    assert rig.run().end_reason is EndReason.BUDGET


@pytest.mark.fault(46)
def test_a_requeue_that_breaks_the_budget_gives_up_what_no_queue_has_taken_yet(rig, monkeypatch):
    rig.script = lambda spec, restart: Script(duration_s=590.0, tokens_per_sec=speed_of(spec))
    rig.limits = Limits(max_trials=2, parallel_trials=2, budget_node_hours=2 * 720 / 3600)
    rig.cluster.requeue_wait_s = 0.0
    submit = rig.slurm.submit

    def full_after_one(request):
        monkeypatch.setattr(rig.slurm, "submit", submit)
        accepted = submit(request)
        rig.slurm.submissions_busy(for_s=600.0)
        return accepted

    monkeypatch.setattr(rig.slurm, "submit", full_after_one)
    in_s(rig, 400, lambda: rig.cluster.requeue("1"))
    assert [trial.reason for trial in rig.run().trials] == [None, FailureReason.CANCELLED_BY_SEARCH]
    assert rig.slurm.most_alive("rig-aaaaaa.t0002.a1") == 0, "it was submitted only to be cancelled"


@pytest.mark.fault(37)
def test_a_node_with_a_gpu_in_use_is_left_and_the_trial_measured_elsewhere(rig):
    rig.limits = Limits(max_trials=3, parallel_trials=1)
    in_use = Script(duration_s=5.0, reason=FailureReason.GPU_MEMORY_IN_USE, excerpt="GPU 1 of n1: 40.00 of 79.10 GiB")
    is_first = lambda spec: (spec.trial, spec.attempt) == ("t0001", "a1")  # noqa: E731
    rig.script = lambda spec, restart: in_use if is_first(spec) else Script(tokens_per_sec=speed_of(spec))
    dirty, clean, *others = rig.run().attempts
    assert (dirty.reason, clean.state) == (FailureReason.GPU_MEMORY_IN_USE, TrialState.MEASURED)
    assert "40.00 of 79.10 GiB" in dirty.excerpt
    assert (clean.exclude, set(clean.nodes) & set(dirty.nodes)) == (dirty.nodes, set())
    assert {attempt.exclude for attempt in others} == {dirty.nodes}


# -- what the user has asked for


def test_the_first_jobs_wait_for_the_users_and_later_ones_do_not(rig):
    rig.options, rig.limits = JobOptions(dependency=DEPENDENCY), Limits(max_trials=3, parallel_trials=2)
    rig.cluster.unmet = {DEPENDENCY: "Dependency"}
    in_s(rig, 1000, rig.cluster.unmet.clear)
    search = rig.run()
    assert [job.request.is_first for job in rig.cluster.jobs()] == [True, True, False]
    assert min(attempt.started_at for attempt in search.attempts) >= search.created_at + 990
    assert search.end_reason is EndReason.MAX_TRIALS


def test_a_dependency_that_is_never_satisfied_ends_the_search_with_clear_words(rig):
    rig.options, rig.cluster.unmet = JobOptions(dependency=DEPENDENCY), {DEPENDENCY: "DependencyNeverSatisfied"}
    search = rig.run()
    assert search.end_reason is EndReason.SUBMISSION_REJECTED
    assert search.detail.startswith("DependencyNeverSatisfied: a job of launcher.slurm.dependency has not ended as")
    assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


@pytest.mark.parametrize("has_topology", [True, False])
def test_repeats_have_the_placement_and_each_attempt_the_leaves_of_its_nodes(rig, has_topology):
    rig.options = JobOptions(repeat_placement=Placement.ONE_SWITCH)
    rig.limits = Limits(max_trials=2, parallel_trials=2, finalists=1, finalist_repeats=1)
    leaves = {name: f"leaf{place // 2}" for place, name in enumerate(rig.cluster.nodes)} if has_topology else {}
    rig.slurm.leaf_of_node = leaves
    search = rig.run()
    attempts = {f"{search.search_id}.{a.trial}.{a.attempt}": (t, a) for t in search.trials for a in t.attempts}
    for job in rig.cluster.jobs():
        trial, attempt = attempts[job.request.name]
        assert job.request.is_repeat == (trial.kind is TrialKind.REPEAT)
        assert attempt.leaves == tuple(leaves[node] for node in attempt.nodes if leaves)


@pytest.mark.parametrize("purges_at_once", [False, True], ids=["controller", "accounting"])
def test_attempts_are_billed_by_units_and_hours_and_the_factor_of_their_qos(rig, purges_at_once):
    rig.slurm.limits = AssociationLimits((), (Qos("normal", usage_factor=0.5),))
    rig.cluster.billing_per_node, rig.cluster.purges_at_once = 40.0, purges_at_once
    search = rig.run()
    assert search.node_hours_used > 0
    assert search.billed_hours == pytest.approx(20.0 * search.node_hours_used)


def test_a_cluster_that_does_not_tell_leaves_billed_hours_unknown(rig):
    assert rig.run().billed_hours is None
