"""Pilots against the budget: recorded before their submission, sized by what is left, and told of when they end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.launchers.base import LaunchPostponed, LaunchRefused
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm.submissions import CONFIRM_WINDOW_S
from orchestrator.launchers.slurm_pilot.pool import PilotPool
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork, min_pilot_s
from slurm.job_state import JobState
from slurm.request import limit_min
from tests.fake_slurm.cluster import FAKE_SETTINGS
from tests.fake_slurm.jobs import JobPlan
from tests.rig import LIMIT_S, PilotBench, finish, nodes_asked
from trials.attempt_result import LaunchStatus, Liveness
from trials.pilot.files import StepFileKind, write
from trials.trial import FailureReason

ENDING_S = FAKE_SETTINGS.ending_s(None)
SHORTEST_NODE_S = 2 * (limit_min(min_pilot_s(LIMIT_S)) * 60 + ENDING_S)
"""Reservation of the shortest pilot for an attempt."""


def fails(words: str):
    def failing(*_: object) -> None:
        raise OSError(words)

    return failing


def end_of(rig: PilotBench, number: int = 1) -> LaunchStatus:
    """How this pilot ended, by its launcher and by the next one, after a driver that died."""
    name = f"p{number:04d}"
    known = rig.launcher.ended_pilots()[name]
    rig.launcher = rig.new_launcher()
    rig.launcher.reservation_node_s(LIMIT_S, 1)
    assert rig.launcher.ended_pilots()[name] == known
    return known


# -- before the submission


def test_a_pilot_is_recorded_with_the_most_that_slurm_may_let_it_hold_before_it_is_submitted(rig):
    recorded = []
    rig.launcher.reserve_pilot = lambda *pilot: recorded.append((*pilot, len(rig.cluster.jobs())))
    rig.launch()
    rig.launch("t0002")
    assert recorded == [("p0001", 2, rig.job().limit_s + ENDING_S, 0)]


def test_a_pilot_that_cannot_be_recorded_is_not_submitted(rig):
    reserve = rig.launcher.reserve_pilot
    rig.launcher.reserve_pilot = fails("disk full")
    with pytest.raises(OSError, match="disk full"):
        rig.launch()
    assert rig.cluster.jobs() == []
    rig.launcher.reserve_pilot = reserve
    rig.launcher.launch(rig.request())
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0001"]


def test_an_attempt_needs_a_whole_pilot_or_nothing_where_one_has_room(rig):
    assert rig.launcher.reservation_node_s(LIMIT_S, 1) == SHORTEST_NODE_S
    rig.launch()
    assert rig.launcher.reservation_node_s(LIMIT_S, 2) == 0.0
    finish(rig.serve(), "t0001.a1")
    rig.cluster.advance(rig.job().limit_s - LIMIT_S)
    assert rig.launcher.reservation_node_s(LIMIT_S, 1) == SHORTEST_NODE_S, "too little time is left"


def test_a_reservation_waits_while_the_pilots_cannot_be_read(rig, monkeypatch):
    monkeypatch.setattr(PilotPool, "load", fails("stale"))
    with pytest.raises(LaunchPostponed, match="stale"):
        rig.launcher.reservation_node_s(LIMIT_S, 2)


def test_a_pilot_is_asked_for_no_longer_than_the_budget_leaves_and_for_none_where_that_is_too_little(rig):
    rig.work = RemainingWork(1000, 1, node_hours=4.0)
    rig.launch()
    assert rig.job().limit_s == 2 * 3600.0 - 2 * 60.0  # in whole minutes, beside what Slurm may add
    finish(rig.serve(), "t0001.a1")
    rig.work = replace(rig.work, node_hours=(SHORTEST_NODE_S - 1.0) / 3600)
    rig.look(rig.job().limit_s - LIMIT_S)
    with pytest.raises(LaunchPostponed, match="waiting for pilot p0001 to end"):
        rig.launch("t0002")
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    with pytest.raises(LaunchPostponed, match="the budget has no room for a pilot"):
        rig.launch("t0002")
    rig.work = replace(rig.work, node_hours=SHORTEST_NODE_S / 3600)
    rig.launch("t0002")
    assert 2 * (rig.job(2).limit_s + ENDING_S) == SHORTEST_NODE_S


def test_a_recorded_pilot_that_was_not_submitted_is_gone_on_with_by_the_next_driver(rig, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(rig.slurm, "submit", fails("killed"))
        patched.setattr("orchestrator.launchers.slurm.job_files.write_text", fails("killed"))
        with pytest.raises(OSError, match="killed"):
            rig.launch()
    rig.work = replace(rig.work, pilots=("p0001",))
    rig.launcher = rig.new_launcher()
    rig.launcher.launch(rig.request())
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0001"]


def test_a_recorded_pilot_that_its_driver_let_go_of_is_not_submitted_by_the_next_one(rig):
    rig.slurm.submissions_busy(for_s=30.0)
    with pytest.raises(LaunchPostponed):
        rig.launch()
    rig.launcher.close()
    rig.work = replace(rig.work, pilots=("p0001",))
    rig.cluster.advance(600.0)
    rig.launcher = rig.new_launcher()
    request = rig.launch()
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0002"]
    assert (rig.launcher.ended_pilots()["p0001"].started, rig.status(request).job_id) == (False, rig.job(2).job_id)


def test_a_pilot_in_doubt_that_its_driver_let_go_of_is_cancelled_once_it_is_found(rig):
    rig.slurm.submissions_time_out(1, CONFIRM_WINDOW_S / 2)
    with pytest.raises(LaunchPostponed):
        rig.launch()
    for node in ("n1", "n2", "n3", "n4"):
        rig.cluster.drain_node(node)
    rig.launcher.close()
    rig.work = replace(rig.work, pilots=("p0001",))
    rig.launcher = rig.new_launcher()
    rig.launch()
    rig.look(10.0, times=10)
    assert [str(job.state) for job in (rig.job(1), rig.job(2))] == ["CANCELLED", "PENDING"]


def test_a_name_in_the_record_is_not_used_again_though_its_folder_is_gone(rig):
    rig.work = replace(rig.work, pilots=("p0001",))
    rig.launch()
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0002"]


# -- its end


def test_how_a_pilot_ended_is_told_by_slurms_clock(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    assert rig.launcher.ended_pilots() == {}
    rig.cluster.advance(200.0)
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    status = end_of(rig)
    assert (status.job_id, status.is_metered) == (rig.job().job_id, True)
    assert 2 * (status.ended_at - status.started_at) == rig.held_node_s() > 400


def test_of_a_pilot_whose_times_slurm_does_not_tell_right_none_is_believed(rig, monkeypatch):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    monkeypatch.setattr(JobMonitor, "_is_plausible_duration", lambda *_: False)  # a clock was set between them
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    assert not end_of(rig).is_metered


def test_a_pilot_that_slurm_forgot_has_the_start_that_was_seen(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    started_at = rig.job().started_at
    rig.cluster.purges_at_once = True
    rig.cluster.accounting_down(10**6)
    rig.cluster.cancel(rig.job().job_id)
    (rig.pilot().path / "job.log").touch()
    rig.look(60.0, times=15)
    status = end_of(rig)
    assert (status.reason, status.started_at, status.is_metered) == (FailureReason.JOB_LOST, started_at, False)


def test_a_drained_pilot_whose_cancellation_slurm_did_not_take_is_cancelled_again(rig):
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    rig.launch()
    rig.slurm.failing_cancels = 1
    rig.work = replace(rig.work, node_hours=0.0)
    with pytest.raises(LaunchPostponed, match="waiting for pilot p0001 to end"):
        rig.launch("t0002", time_limit_s=10 * LIMIT_S)
    assert rig.job().state is JobState.CANCELLED


def test_a_drained_pilot_whose_cancellation_slurm_did_not_take_is_cancelled_again_at_the_interval_of_queries(rig):
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    rig.launch()
    cancelled = []
    cancel = rig.slurm.cancel
    rig.slurm.cancel = lambda jobs: (cancelled.append(rig.cluster.time), cancel(jobs))[1]
    rig.slurm.failing_cancels = 3
    rig.launch("t0002", time_limit_s=10 * LIMIT_S)
    assert rig.job().state is JobState.PENDING
    rig.look(1.0, times=60)
    assert rig.job().state is JobState.CANCELLED
    assert len(cancelled) == 4
    assert min(after - before for before, after in pairwise(cancelled)) >= 5.0


def test_what_is_released_is_waited_for_while_slurm_answers_and_a_minute_where_it_does_not(rig):
    rig.launch()
    folder = rig.serve()
    finish(folder, "t0001.a1")
    rig.look()
    assert not rig.launcher.release()
    assert folder.drain.exists()
    rig.cluster.controller_down(for_s=3600.0)
    rig.look(10.0)
    assert not rig.launcher.release()
    rig.look(60.0)
    assert not rig.launcher.release(gives_up=False)
    assert rig.launcher.release()
    assert rig.launcher.ended_pilots() == {}


def test_a_pilot_whose_agent_does_not_end_when_it_is_released_is_cancelled(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    releases = []
    for _ in range(3):
        releases.append(rig.launcher.release())
        rig.cluster.advance(6.0)
    assert releases == [False, False, True]
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]


def test_a_refused_pilot_has_ended_without_a_start(rig):
    rig.slurm.submissions_refused("Invalid account")
    with pytest.raises(LaunchRefused):
        rig.launch()
    assert (end_of(rig).started, end_of(rig).job_id) == (False, None)


def test_a_pilot_that_a_full_queue_does_not_take_has_ended_without_a_start_once_it_is_released(rig):
    rig.slurm.submissions_busy(for_s=3600.0)
    with pytest.raises(LaunchPostponed):
        rig.launch()
    assert rig.launcher.ended_pilots() == {}
    assert rig.launcher.release()
    assert not end_of(rig).started


@pytest.mark.parametrize("appears_after_s", [None, CONFIRM_WINDOW_S / 2])
def test_a_pilot_of_which_slurm_did_not_say_whether_it_has_it_is_looked_for_before_it_is_given_up(rig, appears_after_s):
    rig.slurm.submissions_time_out(1, appears_after_s)
    with pytest.raises(LaunchPostponed):
        rig.launch()
    assert not rig.launcher.release()
    while not rig.launcher.release():
        rig.cluster.advance(5.0)
    assert end_of(rig).job_id == (None if appears_after_s is None else rig.job().job_id)
    assert all(job.state.is_ended for job in rig.cluster.jobs())


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("by_next_driver", [False, True])
def test_a_pilot_that_is_put_back_into_the_queue_is_cancelled_and_its_steps_are_tried_again(
    rig, is_closed, by_next_driver
):
    """Its agent says at Slurm's signal that it takes no more steps, if it has the time."""
    first = rig.launch()
    folder = rig.serve()
    if is_closed:
        write(folder.closed, folder.read_plan())
        rig.look()
    for node in ("n1", "n2", "n3", "n4"):
        rig.cluster.drain_node(node)
    rig.cluster.requeue(rig.job().job_id)
    if by_next_driver:
        rig.launcher = rig.new_launcher()
        assert rig.launcher.adopt({first.key: replace(first, job_id=rig.job().job_id)})
    rig.look(10.0, times=5)
    assert rig.job().state is JobState.CANCELLED
    assert rig.status(first).reason is FailureReason.INTERRUPTED
    assert rig.launcher.ended_pilots()["p0001"].restart == 1


# -- what its attempts become


@pytest.mark.parametrize("has_begun_another", [False, True])
def test_what_was_asked_of_a_pilot_that_ended_before_it_began_it_runs_in_the_next_one(rig, has_begun_another):
    first, second = rig.launch("t0001"), rig.launch("t0002")
    folder = rig.pilot()
    folder.heartbeat.write_text("alive")
    rig.look()
    if has_begun_another:
        folder.take("t0001.a1", StepFileKind.CLAIMED)
    assert StepFileKind.REQUESTED in folder.step_files()["t0002.a1"]
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    assert StepFileKind.WITHDRAWN in folder.step_files()["t0002.a1"]
    assert nodes_asked(rig.serve(2), "t0002.a1") == (("n1",) if has_begun_another else ("n2",))
    assert (rig.status(first).liveness is Liveness.ALIVE) is not has_begun_another
    assert rig.status(second).liveness is Liveness.ALIVE


def test_a_claimed_step_ends_with_its_pilot(rig):
    first, _ = rig.launch(), rig.launch("t0002")
    finish(rig.serve(), "t0002.a1")
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    assert (rig.status(first).liveness, rig.status(first).reason) == (Liveness.ENDED, FailureReason.INTERRUPTED)


def test_attempts_whose_pilot_never_served_end_with_it_also_under_the_next_driver(rig):
    rig.plan = JobPlan(100.0, exit_code=1)
    requests = rig.launch(), rig.launch("t0002")
    rig.look(120.0)
    rig.look()
    rig.launcher = rig.new_launcher()  # after one that was killed before it had recorded how they ended
    again = [replace(request, job_id=rig.job().job_id) for request in requests]
    assert set(rig.launcher.adopt({one.key: one for one in again})) == {one.key for one in again}
    assert [rig.status(one).reason for one in again] == [FailureReason.LAUNCH_FAILURE] * 2
    assert len(rig.cluster.jobs()) == 1
