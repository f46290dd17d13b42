"""A driver that runs in a Slurm job of its own: what the job holds is booked, and counts against the budget."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.launchers.base import EndedPilot
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.node_hours import longest_attempt_s
from orchestrator.search.own_job import ENDING_S, RECORD_INTERVAL_S, OwnJob
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import RULES, Killed, Rig, raise_killed
from tests.orchestrator.search.slurm_rig import slurm_rig
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchRecord
from trials.ledger.journal import Journal
from trials.trial import FailureReason

ATTEMPT_H = longest_attempt_s(RULES) / 3600
ENDING_H = ENDING_S / 3600


def driver_hours(rig: Rig, search: SearchRecord) -> float:
    own = rig.own_job
    assert own is not None
    assert search.ended_at is not None
    return own.node_share * (search.ended_at - own.started_at) / 3600


def attempts_hours(search: SearchRecord) -> float:
    return sum(attempt.node_hours or 0.0 for trial in search.trials for attempt in trial.attempts)


@pytest.fixture
def rig(rig) -> Rig:
    rig.own_job = OwnJob("815", rig.launcher.now() - 100.0, 0.25)
    return rig


def test_the_drivers_job_is_booked_by_its_share_of_a_node_until_the_search_ends(rig):
    rig.limits = Limits(max_trials=3, parallel_trials=1)
    search = rig.open_driver().run()
    assert search.driver_node_hours == pytest.approx(driver_hours(rig, search))
    assert search.node_hours_used == pytest.approx(attempts_hours(search) + driver_hours(rig, search))


def test_what_a_long_search_has_used_is_recorded_from_time_to_time(rig):
    rig.limits = Limits(max_trials=9, parallel_trials=1)
    driver = rig.open_driver()
    search = driver.run()
    events = Journal(rig.path / "runs" / "rig-aaaaaa" / "journal.jsonl").read()
    recorded = [event for event in events if event.kind is EventKind.DRIVER_JOB_USED]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(recorded)]
    assert recorded[0].at == rig.own_job.started_at + 100.0
    assert 2 < len(recorded) < len(search.trials)
    assert max(gaps) < RECORD_INTERVAL_S + 120.0


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize(("room_h", "trials"), [(-1e-6, 0), (1e-6, 1)])
def test_an_attempt_starts_only_where_the_budget_covers_the_driver_until_its_end(rig, room_h, trials):
    so_far_h = 0.25 * 100.0 / 3600
    budget = so_far_h + 1.25 * ATTEMPT_H + 0.25 * ENDING_H + room_h
    rig.limits = Limits(max_trials=1, parallel_trials=1, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert len(search.trials) == trials
    assert ("and the driver's own job until the trial's end" in (search.detail or "")) == (trials == 0)
    assert search.node_hours_used <= budget


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize("share", [0.01, 0.25, 1.0])
@pytest.mark.parametrize("duration_s", [60.0, 590.0])
def test_the_budget_of_attempts_and_driver_together_is_never_exceeded(rig, share, duration_s):
    rig.own_job = OwnJob("815", rig.launcher.now() - 100.0, share)
    rig.launcher.script = lambda spec: Script(duration_s=duration_s)
    budget = 6 * ATTEMPT_H
    rig.limits = Limits(max_trials=9, parallel_trials=2, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert len(search.trials) > 1
    assert attempts_hours(search) + driver_hours(rig, search) <= budget


def test_an_attempt_that_waits_is_cancelled_once_the_driver_has_used_what_it_would_need(tmp_path):
    rig = slurm_rig(tmp_path)
    for node in rig.cluster.nodes:
        rig.cluster.drain_node(node)
    budget = 4 * ATTEMPT_H
    rig.own_job = OwnJob("815", rig.cluster.time, 1.0)
    rig.limits = Limits(max_trials=9, parallel_trials=1, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert search.end_reason is EndReason.BUDGET
    assert [trial.reason for trial in search.trials] == [FailureReason.CANCELLED_BY_SEARCH]
    assert ATTEMPT_H < driver_hours(rig, search) <= budget - ATTEMPT_H


def test_the_next_drivers_job_is_booked_beside_that_of_one_that_was_killed(rig):
    rig.limits = Limits(max_trials=3, parallel_trials=1)
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: raise_killed(event.kind is EventKind.TRIAL_ENDED))
    with pytest.raises(Killed):
        rig.open_driver().run()
    rig.launcher.clock += 200.0
    rig.callbacks = DriverCallbacks()
    rig.own_job = OwnJob("816", rig.launcher.now(), 0.25)
    search = rig.open_driver().run()
    assert list(search.driver_jobs) == ["815", "816"]
    assert search.driver_jobs["816"].node_hours == pytest.approx(driver_hours(rig, search))
    assert search.node_hours_used == pytest.approx(attempts_hours(search) + search.driver_node_hours)


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize("what", ["driver", "pilot"])
def test_what_the_finals_cost_does_not_change_the_reason_why_no_more_layouts_were_tried(rig, what):
    """After the last repeat the budget covers no other attempt; before the first it did."""
    rig.launcher.script = lambda spec: Script(duration_s=290.0)
    rig.own_job = OwnJob("815", rig.launcher.now(), 1.0) if what == "driver" else None
    if what == "pilot":
        rig.launcher.ended_pilots = lambda: [EndedPilot("p0001", "4711", 3000.0, 0.0)] * (len(rig.launcher.jobs) > 12)
    repeats = {"finalists": 2, "finalist_repeats": 2, "finals": Finals.FIXED}
    used_s = 13 * 290.0 if what == "pilot" else 26 * 290.0
    rig.limits = Limits(9, 1, budget_node_hours=(used_s + 800.0) / 3600, **repeats)
    search = rig.open_driver().run()
    assert len(search.trials) == 13
    assert search.end_reason is EndReason.MAX_TRIALS
