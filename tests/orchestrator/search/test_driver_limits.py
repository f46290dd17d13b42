"""Limits of a search: node-hours, wall time, queue wait, and a quota shared by several searches."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from orchestrator.common.logs import sending_to
from orchestrator.launchers.base import ENDING_ALLOWANCE_S
from orchestrator.samplers.model_free import GridSampler
from orchestrator.search import stopping
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.node_hours import longest_attempt_s
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.orchestrator.search.rig import LAYOUTS, RULES, Killed, raise_killed
from trials.attempt_result import LaunchStatus, Liveness
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason


@pytest.mark.usefixtures("constant_limits")
def test_the_budget_holds_with_everything_in_flight_reserved_to_its_limit(rig):
    rig.limits = Limits(max_trials=9, parallel_trials=3, budget_node_hours=2.5 * longest_attempt_s(RULES) / 3600)
    search = rig.open_driver().run()
    assert rig.launcher.most_in_flight == 2
    assert search.end_reason is EndReason.MAX_TRIALS  # what was reserved and not used is given back
    assert search.node_hours_used == pytest.approx(9 * 60 / 3600)


def test_a_limit_follows_the_trials_and_so_does_what_is_reserved(rig):
    rig.limits = Limits(max_trials=5, parallel_trials=1)
    search = rig.open_driver().run()
    limits = [trial.attempts[0].time_limit_s for trial in search.trials]
    assert (
        limits
        == [600.0] * 3 + [pytest.approx(stopping.TIME_LIMIT_FACTOR * 60 + stopping.TIME_LIMIT_MARGIN_S, abs=2)] * 2
    )
    assert [t.attempts[0].reserved_s - t.attempts[0].time_limit_s for t in search.trials] == [ENDING_ALLOWANCE_S] * 5


def test_a_search_that_waits_too_long_for_its_queue_ends(rig):
    rig.launcher.script = lambda spec: Script(waits_s=5000.0)
    rig.limits = Limits(max_trials=9, parallel_trials=2, idle_limit_s=3600.0)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.IDLE)
    waits = "t0001.a1 waits: Priority; t0002.a1 waits: Priority"
    assert search.detail == f"nothing has started or ended for 3600 s; {waits}"
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


def test_what_a_job_waits_for_is_said_once_it_has_lasted_a_minute(rig):
    held = LaunchStatus(Liveness.ALIVE, detail="PartitionDown")
    rig.launcher.script = lambda spec: Script(look=lambda request, number: held if number <= 200 else None)
    rig.limits, said = Limits(max_trials=1, parallel_trials=1), []
    sink = logging.Handler()
    sink.emit = lambda record: said.append((record.getMessage(), rig.launcher.now()))
    with sending_to(sink):
        [attempt] = rig.open_driver().run().trials[0].attempts
    assert said == [("t0001.a1 waits: PartitionDown", pytest.approx(attempt.submitted_at + 60.0, abs=1.0))]


def test_a_search_whose_trials_run_is_not_idle_however_long_they_take(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0)
    rig.limits = Limits(max_trials=3, parallel_trials=1, idle_limit_s=300.0)
    assert rig.open_driver().run().end_reason is EndReason.MAX_TRIALS


def test_a_spent_budget_ends_the_search_and_is_never_exceeded(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0)
    budget = 3.5 * longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=2, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)
    assert 0.7 * budget < search.node_hours_used <= budget
    assert all(t.state.is_ended for t in search.trials)


def test_retries_count_against_the_budget(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0, reason=FailureReason.NODE_FAILURE)
    budget = 2.1 * longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=1, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.BUDGET)
    assert [len(t.attempts) for t in search.trials] == [2]
    assert search.node_hours_used <= budget


def test_wall_time_ends_the_search_and_cancels_what_runs(rig):
    rig.limits = replace(rig.limits, parallel_trials=1, max_wall_time_s=200.0)
    rig.launcher.script = lambda spec: Script(duration_s=150.0)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.WALL_TIME)
    assert all(t.state.is_ended for t in search.trials)


def test_nothing_is_proposed_while_a_trial_waits_for_room_in_the_budget(rig):
    reserved = longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=3, budget_node_hours=1.5 * reserved)
    waiting = []
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: waiting.append(sum(not t.attempts for t in search.trials))
    )
    rig.open_driver().run()
    assert max(waiting) <= 3


def test_an_attempt_never_costs_more_than_was_reserved_for_it(rig):
    """Not even if its end is reported days later."""
    rig.limits = replace(rig.limits, max_trials=1)
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: raise_killed(event.kind is EventKind.ATTEMPT_RUNNING)
    )
    with pytest.raises(Killed):
        rig.open_driver().run()
    rig.launcher = ScriptedLauncher(clock=rig.launcher.clock + 3 * 86400)
    rig.callbacks = DriverCallbacks()
    first, _ = rig.open_driver().run().trials[0].attempts
    assert first.reason is FailureReason.JOB_LOST
    assert first.node_hours == pytest.approx(longest_attempt_s(RULES) / 3600)


def test_no_more_trials_begin_than_the_search_is_granted(rig):
    rig.limits = replace(rig.limits, parallel_trials=4)
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: min(more, 2 - held))
    search = rig.open_driver().run()
    assert rig.launcher.most_in_flight == 2
    assert (len(search.trials), search.end_reason) == (9, EndReason.MAX_TRIALS)


def test_a_search_that_may_begin_nothing_waits_and_goes_on_when_it_may(rig):
    answers = iter([0, 0, 0])
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: next(answers, more))
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.MAX_TRIALS)


@pytest.mark.slow
def test_a_search_that_waits_for_its_share_does_not_ask_its_sampler_again_and_again(rig, monkeypatch):
    answers, asked = iter([0] * 20), []
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: next(answers, more))
    ask = GridSampler.ask
    monkeypatch.setattr(GridSampler, "ask", lambda sampler, n, known: asked.append(n) or ask(sampler, n, known))
    assert len(rig.open_driver().run().trials) == 9
    assert next(answers, None) is None
    assert len(asked) <= 1 + 9


@pytest.mark.slow
def test_a_search_wants_no_more_trials_than_it_has_layouts_for(rig):
    asked = []
    rig.limits = replace(rig.limits, parallel_trials=4, max_trials=50)
    rig.callbacks = DriverCallbacks(grant_slots=lambda held, more: asked.append((held, more)) or more)
    rig.launcher.script = lambda spec: Script(duration_s=100.0 + 40 * LAYOUTS.index(spec.layout))
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.SPACE_EXHAUSTED)
    assert all(held + more <= 4 for held, more in asked)
    assert (1, 0) in asked  # the last layouts are in flight, and there is nothing more to try
