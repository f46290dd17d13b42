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
from tests.rig import RULES, Killed, Rig, attempts_of, raise_killed
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchRecord
from trials.ledger.journal import Journal
from trials.trial import FailureReason

ATTEMPT_H = longest_attempt_s(RULES) / 3600
ENDING_H = ENDING_S / 3600


def driver_hours(rig: Rig, search: SearchRecord) -> float:
    return rig.own_job.node_share * (search.ended_at - rig.own_job.started_at) / 3600


def attempts_hours(search: SearchRecord) -> float:
    return sum(attempt.node_hours or 0.0 for attempt in attempts_of(search))


@pytest.fixture
def rig(rig) -> Rig:
    rig.own_job = OwnJob("815", rig.launcher.now() - 100.0, 0.25)
    return rig


def test_the_drivers_job_is_booked_by_its_share_of_a_node_from_time_to_time_and_when_the_search_ends(rig):
    rig.limits = Limits(max_trials=9, parallel_trials=1)
    search = rig.run()
    assert search.driver_node_hours == pytest.approx(driver_hours(rig, search))
    assert search.node_hours_used == pytest.approx(attempts_hours(search) + driver_hours(rig, search))
    recorded = [event for event in Journal(rig.folder.journal).read() if event.kind is EventKind.DRIVER_JOB_USED]
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(recorded)]
    assert recorded[0].at == rig.own_job.started_at + 100.0
    assert 2 < len(recorded) < len(search.trials)
    assert max(gaps) < RECORD_INTERVAL_S + 120.0


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize(("room_h", "trials"), [(-1e-6, 0), (1e-6, 1)])
def test_an_attempt_starts_only_where_the_budget_covers_the_driver_until_its_end(rig, room_h, trials):
    budget = 0.25 * 100.0 / 3600 + 1.25 * ATTEMPT_H + 0.25 * ENDING_H + room_h
    rig.limits = Limits(max_trials=1, parallel_trials=1, budget_node_hours=budget)
    search = rig.run()
    assert len(search.trials) == trials
    assert ("and the driver's own job until the trial's end" in (search.detail or "")) == (trials == 0)


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize("share", [0.01, 1.0])
@pytest.mark.parametrize("duration_s", [60.0, 590.0])
def test_the_budget_of_attempts_and_driver_together_is_never_exceeded(rig, share, duration_s):
    rig.own_job = OwnJob("815", rig.launcher.now() - 100.0, share)
    rig.script = lambda spec, restart: Script(duration_s=duration_s)
    rig.limits = Limits(max_trials=9, parallel_trials=2, budget_node_hours=6 * ATTEMPT_H)
    search = rig.run()
    assert len(search.trials) > 1
    assert attempts_hours(search) + driver_hours(rig, search) <= 6 * ATTEMPT_H


def test_an_attempt_that_waits_is_cancelled_once_the_driver_has_used_what_it_would_need(tmp_path):
    rig = Rig("jobs", tmp_path, Limits(max_trials=9, parallel_trials=1, budget_node_hours=4 * ATTEMPT_H))
    for node in rig.cluster.nodes:
        rig.cluster.drain_node(node)
    rig.own_job = OwnJob("815", rig.cluster.time, 1.0)
    search = rig.run()
    assert search.end_reason is EndReason.BUDGET
    assert [trial.reason for trial in search.trials] == [FailureReason.CANCELLED_BY_SEARCH]
    assert ATTEMPT_H < driver_hours(rig, search) <= 3 * ATTEMPT_H


def test_the_next_drivers_job_is_booked_beside_that_of_one_that_was_killed(rig):
    rig.limits = Limits(max_trials=3, parallel_trials=1)
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: raise_killed(event.kind is EventKind.TRIAL_ENDED))
    with pytest.raises(Killed):
        rig.run()
    rig.launcher.clock += 200.0
    rig.callbacks, rig.own_job = DriverCallbacks(), OwnJob("816", rig.launcher.now(), 0.25)
    search = rig.run()
    assert list(search.driver_jobs) == ["815", "816"]
    assert search.driver_jobs["816"].node_hours == pytest.approx(driver_hours(rig, search))
    assert search.node_hours_used == pytest.approx(attempts_hours(search) + search.driver_node_hours)


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize(("what", "used_s"), [("driver", 26 * 290.0), ("pilot", 13 * 290.0)])
def test_what_the_finals_cost_does_not_change_the_reason_why_no_more_layouts_were_tried(rig, what, used_s):
    """After the last repeat the budget covers no other attempt; before the first it did."""
    rig.script = lambda spec, restart: Script(duration_s=290.0)
    rig.own_job = OwnJob("815", rig.launcher.now(), 1.0) if what == "driver" else None
    if what == "pilot":
        rig.launcher.ended_pilots = lambda: [EndedPilot("p0001", "4711", 3000.0, 0.0)] * (len(rig.launcher.jobs) > 12)
    repeats = {"finalists": 2, "finalist_repeats": 2, "finals": Finals.FIXED}
    rig.limits = Limits(9, 1, budget_node_hours=(used_s + 800.0) / 3600, **repeats)
    search = rig.open_driver().run()
    assert len(search.trials) == 13
    assert search.end_reason is EndReason.MAX_TRIALS
