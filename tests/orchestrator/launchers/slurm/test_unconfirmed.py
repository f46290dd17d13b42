"""Slurm launcher on a simulated cluster: query rate, clocks, lost jobs, twins, and unconfirmed submissions."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest

from orchestrator.launchers.base import LaunchPostponed
from orchestrator.launchers.slurm.queries import LONGEST_INTERVAL_S
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.node_hours import node_hours_of
from slurm.job_state import JobState
from tests.fake_slurm.cluster import FAKE_SETTINGS
from tests.fake_slurm.jobs import JobPlan
from tests.orchestrator.launchers.attempts import poll_one
from tests.rig import POLL_S, JobsBench
from trials.attempt_result import Liveness
from trials.trial import Attempt, FailureReason

LONGEST_S = 600 + 60 + FAKE_SETTINGS.kill_wait_s
"""What is reserved for an attempt of 600 s."""


def launch_until_accepted(bench: JobsBench, request, submissions: int = 10**9) -> tuple[str | None, set[str]]:
    """Launch every half second, as a driver does: the job's id, and the reasons of the waits."""
    words: set[str] = set()
    while len(bench.asked["submit"]) < submissions:
        try:
            return bench.launcher.launch(request), words
        except LaunchPostponed as postponed:
            words.add(str(postponed))
        bench.cluster.advance(0.5)
    return None, words


# -- asking


@pytest.mark.slow
def test_one_question_answers_for_all_attempts(bench):
    requests = [bench.request(f"t{number:04}") for number in range(1, 30)]
    for request in requests:
        bench.launcher.launch(request)
    bench.poll_for(600.0, *requests)
    assert 19 <= len(bench.asked["jobs"]) <= 21
    assert bench.asked["accounted_jobs"] == []


@pytest.mark.slow
def test_a_silent_controller_is_asked_less_and_less_often_and_nothing_is_taken_for_ended(bench):
    request = bench.launched()
    poll_one(bench.launcher, request)
    bench.asked["jobs"].clear()
    bench.cluster.controller_down(3600.0)
    bench.poll_for(3000.0, request)
    assert poll_one(bench.launcher, request).liveness is Liveness.UNKNOWN
    assert len(bench.asked["jobs"]) <= 3000 / LONGEST_INTERVAL_S + 5
    bench.cluster.advance(600.0 + LONGEST_INTERVAL_S)
    assert poll_one(bench.launcher, request).liveness is Liveness.ALIVE


def test_settings_that_cannot_be_had_are_not_asked_for_again_and_again_nor_guessed(bench):
    """Twice in a time limit of a command, and what a job may cost is not guessed meanwhile."""
    asked = bench.note("settings")
    bench.cluster.controller_hung(600.0)
    launcher = bench.new_launcher()
    for _ in range(40):
        with pytest.raises(LaunchPostponed, match="does not report its settings"):
            launcher.longest_s(600.0)
    assert len(asked) == 1
    bench.cluster.advance(600.0)
    assert launcher.longest_s(600.0) == LONGEST_S


@pytest.mark.parametrize(("partition", "over_time_s"), [(None, 60.0), ("main", 60.0), ("over,main", 300.0)])
def test_what_is_reserved_is_what_the_jobs_own_partition_allows(tmp_path, partition, over_time_s):
    bench = JobsBench(tmp_path, over_time_limit_s=60.0, partition_over_times_s={"over": 300.0})
    assert bench.new_launcher(partition=partition).longest_s(600.0) == LONGEST_S + over_time_s


def test_what_is_reserved_where_jobs_may_run_on_for_ever_can_be_written_down(tmp_path):
    bench = JobsBench(tmp_path, over_time_limit_s=math.inf)
    assert 600 + 86400 < bench.launcher.longest_s(600.0) < math.inf


def test_a_controller_that_falls_silent_after_its_list_is_asked_about_one_ended_job_and_no_death_is_guessed(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0, exit_code=1)
    keys = [bench.request(f"t{number:04}").key for number in range(1, 4)]
    for number in range(1, 4):
        bench.launcher.launch(bench.request(f"t{number:04}"))
    bench.cluster.advance(POLL_S)
    jobs = bench.slurm.jobs

    def then_silent() -> object:
        answer = jobs()
        bench.cluster.controller_hung(60.0)
        bench.slurm.jobs = jobs
        return answer

    bench.slurm.jobs, began = then_silent, bench.cluster.time
    assert {status.liveness for status in bench.launcher.poll(keys).values()} == {Liveness.UNKNOWN}
    assert bench.cluster.time - began == FAKE_SETTINGS.message_timeout_s
    bench.cluster.advance(60.0 + POLL_S)
    statuses = bench.launcher.poll(keys).values()
    assert {(status.liveness, status.failed) for status in statuses} == {(Liveness.ENDED, True)}
    assert all("exit code 1" in (status.detail or "") for status in statuses)


# -- jobs that nobody remembers, and jobs that are there twice


@pytest.mark.slow
@pytest.mark.parametrize(("min_job_age_s", "grace_s"), [(300.0, 600.0), (900.0, 1800.0)])
def test_a_job_is_lost_only_after_a_long_time_without_any_sign_of_it(tmp_path, min_job_age_s, grace_s):
    bench = JobsBench(tmp_path, has_accounting=False, min_job_age_s=min_job_age_s)
    request = bench.launched()
    assert poll_one(bench.launcher, request).liveness is Liveness.ALIVE
    bench.cluster.crash(loses_s=60.0)
    bench.poll_for(grace_s - POLL_S, request)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.reason) == (Liveness.UNKNOWN, None)
    bench.poll_for(4 * POLL_S, request)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.reason, status.started) == (Liveness.ENDED, FailureReason.JOB_LOST, True)


@pytest.mark.parametrize("is_held", [False, True], ids=["the elder runs", "the elder waits"])
def test_of_twins_the_one_that_runs_goes_on_else_the_elder(bench, is_held):
    request = bench.request()
    elder = bench.cluster.job(bench.launcher.launch(request))
    if is_held:
        bench.cluster.hold(elder.job_id)
    else:
        bench.cluster.advance(POLL_S)
    twin = bench.cluster.accept(bench.slurm.user, elder.request)
    bench.cluster.advance(POLL_S)
    bench.poll_for(2 * POLL_S, request)
    stays, goes = (twin, elder) if is_held else (elder, twin)
    assert (stays.state, goes.state) == (JobState.RUNNING, JobState.CANCELLED)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.job_id) == (Liveness.ALIVE, stays.job_id)


def test_what_a_twin_held_before_it_was_cancelled_is_reported_with_the_end(bench):
    bench.cluster.on_start = lambda job: JobPlan(200.0)
    request = bench.launched()
    twin = bench.cluster.accept(bench.slurm.user, bench.cluster.jobs()[0].request)
    bench.cluster.advance(100.0)
    held_s = bench.cluster.cluster_time - twin.started_at
    bench.poll_for(POLL_S, request)
    assert twin.state is JobState.CANCELLED
    bench.poll_for(200.0, request)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.is_metered) == (Liveness.ENDED, True)
    assert status.extra_node_s == pytest.approx(held_s, abs=2)
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 7200.0)
    assert node_hours_of(attempt, status, bench.slurm.now()) * 3600 == pytest.approx(200 + held_s, abs=2)


def test_a_job_that_lives_although_its_attempt_has_ended_is_cancelled(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0 if "t0001" in job.name else None)
    ended, other = bench.launched("t0001"), bench.launched("t0002")
    assert poll_one(bench.launcher, ended).liveness is Liveness.ENDED
    bench.cluster.on_start = lambda job: JobPlan()
    twin = bench.cluster.accept(bench.slurm.user, bench.cluster.jobs()[0].request)
    bench.poll_for(2 * POLL_S, other)
    assert twin.state is JobState.CANCELLED
    assert poll_one(bench.launcher, other).liveness is Liveness.ALIVE


def test_what_the_run_before_a_requeue_left_in_the_log_is_no_reason_of_the_next(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0, exit_code=3) if job.restart else JobPlan()
    request = bench.launched()
    poll_one(bench.launcher, request)
    bench.cluster.requeue("1")
    assert "Terminated" in (request.folder.path / "job.log").read_text()
    bench.poll_for(bench.cluster.requeue_wait_s + 2 * POLL_S, request)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.restart, status.failed, status.reason) == (Liveness.ENDED, 1, True, None)
    assert "Terminated" not in status.detail


# -- a clock that people set


def test_a_clock_set_forward_shortens_no_confirm_window(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=CONFIRM_WINDOW_S - 5)
    request = bench.request()
    with pytest.raises(LaunchPostponed):
        bench.launcher.launch(request)
    bench.cluster.clock_ahead_s = 7200.0
    job_id, _ = launch_until_accepted(bench, request)
    assert [job.job_id for job in bench.cluster.jobs()] == [job_id]
    assert len(bench.asked["submit"]) == 1


def test_a_clock_set_forward_loses_no_job(tmp_path):
    bench = JobsBench(tmp_path, has_accounting=False)
    request = bench.launched()
    bench.cluster.crash(loses_s=60.0)
    bench.poll_for(POLL_S, request)
    bench.cluster.clock_ahead_s = 7200.0
    bench.poll_for(2 * POLL_S, request)
    assert poll_one(bench.launcher, request).liveness is Liveness.UNKNOWN


def test_a_clock_set_forward_makes_no_metered_hours(bench):
    bench.cluster.on_start = lambda job: JobPlan(60.0)
    request = bench.launched()
    bench.cluster.clock_ahead_s = 7200.0
    bench.poll_for(2 * POLL_S, request)
    status = poll_one(bench.launcher, request)
    assert (status.liveness, status.is_metered) == (Liveness.ENDED, False)
    assert status.ended_at - status.started_at > 7200


def test_whole_seconds_of_a_job_that_began_at_once_and_has_ended_just_now_are_metered(bench):
    bench.cluster.on_start = lambda job: JobPlan(29.2)
    bench.cluster.advance(0.9)
    request = bench.request()
    bench.launcher.launch(request)
    bench.cluster.advance(30.3)
    status = poll_one(bench.launcher, request)
    assert (status.ended_at - status.started_at, status.is_metered) == (30.0, True)


# -- a doubt that only accounting could end


def test_while_accounting_does_not_answer_nobody_knows_that_there_was_no_job(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=None)
    bench.cluster.accounting_down(300.0)
    job_id, words = launch_until_accepted(bench, bench.request())
    assert job_id is not None
    assert any("its accounting does not answer" in word for word in words)
    assert bench.asked["submit"][1] >= 300.0
    assert len(bench.asked["accounted_jobs"]) <= 300 / POLL_S + 1, "once for every list of jobs"


@pytest.mark.slow
def test_an_accounting_that_never_answers_is_waited_for_as_long_as_a_job_that_is_gone(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=None)
    bench.cluster.accounting_down(10**6)
    with suppress(LaunchPostponed):
        launch_until_accepted(bench, bench.request(), submissions=2)
    assert 600.0 <= bench.asked["submit"][1] < 700.0
