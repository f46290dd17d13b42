"""Pilot launcher on a simulated Slurm: when pilots are submitted, what runs in them, and what they cost."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from orchestrator.launchers.base import EndedPilot, LaunchPostponed
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm_pilot.allocations import SILENT_S, PilotPool
from orchestrator.launchers.slurm_pilot.sizing import SLOW_START_S, STARTUP_S, TAIL_S, RemainingWork
from slurm.fake.jobs import JobPlan
from slurm.job_state import JobState
from slurm.request import Container, JobOptions, JobRequest, Runtime
from tests.rig import LIMIT_S, PilotBench, finish, nodes_asked
from trials.attempt_result import Liveness
from trials.pilot.files import StepFileKind, StepStart, write
from trials.trial import FailureReason


def test_one_pilot_for_all_and_each_attempt_on_nodes_of_its_own(rig):
    first, second, third = (rig.launch(f"t000{n}") for n in (1, 2, 3))
    folder = rig.serve()
    assert [job.request.name for job in rig.cluster.jobs()] == ["demo-abc234.p0001"]
    assert [nodes_asked(folder, name) for name in ("t0001.a1", "t0002.a1")] == [("n1",), ("n2",)]
    assert (rig.status(third).started, rig.status(third).detail) == (False, "Resources")
    finish(folder, "t0002.a1")
    assert rig.status(second).job_id == f"{rig.job().job_id}.0"
    assert nodes_asked(folder, "t0003.a1") == ("n2",)
    assert rig.status(first).liveness is Liveness.ALIVE


def test_a_step_beside_another_job_on_its_node_says_so(rig):
    first, second = rig.launch("t0001"), rig.launch("t0002")
    folder = rig.serve()
    other = JobRequest("other", rig.root, 1, 1, 600.0, ("true",), options=JobOptions(nodelist=("n2",)))
    rig.cluster.accept("bob", other)
    for name in ("t0001.a1", "t0002.a1"):
        rig.look()
        finish(folder, name, at=rig.cluster.time)
    assert [rig.status(each).had_neighbours for each in (first, second)] == [False, True]


def test_while_slurm_is_silent_steps_go_on_and_end(rig):
    first = rig.launch()
    folder = rig.serve()
    rig.cluster.controller_down(for_s=3600.0)
    rig.look(30.0)
    write(folder.step_file("t0001.a1", StepFileKind.STARTED), StepStart(1e9, "0"))
    folder.heartbeat.write_text("again")
    assert rig.status(first).started
    finish(folder, "t0001.a1")
    assert rig.status(first).liveness is Liveness.ENDED


@pytest.mark.slow
def test_a_pilot_whose_agent_gives_no_sign_of_life_leaves_its_steps_unknown(rig):
    first = rig.launch()
    rig.serve()
    rig.look(SILENT_S + 1)
    assert rig.status(first).liveness is Liveness.UNKNOWN
    assert rig.launcher.cancel([first.key]) == {first.key}  # and with its pilot it then ends
    rig.look(times=2)
    assert rig.status(first).reason is FailureReason.CANCELLED_BY_SEARCH


def test_an_attempt_that_would_outlast_its_pilot_waits_for_the_next(rig):
    rig.launch()
    folder = rig.serve()
    finish(folder, "t0001.a1")
    rig.cluster.advance(rig.job().limit_s - LIMIT_S)
    folder.heartbeat.write_text("again")
    second = rig.launch("t0002")
    assert folder.drain.exists()
    assert rig.status(second).job_id == rig.job(2).job_id
    assert "t0002.a1" not in folder.step_files()


def test_where_too_few_nodes_are_left_the_next_pilot_keeps_away_from_the_bad_ones(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    rig.look()
    rig.launch("t0002", exclude=("n1",))
    assert rig.job().request.exclude == ()
    finish(rig.pilot(), "t0002.a1")
    rig.look()
    rig.launch("t0003", exclude=("n1", "n2"))
    assert rig.pilot().drain.exists()
    assert rig.job(2).request.exclude == ("n1", "n2")
    assert nodes_asked(rig.serve(2), "t0003.a1") == ("n3",)


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_pilot_that_never_serves_fails_those_that_wait_and_no_next_one_is_asked_for(rig, exit_code):
    rig.plan = JobPlan(1.0, exit_code=exit_code)
    first = rig.launch()
    rig.look(10.0, times=5)
    assert (rig.status(first).liveness, rig.status(first).reason) == (Liveness.ENDED, FailureReason.LAUNCH_FAILURE)
    assert len(rig.cluster.jobs()) == 1


def test_a_pilot_that_the_user_cancels_before_it_runs_ends_what_waits_for_it(full):
    first = full.launch()
    full.look()
    full.cluster.cancel(full.job().job_id)
    full.look(30.0)
    assert full.status(first).reason is FailureReason.CANCELLED_BY_USER


def test_what_was_asked_of_a_pilot_that_ended_first_runs_in_the_next_where_another_has_begun_there(rig):
    rig.launch()
    folder = rig.serve()
    second = rig.launch("t0002")
    rig.look()
    assert StepFileKind.REQUESTED in folder.step_files()["t0002.a1"]
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    assert StepFileKind.WITHDRAWN in folder.step_files()["t0002.a1"]
    assert nodes_asked(rig.serve(2), "t0002.a1") == ("n1",)
    assert rig.status(second).liveness is Liveness.ALIVE


def test_a_pilot_whose_agent_hangs_at_its_start_is_cancelled_and_that_is_said(rig, logged):
    first = rig.launch()
    reserved_s = rig.launcher.longest_s(LIMIT_S, 2)
    rig.look(STARTUP_S - 30.0)
    assert rig.job().state is JobState.RUNNING
    rig.look(35.0, times=3)
    assert rig.job().state is JobState.CANCELLED
    status = rig.status(first)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.LAUNCH_FAILURE)
    assert "its agent did not start within 5 minutes: see " in (status.detail or "")
    assert len([note for note in logged if "pilot p0001 is cancelled: its agent did not start" in note]) == 1
    assert 2 * STARTUP_S <= status.extra_node_s == rig.held_node_s() <= 2 * reserved_s


def test_one_that_comes_to_life_late_is_not(rig):
    first = rig.launch()
    rig.look()
    assert rig.status(first).detail == "Resources"
    rig.look(SLOW_START_S)
    assert "p0001 runs, but its agent has not started" in (rig.status(first).detail or "")
    rig.look(STARTUP_S - SLOW_START_S - 30.0)
    rig.serve()
    rig.look(60.0)
    assert rig.job().state is JobState.RUNNING


def test_beside_a_container_the_agent_runs_in_the_python_that_runs_parlay(rig):
    rig.launcher = rig.new_launcher(Container(Runtime.APPTAINER, "/images/x.sif"))
    rig.launch(python="/opt/of-the-image/python3")
    assert rig.job().request.argv[:3] == (sys.executable, "-m", "trials.pilot")


def test_the_next_driver_knows_what_runs_what_waits_and_what_was_never_taken(rig):
    first, second, third = (rig.launch(f"t000{n}") for n in (1, 2, 3))
    folder = rig.serve()
    job_id = rig.job().job_id
    write(folder.step_file("t0001.a1", StepFileKind.STARTED), StepStart(1e9, "4"))
    rig.launcher = rig.new_launcher()
    fourth = rig.request("t0004")
    asked = {r.key: r for r in (first, second, replace(third, job_id=job_id), fourth)}
    assert rig.launcher.adopt(asked) == {first.key: f"{job_id}.4", second.key: job_id, third.key: job_id}
    finish(folder, "t0001.a1")
    rig.look()
    assert nodes_asked(folder, "t0003.a1") == ("n1",)
    rig.launcher.launch(fourth)
    assert len(rig.cluster.jobs()) == 1


def test_an_intent_whose_submission_was_lost_is_gone_on_with_under_its_name(rig):
    rig.slurm.submissions_time_out(appears_after_s=10.0)
    request = rig.request()
    with pytest.raises(Exception, match="no answer"):
        rig.launcher.launch(request)
    rig.launcher = rig.new_launcher()
    assert rig.launcher.adopt({request.key: request}) == {request.key: rig.job().job_id}
    rig.look(20.0)
    assert nodes_asked(rig.serve(), "t0001.a1") == ("n1",)
    assert len(rig.cluster.jobs()) == 1


def test_a_pilot_that_was_perhaps_submitted_is_named_while_slurm_is_silent(rig):
    rig.slurm.submissions_time_out(appears_after_s=10.0)
    with pytest.raises(LaunchPostponed):
        rig.launch()
    rig.cluster.controller_down(for_s=3600.0)
    rig.launcher = rig.new_launcher()
    assert rig.launcher.cancel_leftovers() == ["demo-abc234.p0001"]


def test_pilots_that_nobody_needs_end_with_their_driver_and_others_stay(rig):
    rig.launch()
    folder = rig.serve()
    rig.launcher.close()
    assert not folder.drain.exists()
    finish(folder, "t0001.a1")
    rig.look()
    folder.closed.write_text("{}")
    rig.launcher.close()
    assert folder.drain.exists()


@pytest.fixture
def full(rig) -> PilotBench:
    """A cluster on which no pilot can start."""
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    return rig


def test_a_pilot_that_no_answer_of_slurm_has_shown_yet_ends_with_the_search(full):
    first = full.launch()
    assert full.launcher.cancel([first.key]) == set()
    full.launcher.close()
    assert full.job().state is JobState.CANCELLED


def test_a_pilot_whose_end_slurm_does_not_confirm_is_told_of(full, logged):
    first = full.launch()
    full.look()
    full.cluster.controller_down(for_s=3600.0)
    full.look(30.0)
    assert full.launcher.cancel([first.key]) == {first.key}
    full.launcher.close()
    assert logged[-1] == f"unneeded pilots may still be running: scancel {full.job().job_id}"
    assert full.pilot().drain.exists()  # so that its agent ends as soon as it starts


def test_a_folder_that_could_not_be_read_at_first_is_read_again(rig, monkeypatch):
    rig.launch()
    rig.serve()
    rig.launch("t0002", exclude=("n1", "n2"))
    rig.pilot(2).job.unlink()  # its driver was killed before it knew the id
    rig.launcher, read = rig.new_launcher(), PilotPool._read_folder
    monkeypatch.setattr(PilotPool, "_read_folder", lambda pilots, pilot: (_ for _ in ()).throw(OSError("stale")))
    with pytest.raises(OSError, match="stale"):
        rig.launcher.launch(rig.request("t0003"))
    monkeypatch.setattr(PilotPool, "_read_folder", read)
    assert rig.launcher.launch(rig.request("t0003")) == rig.job(2).job_id
    assert len(rig.cluster.jobs()) == 2


@pytest.mark.parametrize("is_claimed_meanwhile", [False, True])
def test_a_request_is_found_by_the_next_driver_also_where_it_is_claimed_while_that_reads_it(rig, is_claimed_meanwhile):
    first = rig.launch()
    folder = rig.pilot()
    folder.heartbeat.write_text("alive")
    rig.look()
    assert folder.step_files()["t0001.a1"] == {StepFileKind.REQUESTED}
    rig.launcher = rig.new_launcher()
    monitor = rig.launcher._monitor
    read = monitor._step_request

    def claimed_first(pilot, label):
        assert folder.take("t0001.a1", StepFileKind.CLAIMED)
        return read(pilot, label)

    if is_claimed_meanwhile:
        monitor._step_request = claimed_first
    assert rig.launcher.adopt({first.key: first}) == {first.key: rig.job().job_id}


def fails(words: str):
    def failing(*_: object) -> None:
        raise OSError(words)

    return failing


def ended_pilot(rig: PilotBench, node_s: float | None) -> list[EndedPilot]:
    return [EndedPilot("p0001", rig.job().job_id, node_s, 2 * TAIL_S)]


def interrupted(rig: PilotBench, request) -> float:
    """Cancel the pilot: the share of this attempt, which ends with it and is tried again."""
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    rig.look()
    status = rig.status(request)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.INTERRUPTED)
    return status.extra_node_s


def test_what_was_asked_of_a_pilot_that_ended_before_it_began_anything_is_tried_again_and_pays_what_that_held(rig):
    first = rig.launch()
    folder = rig.pilot()
    folder.heartbeat.write_text("alive")
    rig.look()
    assert StepFileKind.REQUESTED in folder.step_files()["t0001.a1"]
    assert interrupted(rig, first) == rig.held_node_s() > 0.0
    assert StepFileKind.WITHDRAWN in folder.step_files()["t0001.a1"]
    assert len(rig.cluster.jobs()) == 1


def test_a_claimed_step_ends_with_its_pilot_and_pays_what_nobody_else_did(rig):
    first, _ = rig.launch(), rig.launch("t0002")
    folder = rig.serve()
    finish(folder, "t0002.a1", node_s=100.0)
    rig.cluster.advance(500.0)
    folder.heartbeat.write_text("again")
    rig.look()
    assert interrupted(rig, first) == rig.held_node_s() - 100.0


def test_what_a_pilot_holds_and_no_step_pays_is_reserved_until_its_end_is_booked(rig):
    plain = rig.launcher.longest_s(LIMIT_S, 2)
    rig.launch()
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain, "who waits for it would pay"
    finish(rig.serve(), "t0001.a1", node_s=0.0)
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain + TAIL_S
    assert rig.launcher.ended_pilots() == []
    rig.cluster.advance(200.0)
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    held = rig.held_node_s()
    assert held > 400
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain + held / 2
    assert rig.launcher.ended_pilots() == ended_pilot(rig, held)
    rig.launcher = rig.new_launcher()
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain + held / 2, "by the next driver, too, with nothing in flight"
    rig.work = replace(rig.work, booked=("p0001",))
    assert rig.launcher.longest_s(LIMIT_S, 2) == plain


def test_of_a_pilot_whose_times_nobody_knows_its_tail_is_reported(rig, monkeypatch):
    rig.launch()
    finish(rig.serve(), "t0001.a1", node_s=0.0)
    monkeypatch.setattr(JobMonitor, "_is_plausible_duration", lambda *_: False)  # a clock was set between them
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    assert rig.launcher.ended_pilots() == ended_pilot(rig, None)
    rig.launcher = rig.new_launcher()
    rig.launcher.longest_s(LIMIT_S, 2)
    assert rig.launcher.ended_pilots() == ended_pilot(rig, None)


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
    assert rig.launcher.ended_pilots() == []
    rig.look(60.0)
    assert rig.launcher.release()
    assert rig.launcher.ended_pilots() == ended_pilot(rig, None)


def test_a_pilot_whose_agent_does_not_end_when_it_is_released_is_cancelled(rig):
    rig.launch()
    finish(rig.serve(), "t0001.a1")
    releases = []
    for _ in range(3):
        releases.append(rig.launcher.release())
        rig.cluster.advance(6.0)
    assert releases == [False, False, True]
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]


def test_a_reservation_waits_while_the_pilots_cannot_be_read(rig, monkeypatch):
    monkeypatch.setattr(PilotPool, "load", fails("stale"))
    with pytest.raises(LaunchPostponed, match="stale"):
        rig.launcher.longest_s(LIMIT_S, 2)


def test_attempts_that_waited_for_an_unused_pilot_share_what_it_held_once(rig):
    rig.plan = JobPlan(100.0, exit_code=1)
    first, second = rig.launch(), rig.launch("t0002")
    rig.look(120.0)
    rig.look()
    assert [rig.status(one).extra_node_s for one in (first, second)] == [100.0, 100.0]
    assert rig.held_node_s() == 200.0
    rig.launcher = rig.new_launcher()  # after one that was killed before it had written down how they ended
    again = [replace(first, job_id=None), replace(second, job_id=rig.job().job_id)]
    assert set(rig.launcher.adopt({one.key: one for one in again})) == {first.key, second.key}
    assert [rig.status(one).extra_node_s for one in again] == [100.0, 100.0]


def test_shares_that_cannot_be_written_down_are_not_told_yet(rig, monkeypatch):
    rig.plan = JobPlan(100.0, exit_code=1)
    first = rig.launch()
    with monkeypatch.context() as patch:
        patch.setattr(PilotPool, "share_cost", fails("disk full"))
        rig.look(120.0)
        rig.look()
        assert (rig.status(first).liveness, rig.status(first).detail) == (Liveness.ALIVE, "disk full")
    assert (rig.status(first).liveness, rig.status(first).extra_node_s) == (Liveness.ENDED, 200.0)


def test_a_pilot_is_asked_for_no_longer_than_what_the_ones_before_it_left_of_the_budget(rig):
    rig.work, rig.plan = RemainingWork(1000, 1, node_hours=4.0), JobPlan(5400.0, exit_code=1)
    rig.launch()
    assert rig.job().limit_s == 2 * 3600.0
    finish(rig.serve(), "t0001.a1", node_s=0.0)
    rig.look(5400.0)
    rig.look(30.0)
    rig.launch("t0002")
    assert rig.job(2).limit_s <= (4.0 * 3600 - 2 * 5400.0) / 2 + 60.0
