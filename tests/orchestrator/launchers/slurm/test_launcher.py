"""Slurm launcher on a simulated cluster: submissions, cancellations, reservations and neighbours."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.search.node_hours import reservation_node_s
from slurm.job_state import JobState
from slurm.request import JobOptions, JobRequest, Placement
from tests.fake_slurm.jobs import JobPlan
from tests.orchestrator.launchers.attempts import poll_one
from tests.rig import PILOT_NODES, POLL_S, JobsBench, Rig
from trials.attempt_result import LaunchStatus, Liveness
from trials.trial import FailureReason

ALL_NODES = ("n1", "n2", "n3", "n4")


def postponed(bench, request, words: str = ".") -> None:
    with pytest.raises(LaunchPostponed, match=words):
        bench.launcher.launch(request)


# -- submitting


@pytest.mark.slow
def test_a_busy_slurm_is_left_alone_longer_each_time_by_all_attempts(bench):
    bench.slurm.submissions_busy()
    requests = [bench.request(trial) for trial in ("t0001", "t0002")]
    for _ in range(2 * 1500):
        for request in requests:
            postponed(bench, request, "Slurm accepts no more jobs at present")
        bench.cluster.advance(0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(bench.asked["submit"])]
    assert waits[:5] == [15.0, 30.0, 60.0, 120.0, 240.0]
    assert max(waits) == 300.0


def test_after_a_success_the_next_refusal_is_waited_for_from_the_beginning(bench):
    bench.slurm.submissions_busy(times=3)
    first, second = bench.request("t0001"), bench.request("t0002")
    for wait_s in (15.0, 30.0, 60.0):
        postponed(bench, first)
        bench.cluster.advance(wait_s)
    assert bench.launcher.launch(first)
    bench.slurm.submissions_busy(times=1)
    postponed(bench, second)
    bench.cluster.advance(15.0)
    assert bench.launcher.launch(second)


@pytest.mark.parametrize("fault", ["controller_down", "controller_hung"])
def test_a_slurm_that_does_not_answer_one_submission_is_not_sent_the_others_at_once(bench, fault):
    getattr(bench.cluster, fault)(120.0)
    postponed(bench, bench.request("t0001"))
    for number in range(2, 21):
        postponed(bench, bench.request(f"t{number:04}"), "^Slurm does not answer: ")
    assert len(bench.asked["submit"]) == 1
    assert bench.cluster.time - bench.began < 30, "twenty time limits are longer than a lease lasts"


def test_nodes_to_keep_away_from_are_used_all_the_same_where_too_few_are_left(bench, logged):
    request = bench.request(exclude=ALL_NODES)
    job_id = bench.launcher.launch(request)
    bench.cluster.advance(POLL_S)
    assert poll_one(bench.launcher, request).job_id == job_id
    refused, accepted = bench.cluster.jobs()
    assert (refused.reason, accepted.job_id, accepted.state) == ("BadConstraints", job_id, JobState.RUNNING)
    assert "--exclude" not in (request.folder.path / "job.sh").read_text()
    assert logged == ["t0001.a1 may run on n[1-4] again: too few other nodes are left"]


def test_what_is_refused_with_and_without_them_is_refused(bench):
    bench.slurm.submissions_refused("Invalid qos specification")
    with pytest.raises(LaunchRefused, match="Invalid qos specification"):
        bench.launcher.launch(bench.request(exclude=("n1",)))
    assert len(bench.asked["submit"]) == 2


def test_the_record_that_a_refusal_left_is_not_taken_for_the_attempts_job(bench):
    """The job without the excluded nodes was submitted too, without an answer: it was not accepted."""
    request, submit = bench.request(exclude=ALL_NODES), bench.slurm.submit

    def lose_the_second(job):
        if len(bench.asked["submit"]) == 1:
            bench.slurm.submissions_time_out(times=1, appears_after_s=None)
        return submit(job)

    bench.slurm.submit = lose_the_second
    postponed(bench, request, "no answer from Slurm")
    bench.cluster.advance(CONFIRM_WINDOW_S / 2)
    postponed(bench, request, "searching for it by its name")
    bench.cluster.advance(CONFIRM_WINDOW_S)
    assert bench.cluster.job(bench.launcher.launch(request)).reason != "BadConstraints"


def test_a_driver_that_comes_after_adopts_the_job_and_not_the_record_of_a_refusal(bench):
    bench.cluster.on_start = lambda job: JobPlan(5.0)
    request = bench.request(exclude=ALL_NODES)
    job_id = bench.launcher.launch(request)
    bench.cluster.advance(60.0)
    assert bench.new_launcher().adopt({request.key: request}) == {request.key: job_id}


@pytest.mark.parametrize(
    ("placement", "with_one_away"),
    [(Placement.ANY, 3), (Placement.ONE_SWITCH, 3), (Placement.ONE_BLOCK, None), (Placement.CONTIGUOUS, None)],
)
def test_placed_repeats_avoid_no_nodes_for_which_they_would_wait_for_one_that_is_away(bench, placement, with_one_away):
    launcher = bench.new_launcher(repeat_placement=placement)
    assert launcher.num_choosable_nodes() == 4
    bench.cluster.drain_node("n2")
    assert launcher.num_choosable_nodes() == with_one_away


def test_repeats_go_anywhere_where_a_reservation_decides_and_while_slurm_does_not_list_its_nodes(bench):
    assert bench.new_launcher(reservation="night").num_choosable_nodes() is None
    bench.cluster.controller_down(120.0)
    assert bench.launcher.num_choosable_nodes() is None


def test_a_slurm_that_tells_no_topology_is_not_asked_for_it_at_the_end_of_every_attempt(bench):
    """Each question may take a command's time limit; with pilots many attempts end while Slurm does not answer."""
    asked = bench.note("leaves")
    bench.slurm.leaf_of_node = {"n1": "leaf1"}
    bench.cluster.controller_hung(120.0)
    assert [bench.launcher.leaves_of(("n1",)) for _ in range(20)] == [()] * 20
    assert len(asked) == 1
    bench.cluster.advance(150.0)
    assert [bench.launcher.leaves_of(("n1",)) for _ in range(20)] == [("leaf1",)] * 20
    assert len(asked) == 2


@pytest.mark.parametrize(("interval_s", "iteration_interval_s"), [(1.0, 0.5), (15.0, 1.0), (600.0, 2.0)])
def test_an_iteration_is_longer_where_slurm_is_asked_seldom(bench, interval_s, iteration_interval_s):
    assert bench.new_launcher(interval_s).iteration_interval_s == iteration_interval_s


# -- cancelling


@pytest.mark.slow
def test_a_cancel_that_does_not_help_is_repeated_at_the_pace_of_questions(bench):
    key, began = bench.launched().key, bench.cluster.time
    bench.slurm.failing_cancels = 10**6
    for _ in range(1200):
        assert bench.launcher.cancel([key]) == {key}
        bench.cluster.advance(0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(bench.asked["cancel"])]
    assert min(waits) >= POLL_S
    assert 5 < len(bench.asked["cancel"]) <= (bench.cluster.time - began) / POLL_S
    bench.slurm.failing_cancels = 0
    bench.cluster.advance(POLL_S)
    assert bench.launcher.cancel([key]) == set()


def test_many_attempts_are_cancelled_with_one_request(bench):
    requests = [bench.launched(f"t{number:04}") for number in range(1, 9)]
    assert bench.launcher.cancel([request.key for request in requests]) == set()
    assert len(bench.asked["cancel"]) == 1
    assert {poll_one(bench.launcher, request).reason for request in requests} == {FailureReason.CANCELLED_BY_SEARCH}


def test_a_submission_nobody_knows_about_is_not_called_cancelled_before_it_is_certain(bench):
    bench.slurm.submissions_time_out(times=1, appears_after_s=CONFIRM_WINDOW_S - 5)
    request = bench.request()
    postponed(bench, request)
    assert bench.launcher.cancel([request.key]) == {request.key}
    bench.cluster.advance(CONFIRM_WINDOW_S)
    assert bench.launcher.cancel([request.key]) == set()
    assert [job.state for job in bench.cluster.jobs()] == [JobState.CANCELLED]


# -- what a trial costs at most


def test_what_a_trial_costs_at_most_is_the_same_before_the_search_and_in_it(tmp_path, monkeypatch):
    rig = Rig("jobs", tmp_path, settings={"kill_wait_s": 45.0, "over_time_limit_s": 120.0})
    monkeypatch.setattr("slurm.client.SlurmClient", lambda: rig.slurm)
    section = LauncherSection.model_validate({"kind": "slurm"})
    rig.open_driver()
    assert rig.launcher.longest_s(150.0) == 3 * 60 + 120 + 60 + 45
    for nodes in (1, 2):
        assert reservation_node_s(section, 150.0, nodes, 8) == rig.launcher.reservation_node_s(150.0, nodes)
    assert rig.launcher.reservation_node_s(150.0, 2) == 2 * rig.launcher.longest_s(150.0)
    rig.kind = "pilot"
    rig.open_driver()
    section = LauncherSection.model_validate({"kind": "slurm_pilot"})
    assert reservation_node_s(section, 150.0, 1, PILOT_NODES) == rig.launcher.reservation_node_s(150.0, 1)


def test_what_a_trial_costs_under_a_slurm_that_does_not_answer_is_reckoned_with_its_own_defaults(bench, monkeypatch):
    bench.cluster.controller_down(600.0)
    monkeypatch.setattr("slurm.client.SlurmClient", lambda: bench.slurm)
    assert reservation_node_s(LauncherSection.model_validate({"kind": "slurm"}), 60.0, 2, 8) == 2 * (60 + 60 + 30)


# -- neighbours


def end_beside(bench: JobsBench, *neighbour: float, name: str = "other", exclusive: bool = False) -> LaunchStatus:
    """Status of an attempt on n1 from 60 to 120 s, where another user's job begins then and takes so long."""
    request, launcher = bench.request(), bench.new_launcher(exclusive=exclusive)
    lasts_s = {request.key: 60.0, **({name: neighbour[1]} if neighbour else {})}
    bench.cluster.on_start = lambda job: JobPlan(duration_s=lasts_s[job.name])
    bench.cluster.schedule_s = 0.0
    if neighbour:
        job = JobRequest(name, bench.root, 1, 1, 6000.0, ("true",), options=JobOptions(nodelist=("n1",)))
        bench.cluster.at(bench.began + neighbour[0], lambda: bench.cluster.accept("bob", job))
    bench.cluster.advance(60.0)
    launcher.launch(request)
    bench.cluster.advance(90.0)
    return poll_one(launcher, request)


@pytest.mark.parametrize(
    ("begins_at", "lasts_s", "is_shared"),
    [(0, 30.0, False), (0, 1000.0, True), (70, 10.0, True), (130, 10.0, False)],
    ids=["before", "throughout", "meanwhile", "after"],
)
def test_an_attempt_beside_another_job_on_its_nodes_says_so(bench, begins_at, lasts_s, is_shared):
    status = end_beside(bench, begins_at, lasts_s)
    assert (status.liveness, status.nodes, status.had_neighbours) == (Liveness.ENDED, ("n1",), is_shared)


def test_a_driver_of_the_users_own_search_is_no_neighbour(bench):
    bench.slurm.user = "bob"
    assert end_beside(bench, 0, 1000.0, name="demo-abc234.driver").had_neighbours is False


def test_neighbours_are_asked_for_once_an_answer_and_not_on_whole_nodes(bench):
    asked = bench.note("jobs_on")
    requests = [bench.launched(trial) for trial in ("t0001", "t0002")]
    for job in bench.cluster.jobs():
        bench.cluster.cancel(job.job_id)
    bench.cluster.advance(POLL_S)
    bench.launcher.poll([request.key for request in requests])
    assert len(asked) == 1
    assert end_beside(bench, exclusive=True).liveness is Liveness.ENDED
    assert len(asked) == 1
