"""Node-hours booked by a search in pilots equal those that Slurm reports, once all pilots have ended."""

from __future__ import annotations

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.search.pilot_rig import PilotRig, SimulatedAgent, pilot_rig
from trials.ledger.reader import LedgerReader


def held_node_hours(rig: PilotRig) -> float:
    names = {job.request.name for job in rig.cluster.jobs()}
    return sum(rig.slurm.used_node_s(name) for name in names) / 3600


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
