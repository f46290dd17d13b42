"""Node-hours booked by a search in pilots equal those that Slurm reports, once all pilots have ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.launchers.slurm_pilot.sizing import IDLE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.search import pilot_rig as rigs
from tests.orchestrator.search.pilot_rig import PILOT_NODES, PilotRig, SimulatedAgent, pilot_rig
from trials.ledger.events import SearchRecord
from trials.ledger.reader import LedgerReader


def held_node_hours(rig: PilotRig) -> float:
    names = {job.request.name for job in rig.cluster.jobs()}
    return sum(rig.slurm.used_node_s(name) for name in names) / 3600


def accounted_node_hours(rig: PilotRig) -> float:
    """Node-hours of the pilots by Slurm's accounting, which does not count the time in which nodes are cleaned up."""
    rows = rig.cluster.accounting.rows(rig.cluster.time)
    times = [(len(row.nodes), row.started_at, row.ended_at) for row in rows if row.started_at is not None]
    return sum(nodes * (ended_at - started_at) for nodes, started_at, ended_at in times if ended_at) / 3600


def assert_booked_as_accounted(rig: PilotRig, search: SearchRecord) -> None:
    """Slurm counts whole seconds: a pilot may start and end up to one of them apart from what it booked."""
    rig.cluster.advance(IDLE_S + 300.0)
    slack = PILOT_NODES * len(rig.cluster.jobs()) / 3600
    assert search.node_hours_used == pytest.approx(accounted_node_hours(rig), abs=slack)


def test_a_search_that_has_ended_has_used_what_its_pilot_held(tmp_path):
    rig = pilot_rig(tmp_path)
    rig.limits = Limits(1, 1)
    search = rig.open_driver().run()
    rig.cluster.advance(300.0)
    assert search.node_hours_used == pytest.approx(held_node_hours(rig), rel=1e-6)
    told = LedgerReader(f"sqlite:///{tmp_path / 'ledger.db'}").search(search.search_id)
    assert told.node_hours_used == pytest.approx(search.node_hours_used)


def test_a_pilot_whose_submission_was_never_answered_is_found_ended_and_booked_when_the_search_is_cancelled(tmp_path):
    rig = pilot_rig(tmp_path)
    rig.limits = Limits(1, 1)
    rig.slurm.submissions_time_out(times=1, appears_after_s=10.0)
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + 2)
    search = rig.open_driver().run()
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(held_node_hours(rig))
    assert held_node_hours(rig) > 0.0


def test_a_pilot_that_was_never_submitted_holds_up_no_end(tmp_path):
    rig = pilot_rig(tmp_path)
    rig.slurm.submissions_busy()
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: rig.cluster.time > began + 2)
    search = rig.open_driver().run()
    assert search.ended_at - began < 30.0


@pytest.mark.slow
def test_what_a_pilot_held_whose_agent_hung_after_its_last_step_while_no_driver_lived_is_booked(tmp_path, monkeypatch):
    rig = pilot_rig(tmp_path)
    rig.limits = Limits(1, 1)
    monkeypatch.setattr(SimulatedAgent, "_is_done", False)
    driver = rig.open_driver()
    driver.recover()
    while not driver.search.trials or not driver.search.trials[0].state.is_ended:
        driver.iterate()
        rig.launcher.wait(1.0)
    rig.cluster.advance(1000.0)
    search = rig.open_driver().run()
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(held_node_hours(rig))
    assert held_node_hours(rig) > 2 * 1000.0 / 3600


@pytest.mark.parametrize("poll_s", [5.0, 200.0])
@pytest.mark.parametrize("completing_s", [0.0, 20.0, 70.0])
def test_a_pilot_is_booked_by_its_end_however_long_its_nodes_are_cleaned_up_and_however_rarely_slurm_is_queried(
    tmp_path, monkeypatch, poll_s, completing_s
):
    monkeypatch.setattr(rigs, "POLL_S", poll_s)
    rig = pilot_rig(tmp_path)
    start = rig.cluster.on_start
    rig.cluster.on_start = lambda job: replace(start(job), completing_s=completing_s)
    rig.limits = Limits(2, 1)
    assert_booked_as_accounted(rig, rig.open_driver().run())


def test_a_pilot_that_ended_idle_without_a_driver_is_booked_by_the_next_one(tmp_path):
    rig = pilot_rig(tmp_path)
    rig.limits = Limits(2, 1)
    driver = rig.open_driver()
    driver.recover()
    while not driver.search.trials or not driver.search.trials[0].state.is_ended:
        driver.iterate()
        rig.launcher.wait(1.0)
    rig.cluster.advance(2 * IDLE_S)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]
    search = rig.open_driver().run()
    assert set(search.pilots) == {"p0001", "p0002"}
    assert search.pilots["p0001"].node_hours * 3600 > PILOT_NODES * IDLE_S / 2
    assert_booked_as_accounted(rig, search)


def test_what_attempts_were_booked_beyond_what_their_pilot_held_is_given_back(tmp_path, monkeypatch):
    """An agent whose clock runs fast reports too much."""
    rig = pilot_rig(tmp_path)
    rig.limits = Limits(2, 1)
    end = rigs.CostSplitter.end
    monkeypatch.setattr(rigs.CostSplitter, "end", lambda *arguments: 2 * end(*arguments))
    search = rig.open_driver().run()
    assert search.pilots["p0001"].node_hours < 0.0
    assert_booked_as_accounted(rig, search)
