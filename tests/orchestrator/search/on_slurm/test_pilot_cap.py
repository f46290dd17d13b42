"""The budget as a cap on what pilots hold, and what a search is charged for them, whatever happens to the driver, to a
pilot and to Slurm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.launchers.slurm_pilot.launcher import SlurmPilotLauncher
from orchestrator.launchers.slurm_pilot.sizing import IDLE_S
from orchestrator.search import pilot_charges
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.fake_slurm.client import FakeSlurm
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_crashes import KillPoint
from tests.rig import PILOT_NODES, Killed, Rig, SimulatedAgent, speed_of, steady
from trials.ledger.events import EndReason, Event, SearchRecord, SearchState
from trials.trial import FailureReason, TrialState

BUDGET_NODE_HOURS = 1.5
CANCELLED = FailureReason.CANCELLED_BY_SEARCH
FEW = Limits(4, 2, budget_node_hours=BUDGET_NODE_HOURS)


@pytest.fixture
def rig(tmp_path) -> Rig:
    """A search of four trials within a budget for which there is one pilot, or two short ones."""
    rig = Rig("pilot", tmp_path, FEW, settings={"min_job_age_s": 86400.0})
    rig.callbacks = DriverCallbacks(on_event=require_cap)
    return rig


def require_cap(search: SearchRecord, event: Event) -> None:
    """What was used and what is reserved are never above the budget."""
    assert search.node_hours_used + search.node_hours_reserved <= BUDGET_NODE_HOURS + 1e-9, event


def later(rig: Rig, seconds: float, action: Callable[[str], object]) -> None:
    """Do this after so many seconds to the job that runs then."""

    def due() -> None:
        for job in [job for job in rig.own_jobs() if not job.state.is_ended]:
            action(job.job_id)

    rig.cluster.at(rig.cluster.time + seconds, due)


def held_node_hours(rig: Rig) -> float:
    """Node-hours of all pilots, those that Slurm has forgotten included."""
    names = (f"{rig.folder.search_id}.{folder.name}" for folder in rig.folder.pilots.iterdir())
    return sum(map(rig.slurm.used_node_s, names)) / 3600


def ended_within_cap(rig: Rig) -> SearchRecord:
    """End the search: Slurm charged no more than the budget, the search what Slurm charged, nothing stays reserved."""
    search = rig.run()
    rig.cluster.advance(IDLE_S + 300.0)
    assert held_node_hours(rig) <= BUDGET_NODE_HOURS + 1e-9
    assert search.node_hours_used == pytest.approx(held_node_hours(rig))
    assert search.node_hours_reserved == 0.0
    return search


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "at_s", "duration_s", "expected", "pilots"),
    [
        *(("cancel", [seconds], 60.0, EndReason.MAX_TRIALS, 2) for seconds in (2.0, 40.0, 100.0)),
        ("preempt", [60.0], 60.0, EndReason.MAX_TRIALS, 2),
        ("cancel", [400.0 * number for number in range(1, 21)], 500.0, EndReason.BUDGET, None),
    ],
    ids=["never served", "first trials", "later trials", "preempted", "again and again"],
)
def test_a_pilot_that_dies_is_charged_what_it_held_and_the_next_has_what_that_left(
    rig, action, at_s, duration_s, expected, pilots
):
    rig.script = lambda spec, restart: Script(duration_s=duration_s, tokens_per_sec=speed_of(spec))
    for seconds in at_s:
        later(rig, seconds, getattr(rig.cluster, action))
    search = ended_within_cap(rig)
    assert search.end_reason is expected
    assert (search.best_trial is None) is (pilots is None), "a pilot of the last case measures nothing"
    assert pilots in (None, len(rig.own_jobs()))


@pytest.mark.slow
def test_a_pilot_that_never_starts_costs_nothing_when_its_search_is_cancelled(rig):
    for node in ("n1", "n2", "n3"):
        rig.cluster.drain_node(node)
    began = rig.cluster.time
    rig.callbacks = DriverCallbacks(require_cap, cancel_requested=lambda: rig.cluster.time > began + 300.0)
    search = ended_within_cap(rig)
    assert (search.node_hours_used, len(rig.own_jobs())) == (0.0, 1)
    assert {attempt.reason for attempt in search.attempts} == {FailureReason.CANCELLED_BY_USER}


@pytest.mark.slow
def test_a_pilot_whose_agent_never_serves_is_charged_what_it_held(rig):
    rig.startup_s = None
    search = ended_within_cap(rig)
    assert search.state is SearchState.FAILED
    assert search.node_hours_used > 0.0


@pytest.mark.slow
def test_a_search_goes_on_to_the_end_of_its_budget_and_no_further(rig):
    rig.limits = Limits(9, 1, budget_node_hours=BUDGET_NODE_HOURS)
    rig.script = lambda spec, restart: Script(duration_s=550.0, tokens_per_sec=speed_of(spec))
    search = ended_within_cap(rig)
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)
    assert search.node_hours_used > BUDGET_NODE_HOURS / 2
    assert any(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.slow
def test_what_a_pilot_held_that_was_put_back_into_the_queue_is_charged_and_never_less(rig):
    """When its first run ended is not known; what a search charges for it is no less than that held."""
    later(rig, 150.0, rig.cluster.requeue)
    search = rig.open_driver().run()
    rig.cluster.advance(IDLE_S + 300.0)
    assert search.end_reason in (EndReason.MAX_TRIALS, EndReason.BUDGET)
    first_held = rig.slurm.used_node_s(f"{rig.folder.search_id}.p0001") / 3600
    assert 0.0 < first_held <= search.pilots["p0001"].node_hours
    assert held_node_hours(rig) <= search.node_hours_used
    assert held_node_hours(rig) <= BUDGET_NODE_HOURS


@pytest.mark.slow
def test_of_a_pilot_that_slurm_forgot_no_less_is_charged_than_it_held(rig):
    rig.cluster.purges_at_once = True
    rig.cluster.accounting_down(10**6)
    search = rig.open_driver().run()
    assert search.state.is_ended
    assert held_node_hours(rig) <= search.node_hours_used + 1e-9 <= BUDGET_NODE_HOURS + 2e-9


@pytest.mark.slow
def test_a_pilot_with_too_few_good_nodes_returns_what_it_did_not_use_to_the_next_one(rig):
    """Each trial needs one of its two nodes, all of which one pilot has reserved."""
    dirty = Script(reason=FailureReason.GPU_MEMORY_IN_USE)
    rig.limits = Limits(4, 1, budget_node_hours=BUDGET_NODE_HOURS)
    rig.script = lambda spec, restart: dirty if spec.attempt == "a1" and spec.trial < "t0003" else steady(spec)
    search = ended_within_cap(rig)
    assert search.end_reason is EndReason.MAX_TRIALS
    assert len(search.pilots) == 2


@pytest.mark.slow
def test_a_trial_for_which_a_dead_pilot_leaves_no_room_is_cancelled_and_the_search_ends(rig):
    """It waits for one of two nodes, and then for a pilot that the budget does not cover any more."""
    rig.script = lambda spec, restart: Script(duration_s=550.0, tokens_per_sec=speed_of(spec))
    rig.limits = Limits(9, 3, budget_node_hours=BUDGET_NODE_HOURS)
    later(rig, 1700.0, rig.cluster.cancel)
    search = ended_within_cap(rig)
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)
    assert [trial.reason for trial in search.trials][-3:] == [*[FailureReason.INTERRUPTED] * 2, CANCELLED]


@pytest.mark.slow
@pytest.mark.parametrize("fails_first", [False, True])
def test_the_next_attempt_has_what_a_short_pilot_returns(rig, fails_first):
    """A pilot of 16 minutes has no room for a second attempt, and beside it the budget has none for another pilot."""
    failed = Script(duration_s=550.0, reason=FailureReason.LAUNCH_FAILURE)
    measured = lambda spec: Script(duration_s=550.0, tokens_per_sec=speed_of(spec))  # noqa: E731
    rig.script = lambda spec, restart: failed if fails_first and spec.attempt == "a1" else measured(spec)
    rig.limits, rig.longest_s = Limits(1 if fails_first else 2, 1, budget_node_hours=1.0), 1.0
    search = ended_within_cap(rig)
    assert [trial.state for trial in search.trials] == [TrialState.MEASURED] * (1 if fails_first else 2)
    assert len(search.pilots) == len(search.attempts) == 2


@pytest.mark.slow
def test_a_pilot_that_waits_is_cancelled_when_another_one_held_more_than_was_reserved(rig, monkeypatch):
    """A controller that is down ends no pilot in time, and the next one was reserved before that was known."""
    rig.callbacks = DriverCallbacks()
    rig.limits, rig.longest_s = Limits(9, 2, budget_node_hours=2.0), 1.0
    lasts_s = lambda spec: 300.0 if spec.trial == "t0001" else 550.0  # noqa: E731
    rig.script = lambda spec, restart: Script(duration_s=lasts_s(spec), tokens_per_sec=speed_of(spec))
    charges = iter([1.9, 0.0])
    monkeypatch.setattr(pilot_charges, "pilot_node_hours", lambda *_: next(charges))
    began, nodes = rig.cluster.time, ("n1", "n2", "n3", "n4")
    rig.cluster.at(began + 100.0, lambda: [rig.cluster.drain_node(node) for node in nodes])
    rig.cluster.at(began + 3000.0, lambda: [rig.cluster.resume_node(node) for node in nodes])
    search = rig.open_driver().run()
    assert [bool(job.nodes) for job in rig.own_jobs()] == [True, False]
    assert (search.end_reason, search.node_hours_used) == (EndReason.BUDGET, 1.9)


# -- without a budget: what is charged is what Slurm reports once all pilots have ended


@pytest.fixture
def free(tmp_path) -> Rig:
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


def test_a_pilot_whose_submission_was_never_answered_is_found_ended_and_booked_when_the_search_is_cancelled(free):
    free.slurm.submissions_time_out(times=1, appears_after_s=10.0)
    cancel_after(free, 2)
    search = free.open_driver().run()
    assert [job.state.is_ended for job in free.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(free.held_node_hours()) != 0.0


@pytest.mark.slow
def test_what_a_pilot_held_whose_agent_hung_after_its_last_step_while_no_driver_lived_is_booked(free, monkeypatch):
    monkeypatch.setattr(SimulatedAgent, "_is_done", False)
    free.iterate(until=lambda search: search.trials and search.trials[0].state.is_ended)
    free.cluster.advance(1000.0)
    search = free.open_driver().run()
    assert [job.state.is_ended for job in free.cluster.jobs()] == [True]
    assert search.node_hours_used == pytest.approx(free.held_node_hours())
    assert free.held_node_hours() > 2 * 1000.0 / 3600


@pytest.mark.parametrize(("poll_s", "completing_s"), [(5.0, 70.0), (200.0, 0.0), (200.0, 20.0)])
def test_a_pilot_is_booked_by_its_end_however_long_its_nodes_are_cleaned_up_and_however_rarely_slurm_is_queried(
    free, poll_s, completing_s
):
    start = free.cluster.on_start
    free.cluster.on_start = lambda job: replace(start(job), completing_s=completing_s)
    free.limits, free.poll_s = Limits(2, 1), poll_s
    assert_booked_as_accounted(free, free.open_driver().run())


def test_a_pilot_that_ended_idle_without_a_driver_is_booked_by_the_next_one(free):
    free.limits = Limits(2, 1)
    free.iterate(until=lambda search: search.trials and search.trials[0].state.is_ended)
    free.cluster.advance(2 * IDLE_S)
    assert [job.state.is_ended for job in free.cluster.jobs()] == [True]
    search = free.open_driver().run()
    assert set(search.pilots) == {"p0001", "p0002"}
    assert search.pilots["p0001"].node_hours * 3600 > PILOT_NODES * IDLE_S / 2
    assert_booked_as_accounted(free, search)


def waiting(free: Rig, monkeypatch) -> None:
    """Kill a driver while it ends the pilot that its cancelled search had waited for."""
    free.startup_s = None
    cancel_after(free, 30)
    monkeypatch.setattr(FakeSlurm, "cancel", KillPoint(1, after=False).guard(FakeSlurm.cancel))
    with pytest.raises(Killed):
        free.open_driver().run()


def idle(free: Rig, monkeypatch) -> None:
    """End a search while the state of its pilot is unknown, and kill its driver then."""
    monkeypatch.setattr(SlurmPilotLauncher, "release", lambda *_: True)
    assert free.open_driver().run().state.is_ended


@pytest.mark.slow
@pytest.mark.parametrize("left", [waiting, idle])
def test_pilots_of_a_driver_killed_at_the_very_end_are_ended_by_whoever_releases_them(free, monkeypatch, left):
    with monkeypatch.context() as patched:
        left(free, patched)
    assert [job.state.is_ended for job in free.cluster.jobs()] == [False]
    free.open_driver()
    assert free.launcher.cancel_leftovers() == []
    free.cluster.advance(10.0)
    assert [job.state.is_ended for job in free.cluster.jobs()] == [True]
