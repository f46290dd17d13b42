"""Faults of Slurm's commands and accounting, on a simulated cluster; at least one test for each."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.event_store import EventStore
from orchestrator.search.lease import LeaseLost
from orchestrator.search.stopping import Limits
from search_spaces.errors import ExternalError
from slurm.fake.jobs import JobPlan
from slurm.job_state import JobState
from tests.orchestrator.launchers.on_fake_slurm import POLL_S
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.slurm_rig import SlurmRig, one_attempt, slurm_rig, speed_of
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason, TrialState


@pytest.fixture
def rig(tmp_path) -> SlurmRig:
    return SlurmRig(tmp_path, limits=Limits(max_trials=3, parallel_trials=2))


def killed(*_: object) -> None:
    raise KeyboardInterrupt("the driver is killed here")


def run_until_killed(rig: SlurmRig, monkeypatch, **replaced) -> None:
    """Run a driver that is killed by these methods of its Slurm."""
    with monkeypatch.context() as patch:
        for name, action in replaced.items():
            patch.setattr(rig.slurm, name, action)
        with pytest.raises(KeyboardInterrupt):
            rig.open_driver().run()


@pytest.mark.slow
@pytest.mark.fault(1)
def test_a_driver_killed_before_sbatch_submits_once_after_its_resume(rig, monkeypatch):
    run_until_killed(rig, monkeypatch, submit=killed)
    assert rig.cluster.jobs() == []
    search = rig.open_driver().run()
    rig.check(search)
    assert search.end_reason is EndReason.MAX_TRIALS
    assert [len(trial.attempts) for trial in search.trials] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.fault(2)
def test_a_job_accepted_before_the_driver_was_killed_is_adopted_by_its_name(rig, monkeypatch):
    submit = rig.slurm.submit

    def accepted_then_killed(request):
        submit(request)
        killed()

    run_until_killed(rig, monkeypatch, submit=accepted_then_killed)
    [job] = rig.cluster.jobs()
    search = rig.open_driver().run()
    rig.check(search)
    assert one_attempt(search).job_id == job.job_id


@pytest.mark.fault(3)
def test_a_submission_that_timed_out_and_was_accepted_is_adopted(rig, logged):
    rig.slurm.submissions_time_out(times=1, appears_after_s=0.0)
    search = rig.open_driver().run()
    rig.check(search)
    assert len(search.trials) == 3
    assert any("no answer from Slurm" in note for note in logged)


@pytest.mark.fault(3)
def test_what_a_job_used_that_was_cancelled_before_anybody_had_heard_of_it_is_booked(rig):
    rig.script = lambda spec, restart: Script(duration_s=None)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.slurm.submissions_time_out(times=1, appears_after_s=0.0)
    rig.callbacks = replace(
        rig.callbacks, cancel_requested=lambda: rig.cluster.jobs() != [] and rig.cluster.time > began + 200
    )
    began, driver = rig.cluster.time, rig.open_driver()
    driver.recover()
    driver.iterate()
    rig.cluster.advance(250.0)
    driver.iterate()
    rig.check(driver.search)
    attempt = one_attempt(driver.search)
    assert (attempt.job_id, attempt.reason) == ("1", FailureReason.CANCELLED_BY_USER)
    assert attempt.node_hours * 3600 == pytest.approx(rig.slurm.used_node_s("rig-aaaaaa.t0001.a1"), abs=2)


@pytest.mark.slow
@pytest.mark.fault(4)
@pytest.mark.parametrize("late_s", [30.0, CONFIRM_WINDOW_S - 5])
def test_a_job_that_appears_within_the_confirm_window_is_adopted_and_not_submitted_again(rig, late_s):
    rig.slurm.submissions_time_out(times=1, appears_after_s=late_s)
    search = rig.open_driver().run()
    rig.check(search)
    assert len({job.request.name for job in rig.cluster.jobs()}) == len(rig.cluster.jobs()) == 3


@pytest.mark.fault(4)
def test_a_submission_that_never_was_is_repeated_after_the_window_and_not_before(rig):
    began = rig.cluster.time
    rig.slurm.submissions_time_out(times=1, appears_after_s=None)
    search = rig.open_driver().run()
    rig.check(search)
    assert one_attempt(search).job_id is not None
    [job] = [job for job in rig.cluster.jobs() if job.request.name.endswith("t0001.a1")]
    assert job.submitted_at - began >= CONFIRM_WINDOW_S


@pytest.mark.fault(4)
def test_a_twin_that_appears_after_the_window_is_cancelled(tmp_path):
    rig = slurm_rig(tmp_path, min_job_age_s=86400.0)
    rig.limits = Limits(max_trials=3, parallel_trials=2)
    rig.script = lambda spec, restart: Script(duration_s=400.0, tokens_per_sec=speed_of(spec))
    rig.slurm.submissions_time_out(times=1, appears_after_s=CONFIRM_WINDOW_S + 2 * POLL_S)
    search = rig.open_driver().run()
    rig.check(search, twins=True)
    elder, younger = [job for job in rig.cluster.jobs() if job.request.name.endswith("t0001.a1")]
    assert (elder.state, younger.state) == (JobState.COMPLETED, JobState.CANCELLED)
    assert one_attempt(search).job_id == elder.job_id


@pytest.mark.fault(5)
def test_an_id_with_a_warning_is_an_accepted_job(rig):
    rig.slurm.warning = "sbatch: warning: can't run 1 processes on 2 nodes, setting nnodes to 1"
    search = rig.open_driver().run()
    rig.check(search)
    assert search.state is SearchState.COMPLETED


@pytest.mark.slow
@pytest.mark.fault(6)
def test_a_full_queue_is_waited_for_and_costs_no_attempt(rig, logged):
    rig.slurm.submissions_busy(for_s=900.0)
    search = rig.open_driver().run()
    rig.check(search)
    assert [len(trial.attempts) for trial in search.trials] == [1, 1, 1]
    assert any("job submit limit" in note for note in logged)


@pytest.mark.slow
@pytest.mark.fault(6)
def test_a_busy_slurm_is_asked_less_and_less_often(rig, monkeypatch):
    submit, asked = rig.slurm.submit, []
    monkeypatch.setattr(rig.slurm, "submit", lambda request: asked.append(rig.slurm.now()) or submit(request))
    rig.slurm.submissions_busy(for_s=3600.0)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.open_driver().run()
    waits = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert len(asked) < 25
    assert waits[0] < waits[1] < waits[2] < waits[-1]


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
    search = rig.open_driver().run()
    rig.check(search, books_are_uncertain=True)
    assert [len(trial.attempts) for trial in search.trials] == [1, 1, 1]
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert len(asked) < 50, "an hour at the usual pace is 120 questions"
    assert any("does not answer" in note for note in logged)


@pytest.mark.fault(9)
def test_a_controller_that_was_down_changes_nothing(rig):
    rig.cluster.at(rig.cluster.time + 20, lambda: rig.cluster.controller_down(300.0))
    search = rig.open_driver().run()
    rig.check(search, books_are_uncertain=True)
    assert [len(trial.attempts) for trial in search.trials] == [1, 1, 1]
    assert search.state is SearchState.COMPLETED


@pytest.mark.fault(9)
def test_what_a_job_used_while_its_controller_was_away_is_booked_whatever_was_reserved(rig):
    rig.script = lambda spec, restart: Script(duration_s=None)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.cluster.at(rig.cluster.time + 100, lambda: rig.cluster.controller_down(3600.0))
    attempt = one_attempt(rig.open_driver().run())
    used_s = rig.slurm.used_node_s("rig-aaaaaa.t0001.a1")
    assert attempt.reason is FailureReason.TIME_LIMIT
    assert used_s > 3600 > attempt.reserved_s
    assert attempt.node_hours * 3600 == pytest.approx(used_s, abs=2)


@pytest.mark.fault(9)
def test_a_controller_that_is_down_at_the_start_is_no_spent_budget(rig):
    rig.limits = Limits(max_trials=1, parallel_trials=1, budget_node_hours=750 / 3600)
    rig.cluster.controller_down(60.0)
    search = rig.open_driver().run()
    rig.check(search)
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)


@pytest.mark.fault(10)
def test_without_accounting_results_and_the_controller_tell(tmp_path):
    rig = slurm_rig(tmp_path, has_accounting=False)
    rig.limits = Limits(max_trials=3, parallel_trials=2)
    rig.cluster.purges_at_once = True
    search = rig.open_driver().run()
    rig.check(search)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.fault(10)
def test_a_dead_accounting_daemon_is_no_death_of_a_job(rig):
    rig.cluster.purges_at_once = True
    rig.cluster.accounting_down(10**6)
    search = rig.open_driver().run()
    rig.check(search)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.fault(11)
def test_accounting_that_lags_or_lies_is_not_believed_before_it_is_final(rig):
    rig.cluster.purges_at_once = True
    rig.cluster.accounting.lag_s = 120.0
    rig.cluster.accounting_down(90.0, wrong_for_s=200.0)
    rig.script = lambda spec, restart: Script(tokens_per_sec=None, leaves_outcome=False)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    assert one_attempt(search).reason is FailureReason.SCRIPT_ERROR
    assert "exit code 1" in one_attempt(search).excerpt


@pytest.mark.fault(12)
@pytest.mark.parametrize("user", ["bob", "ann"])  # ann is who searches: squeue shows her other jobs too
def test_a_strangers_job_under_our_id_is_neither_adopted_nor_cancelled(rig, user):
    stranger = FakeStranger(rig, user)
    rig.cluster.at(rig.cluster.time + 25, stranger.takes_the_ids)
    rig.limits = Limits(max_trials=2, parallel_trials=1)
    search = rig.open_driver().run()
    assert stranger.jobs, "the controller lost nothing"
    assert all(job.state is JobState.RUNNING for job in stranger.jobs)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert [a.reason for a in search.trial("t0001").attempts] == [FailureReason.JOB_LOST, None]


@pytest.mark.fault(13)
def test_a_job_purged_before_the_first_look_is_told_by_its_outcome(tmp_path):
    rig = slurm_rig(tmp_path, has_accounting=False)
    rig.cluster.purges_at_once = True
    rig.script = lambda spec, restart: Script(duration_s=2.0, tokens_per_sec=speed_of(spec))
    rig.limits = Limits(max_trials=2, parallel_trials=1)
    search = rig.open_driver().run()
    rig.check(search)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.fault(13)
def test_a_job_purged_without_an_outcome_is_told_by_accounting(rig):
    rig.cluster.purges_at_once = True
    rig.script = lambda spec, restart: Script(duration_s=2.0, tokens_per_sec=None, leaves_outcome=False)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    search = rig.open_driver().run()
    assert one_attempt(search).reason is FailureReason.SCRIPT_ERROR


@pytest.mark.fault(13)
def test_a_job_that_came_and_went_while_no_driver_was_there_is_not_submitted_again(tmp_path, monkeypatch):
    rig = slurm_rig(tmp_path, has_accounting=False)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    submit = rig.slurm.submit

    def accepted_then_killed(request):
        submit(request)
        killed()

    run_until_killed(rig, monkeypatch, submit=accepted_then_killed)
    rig.cluster.advance(7200.0)
    assert rig.cluster.jobs() == [], "the controller has forgotten the job"
    search = rig.open_driver().run()
    rig.check(search)
    assert (one_attempt(search).state, one_attempt(search).job_id) == (TrialState.MEASURED, "unknown")


@pytest.mark.fault(17)
@pytest.mark.parametrize("hang", [False, True])
def test_a_cancel_that_fails_is_repeated_until_nothing_runs(rig, hang, logged):
    rig.script = lambda spec, restart: Script(duration_s=None)
    rig.slurm.failing_cancels, rig.slurm.cancels_hang = 3, hang
    asked = iter([False] * 20)
    rig.callbacks = type(rig.callbacks)(cancel_requested=lambda: next(asked, True))
    search = rig.open_driver().run()
    rig.check(search)
    assert search.state is SearchState.CANCELLED
    assert any("unreachable" in note for note in logged)
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_USER}


@pytest.mark.fault(14)
def test_a_driver_that_is_taken_over_between_two_launches_launches_nothing_more(rig):
    def taken_over() -> None:
        if rig.cluster.jobs():
            raise LeaseLost("another driver has come")

    rig.callbacks = replace(rig.callbacks, renew_lease=taken_over)
    with pytest.raises(LeaseLost):
        rig.open_driver().run()
    assert len(rig.cluster.jobs()) == 1


class FakeStranger:
    """Submit foreign jobs that get the job ids which a crashed controller issues a second time."""

    def __init__(self, rig: SlurmRig, user: str):
        self._rig = rig
        self._user = user
        self.jobs = []
        start = rig.cluster.on_start
        rig.cluster.on_start = lambda job: JobPlan() if job.name == "somebody-elses" else start(job)

    def takes_the_ids(self) -> None:
        mine = [job for job in self._rig.cluster.jobs() if not job.state.is_ended]
        self._rig.cluster.crash(loses_s=60.0)
        for job in mine:
            request = replace(job.request, name="somebody-elses", time_limit_s=10**6)
            self.jobs.append(self._rig.cluster.accept(self._user, request, job_id=job.job_id))


def refuse_to_write_down_a_launch(monkeypatch, error: Exception) -> None:
    """Raise this error at the first event of a launch, like a disk that is full just then."""
    record, errors = EventStore.record, iter([error])

    def refusing(history, kind, /, **data):
        if kind is EventKind.ATTEMPT_LAUNCHED and (found := next(errors, None)) is not None:
            raise found
        return record(history, kind, **data)

    monkeypatch.setattr(EventStore, "record", refusing)


def test_a_launch_that_cannot_be_written_down_at_once_is_written_down_later(rig, monkeypatch):
    refuse_to_write_down_a_launch(monkeypatch, OSError("no space left"))
    search = rig.open_driver().run()
    rig.check(search)
    assert len(rig.cluster.jobs()) == 3


def test_a_job_whose_id_the_last_driver_could_not_write_down_is_found_and_has_no_twin(rig, monkeypatch):
    refuse_to_write_down_a_launch(monkeypatch, ExternalError("the ledger is away"))
    with pytest.raises(ExternalError):
        rig.open_driver().run()
    rig.launcher.close()
    search = rig.open_driver().run()
    rig.check(search)
    assert len(rig.cluster.jobs()) == 3
