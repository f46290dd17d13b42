"""Pilots of an earlier driver, and pilots when a driver ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.launchers.base import LaunchPostponed
from orchestrator.launchers.slurm_pilot.pool import PilotPool
from slurm.job_state import JobState
from tests.rig import PilotBench, finish, nodes_asked
from trials.pilot.files import StepFileKind, StepStart, write


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
    assert rig.launcher.adopt({request.key: request}) == {}
    assert rig.launcher.launch(request) == rig.job().job_id
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
    assert full.launcher.cancel([first.key]) == set()
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
