"""Cost of pilots: before a step, after it, and where none started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.launchers.base import EndedPilot, LaunchPostponed
from orchestrator.launchers.slurm.monitor import JobMonitor
from orchestrator.launchers.slurm_pilot.allocations import PilotPool
from orchestrator.launchers.slurm_pilot.sizing import TAIL_S, RemainingWork
from tests.fake_slurm.jobs import JobPlan
from tests.rig import LIMIT_S, PilotBench, finish
from trials.attempt_result import Liveness
from trials.pilot.files import StepFileKind
from trials.trial import FailureReason


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
