"""Faults of Slurm's commands and accounting, on a simulated cluster; at least one test for each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.event_store import EventStore
from orchestrator.search.lease import LeaseLost
from orchestrator.search.stopping import Limits
from search_spaces.errors import ExternalError
from slurm.job_state import JobState
from tests.fake_slurm.jobs import JobPlan
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_crashes import KillPoint, counting
from tests.rig import POLL_S, Killed, Rig, one_attempt, speed_of
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.trial import FailureReason, TrialState

ONE = Limits(max_trials=1, parallel_trials=1)


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig("jobs", tmp_path, Limits(max_trials=3, parallel_trials=2))


def endless(spec, restart) -> Script:
    return Script(duration_s=None)


def all_measured_at_once(search: SearchRecord) -> bool:
    return all(trial.state is TrialState.MEASURED and len(trial.attempts) == 1 for trial in search.trials)


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
def test_a_full_queue_is_waited_for_and_costs_no_attempt(rig, logged):
    rig.slurm.submissions_busy(for_s=3600.0)
    rig.limits = ONE
    assert all_measured_at_once(rig.run())
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
def test_a_job_that_came_and_went_while_no_driver_was_there_is_not_submitted_again(tmp_path):
    rig = Rig("jobs", tmp_path, ONE, settings={"has_accounting": False})
    with counting("jobs", "sbatch", KillPoint(1, after=True)), pytest.raises(Killed):
        rig.run()
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
    assert {attempt.reason for attempt in search.attempts} == {FailureReason.CANCELLED_BY_USER}


@pytest.mark.fault(14)
def test_a_driver_that_is_taken_over_between_two_launches_launches_nothing_more(rig):
    def taken_over() -> None:
        if rig.cluster.jobs():
            raise LeaseLost("another driver has come")

    rig.callbacks = DriverCallbacks(heartbeat=taken_over)
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
