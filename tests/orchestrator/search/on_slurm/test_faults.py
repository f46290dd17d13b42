"""Faults of Slurm, of jobs, their nodes and their files, on a simulated cluster; at least one test for each."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest

from orchestrator.launchers.slurm import monitor
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.attempt_factory import SILENT_NODES_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.lease import LeaseLost
from orchestrator.search.stopping import Limits
from search_spaces.errors import ExternalError
from slurm.association_limits import AssociationLimits, Qos
from slurm.fake.jobs import JobPlan
from slurm.job_state import JobState
from slurm.request import JobOptions, Placement
from tests.orchestrator.scripted import Script
from tests.rig import POLL_S, Killed, Rig, attempts_of, one_attempt, speed_of
from trials.files import folders
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.trial import FailureReason, TrialKind, TrialState

ONE = Limits(max_trials=1, parallel_trials=1)


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(max_trials=3, parallel_trials=2))


def endless(spec, restart) -> Script:
    return Script(duration_s=None)


def run_until_killed(rig: Rig, monkeypatch, is_accepted: bool) -> None:
    """Run a driver that is killed before its first sbatch, or after it was accepted."""
    submit = rig.slurm.submit

    def killed(request):
        if is_accepted:
            submit(request)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(rig.slurm, "submit", killed)
        with pytest.raises(Killed):
            rig.run()


def all_measured_at_once(search: SearchRecord) -> bool:
    return all(trial.state is TrialState.MEASURED and len(trial.attempts) == 1 for trial in search.trials)


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_accepted",
    [pytest.param(False, marks=pytest.mark.fault(1)), pytest.param(True, marks=pytest.mark.fault(2))],
)
def test_a_driver_killed_around_sbatch_is_followed_by_one_that_has_one_job(rig, monkeypatch, is_accepted):
    run_until_killed(rig, monkeypatch, is_accepted)
    before = [job.job_id for job in rig.cluster.jobs()]
    assert len(before) == is_accepted
    search = rig.run()
    assert all_measured_at_once(search)
    assert search.end_reason is EndReason.MAX_TRIALS
    assert not is_accepted or [one_attempt(search).job_id] == before, "adopted by its name"


@pytest.mark.fault(3)
def test_what_a_job_used_that_was_cancelled_before_anybody_had_heard_of_it_is_booked(rig):
    rig.limits, rig.script, began = ONE, endless, rig.cluster.time
    rig.slurm.submissions_time_out(times=1, appears_after_s=0.0)
    is_due = lambda: rig.cluster.jobs() != [] and rig.cluster.time > began + 200  # noqa: E731
    rig.callbacks = DriverCallbacks(cancel_requested=is_due)
    driver = rig.open_driver()
    driver.recover()
    driver.iterate()
    rig.cluster.advance(250.0)
    driver.iterate()
    rig.check(driver.search)
    attempt = one_attempt(driver.search)
    assert (attempt.job_id, attempt.reason) == ("1", FailureReason.CANCELLED_BY_USER)
    assert attempt.node_hours * 3600 == pytest.approx(rig.slurm.used_node_s("rig-aaaaaa.t0001.a1"), abs=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "late_s",
    [
        pytest.param(0.0, marks=pytest.mark.fault(3)),
        pytest.param(30.0, marks=pytest.mark.fault(4)),
        pytest.param(CONFIRM_WINDOW_S - 5, marks=pytest.mark.fault(4)),
    ],
)
def test_a_job_that_appears_within_the_confirm_window_is_adopted_and_not_submitted_again(rig, late_s, logged):
    rig.slurm.submissions_time_out(times=1, appears_after_s=late_s)
    rig.run()
    assert len({job.request.name for job in rig.cluster.jobs()}) == len(rig.cluster.jobs()) == 3
    assert any("no answer from Slurm" in note for note in logged)


@pytest.mark.fault(4)
def test_a_submission_that_never_was_is_repeated_after_the_window_and_not_before(rig):
    began = rig.cluster.time
    rig.slurm.submissions_time_out(times=1, appears_after_s=None)
    assert one_attempt(rig.run()).job_id is not None
    [job] = [job for job in rig.cluster.jobs() if job.request.name.endswith("t0001.a1")]
    assert job.submitted_at - began >= CONFIRM_WINDOW_S


@pytest.mark.fault(4)
def test_a_twin_that_appears_after_the_window_is_cancelled(tmp_path):
    rig = Rig("jobs", tmp_path, Limits(3, 2), settings={"min_job_age_s": 86400.0})
    rig.script = lambda spec, restart: Script(duration_s=400.0, tokens_per_sec=speed_of(spec))
    rig.slurm.submissions_time_out(times=1, appears_after_s=CONFIRM_WINDOW_S + 2 * POLL_S)
    search = rig.run(twins=True)
    elder, younger = [job for job in rig.cluster.jobs() if job.request.name.endswith("t0001.a1")]
    assert (elder.state, younger.state) == (JobState.COMPLETED, JobState.CANCELLED)
    assert one_attempt(search).job_id == elder.job_id


@pytest.mark.fault(5)
def test_an_id_with_a_warning_is_an_accepted_job(rig):
    rig.slurm.warning = "sbatch: warning: can't run 1 processes on 2 nodes, setting nnodes to 1"
    assert rig.run().state is SearchState.COMPLETED


@pytest.mark.slow
@pytest.mark.fault(6)
def test_a_full_queue_is_waited_for_and_costs_no_attempt(one, logged):
    one.slurm.submissions_busy(for_s=3600.0)
    assert all_measured_at_once(one.run())
    assert any("job submit limit" in note for note in logged)


@pytest.mark.fault(7)
def test_what_slurm_refuses_for_good_ends_the_search_with_its_words(rig):
    rig.slurm.submissions_refused("Invalid account or account/partition combination specified")
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.SUBMISSION_REJECTED)
    assert "Invalid account" in search.detail
    assert len(search.trials) <= 2
    assert rig.cluster.jobs() == []


@pytest.mark.fault(8)
def test_an_hour_without_an_answer_freezes_the_states_and_slows_the_questions(rig, monkeypatch, logged):
    jobs, asked = rig.slurm.jobs, []
    monkeypatch.setattr(rig.slurm, "jobs", lambda: asked.append(rig.cluster.time) or jobs())
    rig.cluster.at(rig.cluster.time + 40, lambda: rig.cluster.controller_hung(3600.0))
    assert all_measured_at_once(rig.run(books_are_uncertain=True))
    assert len(asked) < 50, "an hour at the usual pace is 120 questions"
    assert any("does not answer" in note for note in logged)


@pytest.mark.fault(9)
def test_what_a_job_used_while_its_controller_was_away_is_booked_whatever_was_reserved(rig):
    rig.limits, rig.script = ONE, endless
    rig.cluster.at(rig.cluster.time + 100, lambda: rig.cluster.controller_down(3600.0))
    attempt = one_attempt(rig.run())
    used_s = rig.slurm.used_node_s("rig-aaaaaa.t0001.a1")
    assert attempt.reason is FailureReason.TIME_LIMIT
    assert used_s > 3600 > attempt.reserved_s
    assert attempt.node_hours * 3600 == pytest.approx(used_s, abs=2)


@pytest.mark.fault(9)
def test_a_controller_that_is_down_at_the_start_is_no_spent_budget(rig):
    rig.limits = replace(ONE, budget_node_hours=750 / 3600)
    rig.cluster.controller_down(60.0)
    assert rig.run().end_reason is EndReason.MAX_TRIALS


@pytest.mark.parametrize(
    ("has_accounting", "duration_s"),
    [
        pytest.param(False, 60.0, marks=pytest.mark.fault(10), id="no accounting"),
        pytest.param(True, 60.0, marks=pytest.mark.fault(10), id="a dead daemon"),
        pytest.param(False, 2.0, marks=pytest.mark.fault(13), id="purged before the first look"),
    ],
)
def test_a_job_purged_by_a_controller_without_accounting_is_told_by_its_outcome(tmp_path, has_accounting, duration_s):
    rig = Rig("jobs", tmp_path, Limits(3, 2), settings={"has_accounting": has_accounting})
    rig.script = lambda spec, restart: Script(duration_s=duration_s, tokens_per_sec=speed_of(spec))
    rig.cluster.purges_at_once = True
    rig.cluster.accounting_down(10**6)
    assert all_measured_at_once(rig.run())


@pytest.mark.fault(11)
def test_accounting_that_lags_or_lies_is_not_believed_before_it_is_final(rig):
    rig.cluster.purges_at_once = True
    rig.cluster.accounting.lag_s = 120.0
    rig.cluster.accounting_down(90.0, wrong_for_s=200.0)
    rig.limits, rig.script = ONE, lambda spec, restart: Script(tokens_per_sec=None, leaves_outcome=False)
    attempt = one_attempt(rig.run())
    assert attempt.reason is FailureReason.SCRIPT_ERROR
    assert "exit code 1" in attempt.excerpt


@pytest.mark.fault(12)
@pytest.mark.parametrize("user", ["bob", "ann"])  # ann is who searches: squeue shows her other jobs too
def test_a_strangers_job_under_our_id_is_neither_adopted_nor_cancelled(rig, user):
    """A crashed controller issues job ids a second time."""
    jobs, start = [], rig.cluster.on_start
    rig.cluster.on_start = lambda job: JobPlan() if job.name == "somebody-elses" else start(job)

    def strangers_take_the_ids() -> None:
        mine = [job for job in rig.cluster.jobs() if not job.state.is_ended]
        rig.cluster.crash(loses_s=60.0)
        for job in mine:
            request = replace(job.request, name="somebody-elses", time_limit_s=10**6)
            jobs.append(rig.cluster.accept(user, request, job_id=job.job_id))

    rig.cluster.at(rig.cluster.time + 25, strangers_take_the_ids)
    rig.limits = Limits(max_trials=2, parallel_trials=1)
    search = rig.open_driver().run()
    assert jobs, "the controller lost nothing"
    assert all(job.state is JobState.RUNNING for job in jobs)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert [a.reason for a in search.trial("t0001").attempts] == [FailureReason.JOB_LOST, None]


@pytest.mark.fault(13)
def test_a_job_that_came_and_went_while_no_driver_was_there_is_not_submitted_again(tmp_path, monkeypatch):
    rig = Rig("jobs", tmp_path, ONE, settings={"has_accounting": False})
    run_until_killed(rig, monkeypatch, is_accepted=True)
    rig.cluster.advance(7200.0)
    assert rig.cluster.jobs() == [], "the controller has forgotten the job"
    attempt = one_attempt(rig.run())
    assert (attempt.state, attempt.job_id) == (TrialState.MEASURED, "unknown")


@pytest.mark.fault(17)
@pytest.mark.parametrize("hang", [False, True])
def test_a_cancel_that_fails_is_repeated_until_nothing_runs(rig, hang, logged):
    rig.script, asked = endless, iter([False] * 20)
    rig.slurm.failing_cancels, rig.slurm.cancels_hang = 3, hang
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: next(asked, True))
    search = rig.run()
    assert search.state is SearchState.CANCELLED
    assert any("unreachable" in note for note in logged)
    assert {attempt.reason for attempt in attempts_of(search)} == {FailureReason.CANCELLED_BY_USER}


@pytest.mark.fault(14)
def test_a_driver_that_is_taken_over_between_two_launches_launches_nothing_more(rig):
    def taken_over() -> None:
        if rig.cluster.jobs():
            raise LeaseLost("another driver has come")

    rig.callbacks = DriverCallbacks(renew_lease=taken_over)
    with pytest.raises(LeaseLost):
        rig.run()
    assert len(rig.cluster.jobs()) == 1


@pytest.mark.parametrize("error", [OSError("no space left"), ExternalError("the ledger is away")])
def test_a_launch_that_cannot_be_written_down_at_once_is_written_down_later_and_has_no_twin(rig, monkeypatch, error):
    """By the same driver where its disk was full just then, or by the next one."""
    record, errors = EventStore.record, iter([error])

    def refusing(history, kind, /, **data):
        if kind is EventKind.ATTEMPT_LAUNCHED and (found := next(errors, None)) is not None:
            raise found
        return record(history, kind, **data)

    monkeypatch.setattr(EventStore, "record", refusing)
    if isinstance(error, ExternalError):
        with pytest.raises(ExternalError):
            rig.run()
        rig.launcher.close()
    rig.run()
    assert len(rig.cluster.jobs()) == 3


DEPENDENCY = "afterok:12345"


@pytest.fixture
def one(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(max_trials=1, parallel_trials=1))


def in_s(rig: Rig, seconds: float, action) -> None:
    rig.cluster.at(rig.cluster.time + seconds, action)


def turns_of_a_second(rig: Rig, driver: Driver, seconds: float) -> None:
    for _ in range(int(seconds)):
        driver.iterate()
        rig.cluster.advance(1.0)


@pytest.mark.fault(18)
def test_a_requeued_job_is_the_next_restart_of_its_attempt(one):
    one.script = lambda spec, restart: Script(duration_s=100.0, tokens_per_sec=1000.0 + restart)
    in_s(one, 45, lambda: one.cluster.requeue("1"))
    search = one.run()
    attempt = one_attempt(search)
    assert (attempt.job_id, attempt.restart, attempt.outcome.restart) == ("1", 1, 1)
    assert search.trial("t0001").measured.tokens_per_sec == 1001.0
    assert attempt.node_hours * 3600 >= 100 + 40


@pytest.mark.fault(18)
def test_an_outcome_of_the_run_before_the_requeue_is_ignored(one):
    one.script = lambda spec, restart: Script(duration_s=60.0, tokens_per_sec=5000.0 if restart == 0 else 1000.0)
    in_s(one, 61.5, lambda: one.cluster.requeue("1") if one.cluster.job("1").state is JobState.RUNNING else None)
    attempt = one_attempt(one.run())
    assert attempt.outcome.restart == attempt.restart


@pytest.mark.fault(18)
@pytest.mark.parametrize(("duration_s", "seen_for_s"), [(100.0, 1.0), (None, 300.0)], ids=["outcome", "job log"])
def test_a_requeue_that_nobody_saw_is_counted_by_the_jobs_own_files(one, duration_s, seen_for_s):
    one.script = lambda spec, restart: Script(duration_s=duration_s)
    driver = one.open_driver()
    driver.recover()
    turns_of_a_second(one, driver, seen_for_s)
    one.cluster.advance(20.0)
    one.cluster.requeue("1")
    one.cluster.advance(3600.0)
    assert one.cluster.jobs() == [], "the controller has forgotten the job"
    attempt = one_attempt(one.run())
    assert attempt.restart == 1
    assert duration_s is None or attempt.outcome.restart == 1


@pytest.mark.fault(18)
def test_a_requeued_job_is_queued_until_it_starts_again(one):
    """Also if seen during the cleanup of its first run, when Slurm already reports it as restarted."""
    one.cluster.on_start = lambda job: JobPlan(400.0, completing_s=3 * POLL_S)
    driver = one.open_driver()
    driver.recover()
    turns_of_a_second(one, driver, 2 * POLL_S)
    assert one_attempt(driver.search).state is TrialState.RUNNING
    one.cluster.requeue("1")
    put_back_at = one.cluster.time
    turns_of_a_second(one, driver, 1.5 * POLL_S)
    assert one.cluster.job("1").state is JobState.COMPLETING
    assert one_attempt(driver.search).state is TrialState.QUEUED
    turns_of_a_second(one, driver, 3 * POLL_S)
    waits = one_attempt(driver.search)
    assert (waits.state, waits.waits_for) == (TrialState.QUEUED, "BeginTime")
    turns_of_a_second(one, driver, 120.0 + 2 * POLL_S)
    again = one_attempt(driver.search)
    assert (again.state, again.restart, again.waits_for) == (TrialState.RUNNING, 1, None)
    assert again.started_at >= put_back_at + 120.0


@pytest.mark.fault(19)
def test_a_failed_node_costs_a_retry_elsewhere_soon(one):
    in_s(one, 20, lambda: one.cluster.fail_node("n1"))
    in_s(one, 25, lambda: one.cluster.resume_node("n1"))
    began = one.cluster.cluster_time
    first, second = one.run().trial("t0001").attempts
    assert (first.reason, first.nodes) == (FailureReason.NODE_FAILURE, ("n1",))
    assert (second.exclude, second.state) == (("n1",), TrialState.MEASURED)
    assert "n1" not in second.nodes
    assert first.ended_at - began == pytest.approx(20, abs=1)
    assert second.submitted_at - first.ended_at < POLL_S + SILENT_NODES_GRACE_S + 5


@pytest.mark.fault(20)
def test_a_job_that_slurm_ends_at_its_limit_is_a_time_limit_and_no_more(one):
    one.script = lambda spec, restart: Script(duration_s=None)
    attempt = one_attempt(one.run())
    assert attempt.reason is FailureReason.TIME_LIMIT
    assert attempt.node_hours * 3600 <= attempt.reserved_s


@pytest.mark.fault(24)
def test_a_job_that_fails_after_its_result_is_measured_and_flagged(one):
    start = one.cluster.on_start
    one.cluster.on_start = lambda job: replace(start(job), exit_code=1)
    assert one.run().trial("t0001").flags == ("failed_after_result",)


@pytest.mark.fault(22)
def test_what_the_kernel_killed_for_memory_is_host_oom(one):
    one.cluster.on_start = lambda job: JobPlan(30.0, ends_as=JobState.OUT_OF_MEMORY)
    assert one_attempt(one.run()).reason is FailureReason.HOST_OOM


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
def test_a_clock_that_jumps_gives_no_negative_duration_and_no_lost_job(one, jump_s):
    one.limits = Limits(max_trials=3, parallel_trials=2)
    in_s(one, 30, lambda: setattr(one.cluster, "clock_ahead_s", jump_s))
    search = one.run(books_are_uncertain=True)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert all(0 <= attempt.node_hours * 3600 <= attempt.reserved_s for attempt in attempts_of(search))


@pytest.mark.fault(46)
def test_a_requeue_that_breaks_the_budget_cancels_what_waits(one):
    one.script = lambda spec, restart: Script(duration_s=500.0, tokens_per_sec=speed_of(spec))
    one.limits = Limits(max_trials=5, parallel_trials=3, budget_node_hours=3 * 720 / 3600 + 0.01)
    in_s(one, 300, lambda: one.cluster.requeue("1"))
    one.cluster.drain_node("n3")
    one.cluster.drain_node("n4")
    assert one.run().end_reason is EndReason.BUDGET


@pytest.mark.fault(46)
def test_a_requeue_that_breaks_the_budget_gives_up_what_no_queue_has_taken_yet(one, monkeypatch):
    one.script = lambda spec, restart: Script(duration_s=590.0, tokens_per_sec=speed_of(spec))
    one.limits = Limits(max_trials=2, parallel_trials=2, budget_node_hours=2 * 720 / 3600)
    one.cluster.requeue_wait_s = 0.0
    submit = one.slurm.submit

    def full_after_one(request):
        monkeypatch.setattr(one.slurm, "submit", submit)
        accepted = submit(request)
        one.slurm.submissions_busy(for_s=600.0)
        return accepted

    monkeypatch.setattr(one.slurm, "submit", full_after_one)
    in_s(one, 400, lambda: one.cluster.requeue("1"))
    assert [trial.reason for trial in one.run().trials] == [None, FailureReason.CANCELLED_BY_SEARCH]
    assert one.slurm.most_alive("rig-aaaaaa.t0002.a1") == 0, "it was submitted only to be cancelled"


@pytest.mark.fault(37)
def test_a_node_with_a_gpu_in_use_is_left_and_the_trial_measured_elsewhere(one):
    one.limits = Limits(max_trials=3, parallel_trials=1)
    in_use = Script(duration_s=5.0, reason=FailureReason.GPU_MEMORY_IN_USE, excerpt="GPU 1 of n1: 40.00 of 79.10 GiB")
    is_first = lambda spec: (spec.trial, spec.attempt) == ("t0001", "a1")  # noqa: E731
    one.script = lambda spec, restart: in_use if is_first(spec) else Script(tokens_per_sec=speed_of(spec))
    dirty, clean, *others = attempts_of(one.run())
    assert (dirty.reason, clean.state) == (FailureReason.GPU_MEMORY_IN_USE, TrialState.MEASURED)
    assert "40.00 of 79.10 GiB" in dirty.excerpt
    assert (clean.exclude, set(clean.nodes) & set(dirty.nodes)) == (dirty.nodes, set())
    assert {attempt.exclude for attempt in others} == {dirty.nodes}


# -- what the user has asked for


def test_the_first_jobs_wait_for_the_users_and_later_ones_do_not(one):
    one.options, one.limits = JobOptions(dependency=DEPENDENCY), Limits(max_trials=3, parallel_trials=2)
    one.cluster.unmet = {DEPENDENCY: "Dependency"}
    in_s(one, 1000, one.cluster.unmet.clear)
    search = one.run()
    assert [job.request.is_first for job in one.cluster.jobs()] == [True, True, False]
    assert min(attempt.started_at for attempt in attempts_of(search)) >= search.created_at + 990
    assert search.end_reason is EndReason.MAX_TRIALS


def test_a_dependency_that_is_never_satisfied_ends_the_search_with_clear_words(one):
    one.options, one.cluster.unmet = JobOptions(dependency=DEPENDENCY), {DEPENDENCY: "DependencyNeverSatisfied"}
    search = one.run()
    assert search.end_reason is EndReason.SUBMISSION_REJECTED
    assert search.detail.startswith("DependencyNeverSatisfied: a job of launcher.slurm.dependency has not ended as")
    assert {trial.reason for trial in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


@pytest.mark.parametrize("has_topology", [True, False])
def test_repeats_have_the_placement_and_each_attempt_the_leaves_of_its_nodes(one, has_topology):
    one.options = JobOptions(repeat_placement=Placement.ONE_SWITCH)
    one.limits = Limits(max_trials=2, parallel_trials=2, finalists=1, finalist_repeats=1)
    leaves = {name: f"leaf{place // 2}" for place, name in enumerate(one.cluster.nodes)} if has_topology else {}
    one.slurm.leaf_of_node = leaves
    search = one.run()
    attempts = {f"{search.search_id}.{a.trial}.{a.attempt}": (t, a) for t in search.trials for a in t.attempts}
    for job in one.cluster.jobs():
        trial, attempt = attempts[job.request.name]
        assert job.request.is_repeat == (trial.kind is TrialKind.REPEAT)
        assert attempt.leaves == tuple(leaves[node] for node in attempt.nodes if leaves)


@pytest.mark.parametrize("purges_at_once", [False, True], ids=["controller", "accounting"])
def test_attempts_are_billed_by_units_and_hours_and_the_factor_of_their_qos(one, purges_at_once):
    one.slurm.limits = AssociationLimits((), (Qos("normal", usage_factor=0.5),))
    one.cluster.billing_per_node, one.cluster.purges_at_once = 40.0, purges_at_once
    search = one.run()
    assert search.node_hours_used > 0
    assert search.billed_hours == pytest.approx(20.0 * search.node_hours_used)


def test_a_cluster_that_does_not_tell_leaves_billed_hours_unknown(one):
    assert one.run().billed_hours is None
