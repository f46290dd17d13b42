"""Faults of jobs, their nodes and their files, on a simulated cluster; at least one test for each."""

from __future__ import annotations

from threading import Event

import pytest

from orchestrator.launchers.slurm import monitor
from orchestrator.search.attempt_factory import SILENT_NODES_GRACE_S
from orchestrator.search.driver import Driver
from orchestrator.search.stopping import Limits
from slurm.fake.jobs import JobPlan
from slurm.job_state import JobState
from tests.orchestrator.launchers.on_fake_slurm import POLL_S
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.slurm_rig import SlurmRig, one_attempt, slurm_rig, speed_of
from trials.files import folders
from trials.files.folders import SearchFolder
from trials.ledger.events import EndReason
from trials.trial import FailureReason, TrialState


@pytest.fixture
def rig(tmp_path) -> SlurmRig:
    return SlurmRig(tmp_path, limits=Limits(max_trials=3, parallel_trials=2))


@pytest.mark.fault(18)
def test_a_requeued_job_is_the_next_restart_of_its_attempt(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.script = lambda spec, restart: Script(duration_s=100.0, tokens_per_sec=1000.0 + restart)
    rig.cluster.at(rig.cluster.time + 45, lambda: rig.cluster.requeue("1"))
    search = rig.open_driver().run()
    rig.check(search)
    attempt = one_attempt(search)
    assert (attempt.job_id, attempt.restart, attempt.outcome.restart) == ("1", 1, 1)
    assert search.trial("t0001").measured.tokens_per_sec == 1001.0
    assert attempt.node_hours * 3600 >= 100 + 40


@pytest.mark.fault(18)
def test_an_outcome_of_the_run_before_the_requeue_is_ignored(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)

    rig.script = lambda spec, restart: Script(duration_s=60.0, tokens_per_sec=5000.0 if restart == 0 else 1000.0)
    rig.cluster.at(rig.cluster.time + 61.5, lambda: _requeue_if_running(rig))
    search = rig.open_driver().run()
    rig.check(search)
    attempt = one_attempt(search)
    assert attempt.outcome.restart == attempt.restart


@pytest.mark.fault(18)
def test_a_requeue_that_only_accounting_remembers_is_counted_by_the_jobs_own_files(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.script = lambda spec, restart: Script(duration_s=100.0, tokens_per_sec=1000.0 + restart)
    driver = rig.open_driver()
    driver.recover()
    driver.iterate()
    rig.cluster.advance(20.0)
    rig.cluster.requeue("1")
    rig.cluster.advance(3600.0)
    assert rig.cluster.jobs() == [], "the controller has forgotten the job"
    search = rig.open_driver().run()
    rig.check(search)
    assert one_attempt(search).outcome.restart == one_attempt(search).restart == 1


@pytest.mark.fault(18)
def test_a_requeue_that_nobody_saw_is_counted_by_the_jobs_log_where_its_ranks_left_nothing(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.script = lambda spec, restart: Script(duration_s=None)
    driver = rig.open_driver()
    driver.recover()
    turns_of_a_second(rig, driver, 300.0)
    assert one_attempt(driver.search).state is TrialState.RUNNING
    rig.cluster.requeue("1")
    rig.cluster.advance(3600.0)
    assert rig.cluster.jobs() == [], "the controller has forgotten the job"
    search = rig.open_driver().run()
    rig.check(search)
    assert one_attempt(search).restart == 1


@pytest.mark.fault(18)
def test_a_requeued_job_is_queued_until_it_starts_again(rig):
    """Also if seen during the cleanup of its first run, when Slurm already reports it as restarted."""
    rig.limits = Limits(max_trials=1, parallel_trials=1)
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


def test_a_suspended_job_is_running_and_shown_as_suspended(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.script = lambda spec, restart: Script(duration_s=400.0)
    driver = rig.open_driver()
    driver.recover()
    turns_of_a_second(rig, driver, 2 * POLL_S)
    job, said = rig.cluster.job("1"), []
    for state in (JobState.SUSPENDED, JobState.RUNNING):
        job.state = state
        turns_of_a_second(rig, driver, 2 * POLL_S)
        attempt = one_attempt(driver.search)
        said.append((attempt.state, attempt.waits_for))
    assert said == [(TrialState.RUNNING, "suspended"), (TrialState.RUNNING, None)]


def turns_of_a_second(rig: SlurmRig, driver: Driver, seconds: float) -> None:
    for _ in range(int(seconds)):
        driver.iterate()
        rig.cluster.advance(1.0)


@pytest.mark.fault(19)
def test_a_failed_node_costs_a_retry_elsewhere(rig):
    rig.cluster.at(rig.cluster.time + 20, lambda: rig.cluster.fail_node("n1"))
    rig.cluster.at(rig.cluster.time + 25, lambda: rig.cluster.resume_node("n1"))
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    rig.check(search)
    first, second = search.trial("t0001").attempts
    assert (first.reason, first.nodes) == (FailureReason.NODE_FAILURE, ("n1",))
    assert (second.exclude, second.state) == (("n1",), TrialState.MEASURED)
    assert "n1" not in second.nodes


@pytest.mark.fault(19)
def test_the_slot_of_a_failed_node_is_free_again_soon(rig):
    rig.cluster.at(rig.cluster.time + 20, lambda: rig.cluster.fail_node("n1"))
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    began = rig.cluster.cluster_time
    first, second = rig.open_driver().run().trial("t0001").attempts
    assert first.ended_at - began == pytest.approx(20, abs=1)
    assert second.submitted_at - first.ended_at < POLL_S + SILENT_NODES_GRACE_S + 5


@pytest.mark.fault(19)
def test_nodes_that_keep_failing_are_tried_twice_again_and_no_more(rig):
    rig.script = lambda spec, restart: Script(duration_s=None)
    for index in range(1, 5):
        _fail_whatever_runs(rig, at=rig.cluster.time + 200.0 * index)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    rig.check(search)
    assert [a.reason for a in search.trial("t0001").attempts] == [FailureReason.NODE_FAILURE] * 3


@pytest.mark.fault(20)
def test_a_job_that_slurm_ends_at_its_limit_is_a_time_limit_and_no_more(rig):
    rig.script = lambda spec, restart: Script(duration_s=None)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    rig.check(search)
    attempt = one_attempt(search)
    assert attempt.reason is FailureReason.TIME_LIMIT
    assert attempt.node_hours * 3600 <= attempt.reserved_s


@pytest.mark.fault(24)
def test_a_job_that_fails_after_its_result_is_measured_and_flagged(rig):
    start = rig._start

    def fails_afterwards(job):
        plan = start(job)
        return type(plan)(plan.duration_s, exit_code=1, on_end=plan.on_end)

    rig.cluster.on_start = fails_afterwards
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    rig.check(search)
    assert search.trial("t0001").flags == ("failed_after_result",)


@pytest.mark.fault(22)
def test_what_the_kernel_killed_for_memory_is_host_oom(rig):
    start = rig._start

    def out_of_memory(job):
        return type(start(job))(30.0, ends_as=JobState.OUT_OF_MEMORY)

    rig.cluster.on_start = out_of_memory
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    assert one_attempt(search).reason is FailureReason.HOST_OOM


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_folder_that_hangs_holds_up_its_own_attempt_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(monitor, "FOLDER_TIMEOUT_S", 0.1)
    monkeypatch.setattr("orchestrator.search.attempt_factory.FOLDER_TIMEOUT_S", 0.1)
    rig = slurm_rig(tmp_path, has_accounting=False)
    rig.limits = Limits(max_trials=4, parallel_trials=2)
    rig.cluster.purges_at_once = True
    hanging, is_over = SearchFolder(tmp_path / "runs" / "rig-aaaaaa").attempt("t0001", "a1").outcome(), Event()
    read_plain = folders.read_plain

    def read(path, most_bytes=None):
        if path == hanging:
            is_over.wait()
        return read_plain(path, most_bytes)

    def script(spec, restart):
        return Script(tokens_per_sec=speed_of(spec), leaves_outcome=spec.trial != "t0001")

    rig.script = script
    driver = rig.open_driver()
    driver.recover()
    driver.iterate()
    hanging.touch()
    monkeypatch.setattr(folders, "read_plain", read)  # waits, as for a file system that is gone
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
    def jump() -> None:
        rig.cluster.clock_ahead_s = jump_s

    rig.cluster.at(rig.cluster.time + 30, jump)
    search = rig.open_driver().run()
    attempts = [attempt for trial in search.trials for attempt in trial.attempts]
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert all(0 <= attempt.node_hours * 3600 <= attempt.reserved_s for attempt in attempts)


@pytest.mark.fault(46)
def test_a_requeue_that_breaks_the_budget_cancels_what_waits(rig):
    rig.script = lambda spec, restart: Script(duration_s=500.0, tokens_per_sec=speed_of(spec))
    longest_h = 720 / 3600
    rig.limits = Limits(max_trials=5, parallel_trials=3, budget_node_hours=3 * longest_h + 0.01)
    rig.cluster.at(rig.cluster.time + 300, lambda: rig.cluster.requeue("1"))
    rig.cluster.drain_node("n3")
    rig.cluster.drain_node("n4")
    search = rig.open_driver().run()
    rig.check(search)
    assert search.end_reason is EndReason.BUDGET


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
    rig.cluster.at(rig.cluster.time + 400, lambda: rig.cluster.requeue("1"))
    search = rig.open_driver().run()
    rig.check(search)
    assert [trial.reason for trial in search.trials] == [None, FailureReason.CANCELLED_BY_SEARCH]
    assert rig.slurm.most_alive(f"{search.search_id}.t0002.a1") == 0, "it was submitted only to be cancelled"


def _requeue_if_running(rig: SlurmRig) -> None:
    for job in rig.cluster.jobs():
        if job.state is JobState.RUNNING:
            rig.cluster.requeue(job.job_id)


def _fail_whatever_runs(rig: SlurmRig, at: float) -> None:
    def fail() -> None:
        for job in rig.cluster.jobs():
            if job.state is JobState.RUNNING:
                rig.cluster.fail_node(job.nodes[0])

    rig.cluster.at(at, fail)
