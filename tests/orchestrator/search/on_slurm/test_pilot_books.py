"""Node-hours charged to a search in pilots equal those that Slurm reports, once all pilots have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import IDLE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.fake_slurm.client import FakeSlurm
from tests.orchestrator.search.on_slurm.test_crashes import KillPoint
from tests.rig import PILOT_NODES, Killed, Rig, SimulatedAgent
from trials.ledger.events import SearchRecord


@pytest.fixture
def rig(tmp_path) -> Rig:
    """A search of one trial, on four nodes whose controller keeps its job records."""
    return Rig("pilot", tmp_path, Limits(1, 1), settings={"min_job_age_s": 86400.0})


def cancel_after(rig: Rig, seconds: float) -> None:
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + seconds)


def assert_booked_as_accounted(rig: Rig, search: SearchRecord) -> None:
    """Compare with Slurm's accounting, which counts whole seconds and no cleaning up of nodes."""
    rig.cluster.advance(IDLE_S + 300.0)
    rows = rig.cluster.accounting.rows(rig.cluster.time)
    times = [(len(row.nodes), row.started_at, row.ended_at) for row in rows if row.started_at is not None]
    accounted = sum(nodes * (ended_at - started_at) for nodes, started_at, ended_at in times if ended_at) / 3600
    assert search.node_hours_used == pytest.approx(accounted, abs=PILOT_NODES * len(rig.cluster.jobs()) / 3600)


def test_a_pilot_whose_submission_was_never_answered_is_found_ended_and_booked_when_the_search_is_cancelled(rig):
    rig.slurm.submissions_time_out(times=1, appears_after_s=10.0)
    cancel_after(rig, 2)
    search = rig.open_driver().run()
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(rig.held_node_hours()) != 0.0


@pytest.mark.slow
def test_what_a_pilot_held_whose_agent_hung_after_its_last_step_while_no_driver_lived_is_booked(rig, monkeypatch):
    monkeypatch.setattr(SimulatedAgent, "_is_done", False)
    rig.iterate(until=lambda search: search.trials and search.trials[0].state.is_ended)
    rig.cluster.advance(1000.0)
    search = rig.open_driver().run()
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(rig.held_node_hours())
    assert rig.held_node_hours() > 2 * 1000.0 / 3600


@pytest.mark.parametrize(("poll_s", "completing_s"), [(5.0, 70.0), (200.0, 0.0), (200.0, 20.0)])
def test_a_pilot_is_booked_by_its_end_however_long_its_nodes_are_cleaned_up_and_however_rarely_slurm_is_queried(
    rig, poll_s, completing_s
):
    start = rig.cluster.on_start
    rig.cluster.on_start = lambda job: replace(start(job), completing_s=completing_s)
    rig.limits, rig.poll_s = Limits(2, 1), poll_s
    assert_booked_as_accounted(rig, rig.open_driver().run())


def test_a_pilot_that_ended_idle_without_a_driver_is_booked_by_the_next_one(rig):
    rig.limits = Limits(2, 1)
    rig.iterate(until=lambda search: search.trials and search.trials[0].state.is_ended)
    rig.cluster.advance(2 * IDLE_S)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    search = rig.open_driver().run()
    assert set(search.pilots) == {"p0001", "p0002"}
    assert search.pilots["p0001"].node_hours * 3600 > PILOT_NODES * IDLE_S / 2
    assert_booked_as_accounted(rig, search)


def waiting(rig: Rig, monkeypatch) -> None:
    """Kill a driver while it ends the pilot that its cancelled search had waited for."""
    rig.startup_s = None
    cancel_after(rig, 30)
    monkeypatch.setattr(FakeSlurm, "cancel", KillPoint(1, after=False).guard(FakeSlurm.cancel))
    with pytest.raises(Killed):
        rig.open_driver().run()


def idle(rig: Rig, monkeypatch) -> None:
    """End a search while the state of its pilot is unknown, and kill its driver then."""
    monkeypatch.setattr(SlurmPilotLauncher, "release", lambda *_: True)
    assert rig.open_driver().run().state.is_ended


@pytest.mark.slow
@pytest.mark.parametrize("left", [waiting, idle])
def test_pilots_of_a_driver_killed_at_the_very_end_are_ended_by_whoever_releases_them(rig, monkeypatch, left):
    with monkeypatch.context() as patched:
        left(rig, patched)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [False]
    rig.open_driver()
    assert rig.launcher.cancel_leftovers() == []
    rig.cluster.advance(10.0)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
