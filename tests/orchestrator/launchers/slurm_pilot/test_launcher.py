"""Pilot launcher on a simulated Slurm: when pilots are submitted, and which attempts run in them."""

from __future__ import annotations

import sys

import pytest

from orchestrator.launchers.slurm_pilot.pool import SILENT_S
from orchestrator.launchers.slurm_pilot.sizing import SLOW_START_S, STARTUP_S
from slurm.job_state import JobState
from slurm.request import Container, JobOptions, JobRequest, Runtime
from tests.fake_slurm.jobs import JobPlan
from tests.rig import LIMIT_S, finish, nodes_asked
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


def test_a_pilot_that_the_user_cancels_before_it_runs_ends_what_waits_for_it(rig):
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    first = rig.launch()
    rig.look()
    rig.cluster.cancel(rig.job().job_id)
    rig.look(30.0)
    assert rig.status(first).reason is FailureReason.CANCELLED_BY_USER


def test_a_pilot_whose_agent_hangs_at_its_start_is_cancelled_and_that_is_said(rig, logged):
    first = rig.launch()
    rig.look(STARTUP_S - 30.0)
    assert rig.job().state is JobState.RUNNING
    rig.look(35.0, times=3)
    assert rig.job().state is JobState.CANCELLED
    status = rig.status(first)
    assert (status.liveness, status.reason) == (Liveness.ENDED, FailureReason.LAUNCH_FAILURE)
    assert "its agent did not start within 5 minutes: see " in (status.detail or "")
    assert len([note for note in logged if "pilot p0001 is cancelled: its agent did not start" in note]) == 1
    assert rig.held_node_s() >= 2 * STARTUP_S


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
