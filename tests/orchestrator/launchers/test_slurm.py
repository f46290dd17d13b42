"""SlurmLauncher on a simulated cluster: how often it asks, how long it waits, and what it does when in doubt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers import factory
from orchestrator.launchers.base import LaunchPostponed, LaunchRefused, LaunchRequest
from orchestrator.launchers.schema import LauncherSection
from orchestrator.launchers.slurm import SlurmLauncher
from orchestrator.launchers.slurm_submissions import SETTLE_S
from orchestrator.search.attempts import LAUNCHER_GRACE_S, longest_attempt_s, node_hours_of
from slurm.fake import FakeSlurm
from slurm.fake_cluster import FAKE_SETTINGS, FakeCluster
from slurm.fake_jobs import JobPlan
from slurm.fake_placement import FakeNode
from slurm.jobs import JobState
from slurm.pace import LONGEST_INTERVAL_S, PollPace
from slurm.request import JobOptions
from slurm.shared_answer import Answer
from tests.orchestrator.launchers.attempts import attempt_request, poll_one
from tests.orchestrator.search.scripted import RULES
from tests.orchestrator.search.slurm_rig import slurm_rig
from trials.classify import Life
from trials.trial import Attempt, FailureReason

POLL_S = 30.0


class Bench:
    """Four nodes, a launcher, and the moments (simulated seconds since the beginning) at which each was asked."""

    def __init__(self, root: Path, **settings: object):
        self.root = root
        nodes = [FakeNode(f"n{i}") for i in range(1, 5)]
        self.cluster = FakeCluster(nodes, settings=replace(FAKE_SETTINGS, **settings))
        self.slurm = FakeSlurm(self.cluster)
        self.began = self.cluster.time
        self.asked: dict[str, list[float]] = {"submit": [], "jobs": [], "cancel": [], "accounted": []}
        for name in self.asked:
            setattr(self.slurm, name, self._noting(name, getattr(self.slurm, name)))
        self.notes: list[str] = []
        self.launcher = self.new_launcher()

    def _noting(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            self.asked[name].append(self.cluster.time - self.began)
            return method(*arguments)

        return noted

    def new_launcher(self) -> SlurmLauncher:
        pace, advance = PollPace(POLL_S), self.cluster.advance
        return SlurmLauncher(self.slurm, JobOptions(), pace, self._jobs, advance, self.notes.append)

    def _jobs(self, max_age_s: float) -> Answer:
        asked_at = self.slurm.now()
        return Answer(self.slurm.jobs(), asked_at, self.slurm.now() - asked_at)

    def request(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = replace(attempt_request(self.root, "hang", trial=trial), submitted_at=self.cluster.time)
        return replace(request, **changes)

    def launched(self, trial: str = "t0001", **changes: object) -> LaunchRequest:
        request = self.request(trial, **changes)
        assert self.launcher.launch(request)
        self.cluster.advance(POLL_S)
        return request

    def poll_for(self, seconds: float, *requests: LaunchRequest) -> None:
        """As a driver does: every half second."""
        for _ in range(int(2 * seconds)):
            self.launcher.poll([request.spec.attempt_key for request in requests])
            self.cluster.advance(0.5)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- submitting


def test_a_busy_slurm_is_left_alone_longer_each_time_by_all_attempts(bench):
    bench.slurm.submissions_busy()
    requests = [bench.request(trial) for trial in ("t0001", "t0002")]
    for _ in range(2 * 1500):
        for request in requests:
            with pytest.raises(LaunchPostponed, match="Slurm takes no more jobs just now"):
                bench.launcher.launch(request)
        bench.cluster.advance(0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(bench.asked["submit"])]
    assert waits[:5] == [15.0, 30.0, 60.0, 120.0, 240.0]
    assert max(waits) == 300.0


def test_a_slurm_that_leaves_one_submission_in_doubt_is_not_sent_the_others_at_once(bench):
    bench.cluster.controller_hung(120.0)
    for number in range(1, 21):
        with pytest.raises(LaunchPostponed):
            bench.launcher.launch(bench.request(f"t{number:04}"))
    assert len(bench.asked["submit"]) == 1
    assert bench.cluster.time - bench.began < 30, "twenty time limits are longer than a lease lasts"


def test_a_settled_doubt_asks_accounting_once_however_long_the_queue_stays_full(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=None)
    bench.slurm.submissions_busy()
    doubtful, waiting = bench.request("t0001"), bench.request("t0002")
    for _ in range(2 * 300):
        for request in (doubtful, waiting):
            with pytest.raises(LaunchPostponed):
                bench.launcher.launch(request)
        bench.cluster.advance(0.5)
    assert len(bench.asked["accounted"]) == 1


def test_after_a_success_the_next_refusal_is_waited_for_from_the_beginning(bench):
    bench.slurm.submissions_busy(times=3)
    first, second = bench.request("t0001"), bench.request("t0002")
    for wait_s in (15.0, 30.0, 60.0):
        with pytest.raises(LaunchPostponed):
            bench.launcher.launch(first)
        bench.cluster.advance(wait_s)
    assert bench.launcher.launch(first)
    bench.slurm.submissions_busy(times=1)
    with pytest.raises(LaunchPostponed):
        bench.launcher.launch(second)
    bench.cluster.advance(15.0)
    assert bench.launcher.launch(second)


def test_nodes_to_keep_away_from_are_used_all_the_same_where_too_few_are_left(bench):
    request = bench.request(exclude=("n1", "n2", "n3", "n4"))
    job_id = bench.launcher.launch(request)
    bench.cluster.advance(POLL_S)
    assert poll_one(bench.launcher, request).job_id == job_id
    refused, accepted = bench.cluster.jobs()
    assert (refused.reason, accepted.job_id, accepted.state) == ("BadConstraints", job_id, JobState.RUNNING)
    assert "--exclude" not in (request.folder.path / "job.sh").read_text()
    assert bench.notes == ["t0001.a1 may run on n[1-4] again: too few others are left"]


def test_nodes_to_keep_away_from_are_kept_away_from_where_enough_are_left(bench):
    request = bench.launched(exclude=("n1", "n2", "n3"))
    assert poll_one(bench.launcher, request).nodes == ("n4",)
    assert len(bench.asked["submit"]) == 1
    assert bench.notes == []


def test_what_is_refused_with_and_without_them_is_refused(bench):
    bench.slurm.submissions_refused("Invalid qos specification")
    with pytest.raises(LaunchRefused, match="Invalid qos specification"):
        bench.launcher.launch(bench.request(exclude=("n1",)))
    assert len(bench.asked["submit"]) == 2


def test_the_record_that_a_refusal_left_is_not_taken_for_the_attempts_job(bench):
    """The job without the excluded nodes was submitted too, but nobody heard whether it was accepted: it was not."""
    request = bench.request(exclude=("n1", "n2", "n3", "n4"))
    submit, answers = bench.slurm.submit, []

    def lose_the_second(job):
        answers.append(None)
        if len(answers) == 2:
            bench.slurm.submissions_time_out(times=1, appears_after_s=None)
        return submit(job)

    bench.slurm.submit = lose_the_second
    with pytest.raises(LaunchPostponed, match="no answer from Slurm"):
        bench.launcher.launch(request)
    bench.cluster.advance(SETTLE_S / 2)
    with pytest.raises(LaunchPostponed, match="looking for it by its name"):
        bench.launcher.launch(request)
    bench.cluster.advance(SETTLE_S)
    job_id = bench.launcher.launch(request)
    assert bench.cluster.job(job_id).reason != "BadConstraints"


def test_a_driver_that_comes_after_adopts_the_job_and_not_the_record_of_a_refusal(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0)
    request = bench.request(exclude=("n1", "n2", "n3", "n4"))
    job_id = bench.launcher.launch(request)
    bench.cluster.advance(60.0)
    key = request.spec.attempt_key
    assert bench.new_launcher().adopt({key: request}) == {key: job_id}


# -- asking


def test_one_question_answers_for_all_attempts(bench):
    requests = [bench.request(f"t{number:04}") for number in range(1, 30)]
    for request in requests:
        bench.launcher.launch(request)
    bench.poll_for(600.0, *requests)
    assert 19 <= len(bench.asked["jobs"]) <= 21
    assert bench.asked["accounted"] == []


def test_a_slow_controller_is_asked_less_often_and_a_quick_one_at_the_usual_pace_again(bench):
    request = bench.launched()
    bench.slurm.answer_s = 20.0
    bench.poll_for(1000.0, request)
    slow = [later - earlier for earlier, later in itertools.pairwise(bench.asked["jobs"])][-3:]
    assert min(slow) >= 100.0
    bench.slurm.answer_s = 0.0
    bench.poll_for(300.0, request)
    quick = [later - earlier for earlier, later in itertools.pairwise(bench.asked["jobs"])][-3:]
    assert max(quick) <= POLL_S + 1


def test_a_slow_accounting_is_asked_less_often_about_a_job_that_is_gone_and_the_controller_as_before(bench):
    request = bench.launched()
    accounted = bench.slurm.accounted

    def slowly(names, since):
        bench.cluster.advance(20.0)
        return accounted(names, since)

    bench.slurm.accounted = slowly
    bench.cluster.crash(loses_s=60.0)
    bench.poll_for(400.0, request)
    asked = bench.asked["accounted"]
    assert len(asked) >= 3
    assert min(later - earlier for earlier, later in itertools.pairwise(asked)) >= 100.0
    controller = [later - earlier for earlier, later in itertools.pairwise(bench.asked["jobs"])]
    assert max(controller) <= POLL_S + 20.0 + 1


def test_a_silent_controller_is_asked_less_and_less_often_and_nothing_is_taken_for_ended(bench):
    request = bench.launched()
    poll_one(bench.launcher, request)
    bench.asked["jobs"].clear()
    bench.cluster.controller_down(3600.0)
    bench.poll_for(3000.0, request)
    assert poll_one(bench.launcher, request).life is Life.UNKNOWN
    assert len(bench.asked["jobs"]) <= 3000 / LONGEST_INTERVAL_S + 5
    bench.cluster.advance(600.0 + LONGEST_INTERVAL_S)
    assert poll_one(bench.launcher, request).life is Life.ALIVE


def test_settings_that_cannot_be_had_are_not_asked_for_again_and_again(bench):
    asked, settings = [], bench.slurm.settings
    bench.slurm.settings = lambda: asked.append(bench.cluster.time) or settings()
    bench.cluster.controller_hung(600.0)
    launcher = bench.new_launcher()
    for _ in range(40):
        with pytest.raises(LaunchPostponed):
            launcher.longest_s(600.0)
    assert len(asked) == 1


def test_settings_that_cannot_be_had_are_no_reason_to_guess_what_a_job_may_cost(bench):
    known = bench.launcher.longest_s(600.0)
    bench.cluster.controller_down(60.0)
    anew = bench.new_launcher()
    with pytest.raises(LaunchPostponed, match="does not tell its settings"):
        anew.longest_s(600.0)
    bench.cluster.advance(60.0)
    assert anew.longest_s(600.0) == known == 600 + 60 + FAKE_SETTINGS.kill_wait_s


def test_a_controller_that_falls_silent_after_its_list_is_asked_about_one_ended_job_and_no_death_is_guessed(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0, exit_code=1)
    requests = [bench.request(f"t{number:04}") for number in range(1, 4)]
    for request in requests:
        bench.launcher.launch(request)
    bench.cluster.advance(POLL_S)
    jobs = bench.slurm.jobs

    def then_silent() -> object:
        answer = jobs()
        bench.cluster.controller_hung(60.0)
        bench.slurm.jobs = jobs
        return answer

    bench.slurm.jobs = then_silent
    keys, began = [request.spec.attempt_key for request in requests], bench.cluster.time
    assert {ending.life for ending in bench.launcher.poll(keys).values()} == {Life.UNKNOWN}
    assert bench.cluster.time - began == FAKE_SETTINGS.message_timeout_s
    bench.cluster.advance(60.0 + POLL_S)
    endings = bench.launcher.poll(keys).values()
    assert {(ending.life, ending.failed) for ending in endings} == {(Life.ENDED, True)}
    assert all("exit code 1" in (ending.detail or "") for ending in endings)


def test_a_clock_that_is_set_back_stops_no_questions(bench):
    request = bench.launched()
    bench.launcher.poll([request.spec.attempt_key])
    asked = len(bench.asked["jobs"])
    bench.cluster.clock_ahead_s = -7200.0
    bench.poll_for(2 * POLL_S, request)
    assert len(bench.asked["jobs"]) > asked


@pytest.mark.parametrize(("partition", "over_time_s"), [(None, 60.0), ("main", 60.0), ("over,main", 300.0)])
def test_what_is_reserved_is_what_the_jobs_own_partition_allows(tmp_path, partition, over_time_s):
    bench = Bench(tmp_path, over_time_limit_s=60.0, partition_over_times_s={"over": 300.0})
    launcher = SlurmLauncher(bench.slurm, JobOptions(partition=partition), PollPace(POLL_S), bench._jobs)
    assert launcher.longest_s(600.0) == 600 + over_time_s + 60 + FAKE_SETTINGS.kill_wait_s


def test_what_is_reserved_where_jobs_may_run_on_for_ever_can_be_written_down(tmp_path):
    bench = Bench(tmp_path, over_time_limit_s=math.inf)
    assert 600 + 86400 < bench.launcher.longest_s(600.0) < math.inf


# -- jobs that nobody remembers


@pytest.mark.parametrize(("min_job_age_s", "grace_s"), [(300.0, 600.0), (900.0, 1800.0)])
def test_a_job_is_lost_only_after_a_long_time_without_any_sign_of_it(tmp_path, min_job_age_s, grace_s):
    bench = Bench(tmp_path, has_accounting=False, min_job_age_s=min_job_age_s)
    request = bench.launched()
    assert poll_one(bench.launcher, request).life is Life.ALIVE
    bench.cluster.crash(loses_s=60.0)
    bench.poll_for(grace_s - POLL_S, request)
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.reason) == (Life.UNKNOWN, None)
    bench.poll_for(4 * POLL_S, request)
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.reason, ending.started) == (Life.ENDED, FailureReason.LOST, True)


def test_a_younger_twin_is_cancelled_and_the_elder_goes_on(bench):
    request = bench.launched()
    elder = bench.cluster.jobs()[0]
    twin = bench.cluster.accept(bench.slurm.user, elder.request)
    bench.poll_for(2 * POLL_S, request)
    assert (elder.state, twin.state) == (JobState.RUNNING, JobState.CANCELLED)
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.job_id) == (Life.ALIVE, elder.job_id)


def test_a_twin_that_runs_stays_whatever_still_waits(bench):
    request = bench.request()
    elder = bench.launcher.launch(request)
    bench.cluster.hold(elder)
    twin = bench.cluster.accept(bench.slurm.user, bench.cluster.job(elder).request)
    bench.cluster.advance(POLL_S)
    bench.poll_for(2 * POLL_S, request)
    assert (bench.cluster.job(elder).state, twin.state) == (JobState.CANCELLED, JobState.RUNNING)
    assert poll_one(bench.launcher, request).job_id == twin.job_id


def test_what_a_twin_held_before_it_was_cancelled_is_told_with_the_end(bench):
    bench.cluster.on_start = lambda job: JobPlan(200.0)
    request = bench.launched()
    twin = bench.cluster.accept(bench.slurm.user, bench.cluster.jobs()[0].request)
    bench.cluster.advance(100.0)
    held_s = bench.cluster.cluster_time - twin.started_at
    bench.poll_for(POLL_S, request)
    assert twin.state is JobState.CANCELLED
    bench.poll_for(200.0, request)
    ending = poll_one(bench.launcher, request)
    assert ending.life is Life.ENDED
    assert ending.twin_node_s == pytest.approx(held_s, abs=2)
    assert ending.is_metered
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 7200.0)
    assert node_hours_of(attempt, ending, bench.slurm.now()) * 3600 == pytest.approx(200 + held_s, abs=2)


def test_a_job_that_lives_although_its_attempt_has_ended_is_cancelled(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0 if "t0001" in job.name else None)
    ended, other = bench.launched("t0001"), bench.launched("t0002")
    assert poll_one(bench.launcher, ended).life is Life.ENDED
    bench.cluster.on_start = lambda job: JobPlan()
    twin = bench.cluster.accept(bench.slurm.user, bench.cluster.jobs()[0].request)
    bench.poll_for(2 * POLL_S, other)
    assert twin.state is JobState.CANCELLED
    assert poll_one(bench.launcher, other).life is Life.ALIVE


def test_what_the_run_before_a_requeue_left_in_the_log_is_no_reason_of_the_next(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0, exit_code=3) if job.restart else JobPlan()
    request = bench.launched()
    poll_one(bench.launcher, request)
    bench.cluster.requeue("1")
    assert "Terminated" in (request.folder.path / "job.log").read_text()
    bench.poll_for(bench.cluster.requeue_wait_s + 2 * POLL_S, request)
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.restart, ending.failed, ending.reason) == (Life.ENDED, 1, True, None)
    assert "Terminated" not in ending.detail


# -- a clock that people set


def test_a_clock_set_forward_shortens_no_settle_window(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=SETTLE_S - 5)
    request = bench.request()
    with pytest.raises(LaunchPostponed):
        bench.launcher.launch(request)
    bench.cluster.clock_ahead_s = 7200.0
    job_id = None
    while job_id is None:
        with suppress(LaunchPostponed):
            job_id = bench.launcher.launch(request)
        bench.cluster.advance(0.5)
    assert [job.job_id for job in bench.cluster.jobs()] == [job_id]
    assert len(bench.asked["submit"]) == 1


def test_a_clock_set_forward_loses_no_job(tmp_path):
    bench = Bench(tmp_path, has_accounting=False)
    request = bench.launched()
    bench.cluster.crash(loses_s=60.0)
    bench.poll_for(POLL_S, request)
    bench.cluster.clock_ahead_s = 7200.0
    bench.poll_for(2 * POLL_S, request)
    assert poll_one(bench.launcher, request).life is Life.UNKNOWN


def test_a_clock_set_forward_makes_no_metered_hours(bench):
    bench.cluster.on_start = lambda job: JobPlan(60.0)
    request = bench.launched()
    bench.cluster.clock_ahead_s = 7200.0
    bench.poll_for(2 * POLL_S, request)
    ending = poll_one(bench.launcher, request)
    assert (ending.life, ending.is_metered) == (Life.ENDED, False)
    assert ending.ended_at - ending.started_at > 7200


# -- a doubt that only accounting could end


def test_while_accounting_does_not_answer_nobody_knows_that_there_was_no_job(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=None)
    bench.cluster.accounting_down(300.0)
    request = bench.request()
    words = set()
    while "submitted" not in words:
        try:
            bench.launcher.launch(request)
            words.add("submitted")
        except LaunchPostponed as postponed:
            words.add(str(postponed))
        bench.cluster.advance(0.5)
    assert any("its accounting does not answer" in word for word in words)
    assert bench.asked["submit"][1] >= 300.0
    assert len(bench.asked["accounted"]) <= 300 / POLL_S + 1, "once for every list of jobs"


def test_an_accounting_that_never_answers_is_waited_for_as_long_as_a_job_that_is_gone(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=None)
    bench.cluster.accounting_down(10**6)
    request = bench.request()
    while len(bench.asked["submit"]) < 2:
        with suppress(LaunchPostponed):
            bench.launcher.launch(request)
        bench.cluster.advance(0.5)
    assert 600.0 <= bench.asked["submit"][1] < 700.0


# -- cancelling


def test_a_cancel_that_does_not_help_is_repeated_at_the_pace_of_questions(bench):
    request = bench.launched()
    bench.slurm.failing_cancels = 10**6
    began = bench.cluster.time
    for _ in range(1200):
        assert bench.launcher.cancel([request.spec.attempt_key]) == {request.spec.attempt_key}
        bench.cluster.advance(0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(bench.asked["cancel"])]
    assert min(waits) >= POLL_S
    assert 5 < len(bench.asked["cancel"]) <= (bench.cluster.time - began) / POLL_S
    bench.slurm.failing_cancels = 0
    bench.cluster.advance(POLL_S)
    assert bench.launcher.cancel([request.spec.attempt_key]) == set()


def test_while_nobody_answers_a_cancel_names_what_may_still_run(bench):
    requests = [bench.launched(trial) for trial in ("t0001", "t0002")]
    never = bench.request("t0003").spec.attempt_key
    keys = {request.spec.attempt_key for request in requests}
    bench.cluster.controller_down(120.0)
    assert bench.launcher.cancel([*keys, never]) == keys
    assert {poll_one(bench.launcher, request).life for request in requests} == {Life.UNKNOWN}
    bench.cluster.advance(120.0)
    assert bench.launcher.cancel(keys) == set()
    assert {job.state for job in bench.cluster.jobs()} == {JobState.CANCELLED}


def test_a_silent_controller_is_not_asked_oftener_because_something_is_to_be_cancelled(bench):
    request = bench.launched()
    key = request.spec.attempt_key
    bench.asked["jobs"].clear()
    bench.cluster.controller_down(3000.0)
    for _ in range(2 * 1500):
        assert bench.launcher.cancel([key]) == {key}
        bench.launcher.poll([key])
        bench.cluster.advance(0.5)
    assert len(bench.asked["jobs"]) <= 1500 / LONGEST_INTERVAL_S + 5
    bench.cluster.advance(1500.0 + LONGEST_INTERVAL_S)
    assert bench.launcher.cancel([key]) == set()


def test_many_attempts_are_cancelled_with_one_request(bench):
    requests = [bench.launched(f"t{number:04}") for number in range(1, 9)]
    assert bench.launcher.cancel([request.spec.attempt_key for request in requests]) == set()
    assert len(bench.asked["cancel"]) == 1


def test_a_submission_nobody_knows_about_is_not_called_cancelled_before_it_is_certain(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=SETTLE_S - 5)
    request = bench.request()
    key = request.spec.attempt_key
    with pytest.raises(LaunchPostponed):
        bench.launcher.launch(request)
    assert bench.launcher.cancel([key]) == {key}
    bench.cluster.advance(SETTLE_S)
    assert bench.launcher.cancel([key]) == set()
    assert [job.state for job in bench.cluster.jobs()] == [JobState.CANCELLED]


def test_a_cluster_that_is_away_refuses_no_launch_for_good(bench):
    bench.cluster.controller_down(60.0)
    request = bench.request()
    with pytest.raises(LaunchPostponed, match="Unable to contact slurm controller"):
        bench.launcher.launch(request)
    bench.cluster.advance(60.0)
    assert bench.launcher.launch(request)


def test_what_a_trial_costs_at_most_is_the_same_before_the_search_and_in_it(tmp_path, monkeypatch):
    rig = slurm_rig(tmp_path, kill_wait_s=45.0, over_time_limit_s=120.0)
    monkeypatch.setattr(factory, "SlurmClient", lambda: rig.slurm)
    section = LauncherSection.model_validate({"kind": "slurm"})
    rig.open_driver()
    assert factory.longest_s(section, 150.0) == rig.launcher.longest_s(150.0) == 3 * 60 + 120 + 60 + 45
    assert longest_attempt_s(RULES, section) == rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)


def test_what_a_trial_costs_under_a_slurm_that_does_not_answer_is_reckoned_with_its_own_defaults(tmp_path, monkeypatch):
    rig = slurm_rig(tmp_path)
    rig.cluster.controller_down(600.0)
    monkeypatch.setattr(factory, "SlurmClient", lambda: rig.slurm)
    assert factory.longest_s(LauncherSection.model_validate({"kind": "slurm"}), 60.0) == 60 + 60 + 30
