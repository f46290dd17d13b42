"""Limits of a search: node-hours, also of its driver's own job, wall time, queue wait, and a shared quota."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.config.schema.launcher import ENDING_ALLOWANCE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.index import SearchIndex
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from orchestrator.search.samplers.base import GridSampler
from orchestrator.search.stopping import TIME_LIMIT_FACTOR, TIME_LIMIT_MARGIN_S, Limits, time_limit_s
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.rig import LAYOUTS, RULES, Killed, raise_killed
from trials.analysis.finals import Finals
from trials.analysis.ranking import Objective
from trials.attempt_result import LaunchStatus, Liveness
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialState

ATTEMPT_H = (RULES.time_limit_s + LAUNCHER_GRACE_S + ENDING_ALLOWANCE_S) / 3600
MOST_S = 1800.0


def lasting(seconds: float, reason: FailureReason | None = None):
    return lambda spec, restart: Script(duration_s=seconds, reason=reason)


@pytest.mark.usefixtures("constant_limits")
def test_the_budget_holds_with_everything_in_flight_reserved_to_its_limit(rig):
    rig.limits = Limits(max_trials=9, parallel_trials=3, budget_node_hours=2.5 * ATTEMPT_H)
    search = rig.run()
    assert rig.launcher.most_in_flight == 2
    assert search.end_reason is EndReason.MAX_TRIALS  # what was reserved and not used is given back
    assert search.node_hours_used == pytest.approx(9 * 60 / 3600)


def test_a_limit_follows_the_trials_and_so_does_what_is_reserved(rig):
    rig.limits = Limits(max_trials=5, parallel_trials=1)
    attempts = [trial.attempts[0] for trial in rig.run().trials]
    later_s = pytest.approx(TIME_LIMIT_FACTOR * 60 + TIME_LIMIT_MARGIN_S, abs=2)
    assert [attempt.time_limit_s for attempt in attempts] == [600.0] * 3 + [later_s] * 2
    assert [attempt.reserved_s - attempt.time_limit_s for attempt in attempts] == [ENDING_ALLOWANCE_S] * 5


def index_of(*durations_s: float, failed: int = 0, nodes: tuple[int, ...] = ()) -> SearchIndex:
    """A search with trials that took so long on so many nodes (1 where that is not said), and others that failed."""
    ran = [(seconds, None, count) for seconds, count in zip(durations_s, nodes or (1,) * len(durations_s), strict=True)]
    trials = []
    for number, (seconds, reason, count) in enumerate([*ran, *[(1.0, FailureReason.GPU_OOM, 1)] * failed]):
        name, state = f"t{number:04d}", TrialState.FAILED if reason else TrialState.MEASURED
        times = {"started_at": 1e9, "ended_at": 1e9 + seconds}
        attempt = Attempt(name, "a1", "0" * 32, count, MOST_S, state=state, reason=reason, **times)
        trials.append(Trial(name, Layout(), state=state, reason=reason, attempts=(attempt,)))
    record = SearchRecord("limits-aaaaaa", {}, "c0de", 1e9, trials=tuple(trials))
    return SearchIndex(record, Objective.TOKENS_PER_SEC, 1)


@pytest.mark.parametrize(
    ("durations_s", "failed", "expected_s"),
    [
        ((10.0, 20.0), 0, MOST_S),
        ((10.0, 20.0), 3, MOST_S),
        ((10.0, 100.0, 20.0), 0, TIME_LIMIT_FACTOR * 100 + TIME_LIMIT_MARGIN_S),
        ((10.0, 1700.0, 20.0), 0, MOST_S),
        ((-5.0, -5.0, -5.0), 0, TIME_LIMIT_MARGIN_S),
    ],
    ids=["too few", "failures say nothing", "longest", "never more than the file says", "a clock went back"],
)
def test_the_limit_follows_the_longest_measured_trial_with_room(durations_s, failed, expected_s):
    assert time_limit_s(index_of(*durations_s, failed=failed), MOST_S, 1) == pytest.approx(expected_s)


def test_fewer_nodes_are_given_the_longer_for_the_same_work_and_more_no_less():
    index = index_of(60.0, 60.0, 60.0, nodes=(2, 4, 4))
    limits_s = [time_limit_s(index, MOST_S, nodes) for nodes in (1, 2, 4, 8)]
    assert limits_s == [TIME_LIMIT_FACTOR * longest_s + TIME_LIMIT_MARGIN_S for longest_s in (240.0, 120.0, 60.0, 60.0)]


def test_a_search_that_waits_too_long_for_its_queue_ends(rig):
    rig.script = lambda spec, restart: Script(waits_s=5000.0)
    rig.limits = Limits(max_trials=9, parallel_trials=2, idle_limit_s=3600.0)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.IDLE)
    waits = "t0001.a1 waits: Priority; t0002.a1 waits: Priority"
    assert search.detail == f"nothing has started or ended for 3600 s; {waits}"
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


def test_a_search_whose_trials_run_is_not_idle_however_long_they_take(rig):
    rig.script = lasting(590.0)
    rig.limits = Limits(max_trials=3, parallel_trials=1, idle_limit_s=300.0)
    assert rig.run().end_reason is EndReason.MAX_TRIALS


def test_a_spent_budget_ends_the_search_and_is_never_exceeded(rig):
    rig.script, budget = lasting(590.0), 3.5 * ATTEMPT_H
    rig.limits = Limits(max_trials=9, parallel_trials=2, budget_node_hours=budget)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)
    assert 0.7 * budget < search.node_hours_used <= budget
    assert all(t.state.is_ended for t in search.trials)


def test_retries_count_against_the_budget(rig):
    rig.script = lasting(590.0, FailureReason.NODE_FAILURE)
    rig.limits = Limits(max_trials=9, parallel_trials=1, budget_node_hours=2.1 * ATTEMPT_H)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.BUDGET)
    assert [len(t.attempts) for t in search.trials] == [2]


def test_wall_time_ends_the_search_and_cancels_what_runs(rig):
    rig.limits = replace(rig.limits, parallel_trials=1, max_wall_time_s=200.0)
    rig.script = lasting(150.0)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.WALL_TIME)


def test_nothing_is_proposed_while_a_trial_waits_for_room_in_the_budget(rig):
    rig.limits, waiting = Limits(max_trials=9, parallel_trials=3, budget_node_hours=1.5 * ATTEMPT_H), []
    note = lambda search, event: waiting.append(sum(not t.attempts for t in search.trials))  # noqa: E731
    rig.callbacks = DriverCallbacks(on_event=note)
    rig.run()
    assert max(waiting) <= 3


def test_an_attempt_never_costs_more_than_was_reserved_for_it(rig):
    """Not even if its end is reported days later."""
    rig.limits = replace(rig.limits, max_trials=1)
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: raise_killed(event.kind is EventKind.ATTEMPT_RUNNING)
    )
    with pytest.raises(Killed):
        rig.run()
    rig.launcher = ScriptedLauncher(clock=rig.launcher.clock + 3 * 86400)
    rig.callbacks = DriverCallbacks()
    first, again = rig.run().trials[0].attempts
    assert (first.reason, again.reason) == (FailureReason.JOB_LOST, None)
    assert first.node_hours == pytest.approx(ATTEMPT_H)


@pytest.mark.slow
def test_no_more_trials_begin_than_the_search_is_granted_and_none_are_asked_for_in_vain(rig, monkeypatch):
    answers, asked = iter([0] * 20), []
    ask = GridSampler.ask
    monkeypatch.setattr(GridSampler, "ask", lambda sampler, n, known: asked.append(n) or ask(sampler, n, known))
    rig.limits = replace(rig.limits, parallel_trials=4)
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: min(more, next(answers, 2 - held)))
    search = rig.run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.MAX_TRIALS)
    assert rig.launcher.most_in_flight == 2
    assert next(answers, None) is None
    assert len(asked) <= 1 + 9, "the sampler is not asked while the search waits for its share"


@pytest.mark.slow
def test_a_search_wants_no_more_trials_than_it_has_layouts_for(rig):
    asked = []
    rig.limits = replace(rig.limits, parallel_trials=4, max_trials=50)
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: asked.append((held, more)) or more)
    rig.script = lambda spec, restart: Script(duration_s=100.0 + 40 * LAYOUTS.index(spec.layout))
    search = rig.run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.SPACE_EXHAUSTED)
    assert all(held + more <= 4 for held, more in asked)
    assert (1, 0) in asked  # the last layouts are in flight, and there is nothing more to try


@pytest.mark.usefixtures("constant_limits")
def test_what_the_finals_cost_does_not_change_the_reason_why_no_more_layouts_were_tried(rig):
    """After the last repeat the budget covers no other attempt; before the first it did."""
    rig.script = lambda spec, restart: Script(duration_s=290.0)
    held = LaunchStatus(Liveness.ENDED, started=True, started_at=0.0, ended_at=3000.0, is_metered=True)
    rig.launcher.ended_pilots = lambda: {"p0001": held} if len(rig.launcher.jobs) > 12 else {}
    repeats = {"finalists": 2, "finalist_repeats": 2, "finals": Finals.FIXED}
    rig.limits = Limits(9, 1, budget_node_hours=(13 * 290.0 + 800.0) / 3600, **repeats)
    driver = rig.open_driver()
    rig.launcher.reserve_pilot("p0001", 1, 0.0)
    search = driver.run()
    assert (len(search.trials), search.pilots["p0001"].node_hours) == (13, 3000.0 / 3600)
    assert search.end_reason is EndReason.MAX_TRIALS


def test_a_trial_waits_for_what_a_pilot_returns_that_has_no_room_for_it(rig):
    """One on two nodes would need less."""
    held = LaunchStatus(Liveness.ENDED, started=True, started_at=0.0, ended_at=360.0, is_metered=True)
    released = []
    launcher = rig.launcher
    launcher.runs_steps, launcher.num_choosable_nodes = True, lambda: 2
    launcher.release = lambda gives_up=True: released.append(gives_up) or True
    launcher.ended_pilots = lambda: {"p0001": held} if released else {}
    launcher.reservation_node_s = lambda limit_s, num_nodes: 0.0 if released or num_nodes == 2 else 1e6
    rig.limits = Limits(max_trials=1, parallel_trials=1, budget_node_hours=1.0)
    driver = rig.open_driver()
    launcher.reserve_pilot("p0001", 1, 3600.0)
    search = driver.run()
    assert [trial.state for trial in search.trials] == [TrialState.MEASURED]
    assert (released[0], search.node_hours_used) == (False, 0.1)
