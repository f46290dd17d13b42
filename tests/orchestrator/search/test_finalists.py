"""Repeats of the finalists: selection, order, budget and effect on the result."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.samplers.model_free import GridSampler
from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import LAYOUTS, RULES, Killed, Rig
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.trial import FailureReason, TrialKind, TrialState

pytestmark = pytest.mark.slow

FASTEST, SECOND, THIRD = LAYOUTS[8], LAYOUTS[7], LAYOUTS[6]


@pytest.fixture
def rig(tmp_path):
    limits = Limits(max_trials=9, parallel_trials=1, finalists=2, finalist_repeats=2, finals=Finals.FIXED)
    rig = Rig(tmp_path, limits=limits)
    rig.launcher.script = steady
    return rig


def speed_of(layout) -> float:
    return 1000.0 + 100 * LAYOUTS.index(layout)


def steady(spec) -> Script:
    return Script(tokens_per_sec=speed_of(spec.layout))


def repeats_of(search) -> list:
    return [trial.layout for trial in search.trials if trial.kind is TrialKind.REPEAT]


def test_the_best_are_measured_again_in_rounds_after_all_layouts_were_tried(rig):
    search = rig.open_driver().run()
    assert [t.kind for t in search.trials] == [TrialKind.SEARCH] * 9 + [TrialKind.REPEAT] * 4
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)


def test_what_runs_today_is_measured_again_last_in_each_round(rig):
    rig.first = (LAYOUTS[0],)
    assert repeats_of(rig.open_driver().run()) == [FASTEST, SECOND, LAYOUTS[0]] * 2


def test_what_runs_today_is_not_repeated_twice_where_it_is_among_the_best(rig):
    rig.first = (SECOND,)
    assert repeats_of(rig.open_driver().run()) == [FASTEST, SECOND] * 2


def test_without_finalists_nothing_is_measured_again(rig):
    rig.limits, rig.first = replace(rig.limits, finalists=0), (LAYOUTS[0],)
    assert repeats_of(rig.open_driver().run()) == []


def test_a_layout_of_another_global_batch_is_never_measured_again(rig):
    rig.first = (replace(LAYOUTS[0], grad_accum_steps=2),)
    rig.launcher.script = lambda spec: Script(tokens_per_sec=9000.0) if spec.trial == "t0001" else steady(spec)
    assert repeats_of(rig.open_driver().run()) == [LAYOUTS[7], LAYOUTS[6]] * 2


def test_a_search_that_measured_nothing_repeats_nothing(rig):
    rig.launcher.script = lambda spec: Script(reason=FailureReason.GPU_OOM)
    search = rig.open_driver().run()
    assert (search.end_reason, repeats_of(search)) == (EndReason.NO_FEASIBLE_LAYOUT, [])


def test_a_space_that_ran_out_is_followed_by_repeats_too(rig):
    rig.limits = replace(rig.limits, max_trials=50)
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert search.end_reason is EndReason.SPACE_EXHAUSTED


def test_a_round_begins_when_the_one_before_has_ended(rig):
    rig.limits = replace(rig.limits, parallel_trials=3)
    rig.launcher.script = lambda spec: replace(steady(spec), duration_s=500.0 if spec.trial == "t0010" else 10.0)
    search = rig.open_driver().run()
    slow, quick, *second_round = (t.last_attempt for t in search.trials[9:])
    assert quick.started_at < slow.ended_at
    assert all(attempt.submitted_at >= slow.ended_at for attempt in second_round)


def test_within_a_round_a_freed_slot_is_filled_while_others_still_run(rig):
    rig.limits = replace(rig.limits, parallel_trials=2, finalists=3, finalist_repeats=1)
    rig.launcher.script = lambda spec: replace(steady(spec), duration_s=500.0 if spec.trial == "t0010" else 10.0)
    slow, _, third = (trial.last_attempt for trial in rig.open_driver().run().trials[9:])
    assert third.started_at < slow.ended_at


def test_repeats_that_change_the_ranking_change_the_winner_and_not_who_is_repeated(rig):
    def fastest_was_lucky(spec) -> Script:
        lucky = spec.layout == FASTEST and spec.kind is TrialKind.REPEAT
        return Script(tokens_per_sec=1000.0) if lucky else steady(spec)

    rig.launcher.script = fastest_was_lucky
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert search.trial(search.best_trial).layout == SECOND
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert (best["trial"], best["tokens_per_sec"]) == (search.best_trial, pytest.approx(speed_of(SECOND)))


def test_best_json_holds_the_speed_over_all_runs_of_the_best(rig):
    rig.launcher.script = lambda spec: (
        Script(tokens_per_sec=1750.0) if spec.kind is TrialKind.REPEAT and spec.layout == FASTEST else steady(spec)
    )
    search = rig.open_driver().run()
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert (best["trial"], best["tokens_per_sec"]) == ("t0009", pytest.approx(1750.0))


def test_of_finalists_that_cannot_be_told_apart_the_one_with_memory_to_spare_is_the_best(rig):
    def alike(spec) -> Script:
        tokens_per_sec = speed_of(spec.layout) if spec.layout not in (FASTEST, SECOND) else 2000.0
        is_first = spec.layout == FASTEST
        return Script(tokens_per_sec=tokens_per_sec + is_first, peak_memory_gib=3.0 if is_first else 2.0)

    rig.launcher.script, told = alike, []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: told.append(event))
    search = rig.open_driver().run()
    changes = [event.data["trial"] for event in told if event.kind is EventKind.BEST_CHANGED]
    assert changes[-2:] == ["t0009", "t0008"], "the fastest until the other was measured again"
    assert search.best_trial == "t0008"
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert (best["trial"], best["tokens_per_sec"]) == ("t0009", pytest.approx(2001.0)), "which trials compare with"


def on_two_nodes(layout: Layout) -> Layout:
    return replace(
        layout, num_nodes=2, data_parallel=2 * layout.data_parallel, grad_accum_steps=layout.grad_accum_steps // 2
    )


def test_the_best_of_each_number_of_nodes_that_no_other_beats_is_measured_again(rig):
    wide = [on_two_nodes(LAYOUTS[0]), on_two_nodes(LAYOUTS[3])]
    rig.layouts, rig.num_nodes = (*LAYOUTS[:3], *wide), 2
    speeds = dict(zip(rig.layouts, (1000.0, 1100.0, 1200.0, 2000.0, 1900.0), strict=True))
    rig.launcher.script = lambda spec: Script(tokens_per_sec=speeds[spec.layout])
    search = rig.open_driver().run()
    assert repeats_of(search) == [*wide, LAYOUTS[2]] * 2


def test_more_nodes_that_gain_nothing_are_not_measured_again(rig):
    rig.layouts, rig.num_nodes = (*LAYOUTS[:3], on_two_nodes(LAYOUTS[0])), 2
    speeds = dict(zip(rig.layouts, (1000.0, 1100.0, 1200.0, 900.0), strict=True))
    rig.launcher.script = lambda spec: Script(tokens_per_sec=speeds[spec.layout])
    assert repeats_of(rig.open_driver().run()) == [LAYOUTS[2], LAYOUTS[1]] * 2


HEADROOM = MemoryHeadroom(capacity_gib=10.0, min_free_gib=4.0)


def test_a_layout_that_leaves_too_little_memory_is_measured_and_neither_a_finalist_nor_the_best(rig):
    rig.headroom = HEADROOM
    rig.launcher.script = lambda spec: replace(steady(spec), peak_memory_gib=7.0 if spec.layout == FASTEST else 5.0)
    search = rig.open_driver().run()
    assert search.trials[8].state is TrialState.MEASURED
    assert repeats_of(search) == [SECOND, THIRD] * 2
    assert search.trial(search.best_trial).layout == SECOND
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert best["trial"] == search.best_trial


def test_what_runs_today_is_measured_again_though_it_leaves_too_little(rig):
    rig.headroom, rig.first = HEADROOM, (FASTEST,)
    rig.launcher.script = lambda spec: replace(steady(spec), peak_memory_gib=7.0 if spec.layout == FASTEST else 5.0)
    search = rig.open_driver().run()
    assert repeats_of(search) == [SECOND, THIRD, FASTEST] * 2
    assert search.trial(search.best_trial).layout == SECOND


def test_where_none_leaves_enough_memory_the_search_ends_without_an_answer_and_says_which_comes_nearest(rig):
    rig.headroom = HEADROOM
    peaks = {layout: 9.0 - 0.1 * number for number, layout in enumerate(LAYOUTS)}
    rig.launcher.script = lambda spec: replace(steady(spec), peak_memory_gib=peaks[spec.layout])
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert (search.best_trial, repeats_of(search)) == (None, [])
    assert search.detail.endswith("(constraints.min_free_memory_gib): t0009 comes nearest and leaves 1.8 GiB")
    assert not (rig.path / "runs" / search.search_id / "best.json").exists()


def test_the_only_one_that_left_enough_is_the_best_no_more_once_a_repeat_has_left_less(rig):
    def fills_up(spec) -> Script:
        fits = spec.layout == SECOND and spec.trial != "t0011"
        return replace(steady(spec), peak_memory_gib=5.0 if fits else 7.0)

    rig.headroom, rig.launcher.script, told = HEADROOM, fills_up, []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: told.append(event))
    search = rig.open_driver().run()
    assert [event.data["trial"] for event in told if event.kind is EventKind.BEST_CHANGED] == ["t0008", None]
    assert (search.best_trial, search.end_reason) == (None, EndReason.NO_FEASIBLE_LAYOUT)
    assert not (rig.path / "runs" / search.search_id / "best.json").exists()


def test_what_a_driver_left_in_best_json_that_was_killed_is_taken_away_by_the_next_where_nothing_is_the_best(rig):
    def kill(search, event) -> None:
        if event.kind is EventKind.ATTEMPT_ENDED and event.data["trial"] == "t0011":
            raise Killed

    def fills_up(spec) -> Script:
        fits = spec.layout == SECOND and spec.trial != "t0011"
        return replace(steady(spec), peak_memory_gib=5.0 if fits else 7.0)

    rig.headroom, rig.launcher.script, rig.callbacks = HEADROOM, fills_up, DriverCallbacks(on_event=kill)
    best = rig.path / "runs" / "rig-aaaaaa" / "best.json"
    with pytest.raises(Killed):
        rig.open_driver().run()
    assert best.exists()
    rig.callbacks = DriverCallbacks()
    assert rig.open_driver().run().end_reason is EndReason.NO_FEASIBLE_LAYOUT
    assert not best.exists()


def test_best_json_tells_of_another_layout_as_soon_as_the_best_fails_to_be_measured_again(rig):
    def fails_last(spec) -> Script:
        failing = spec.layout == FASTEST and spec.kind is TrialKind.REPEAT
        return Script(reason=FailureReason.GPU_OOM, duration_s=500.0) if failing else steady(spec)

    rig.limits = replace(rig.limits, parallel_trials=2, finalist_repeats=1)
    rig.launcher.script = fails_last
    search = rig.open_driver().run()
    assert search.trial(search.best_trial).layout == SECOND
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert best["trial"] == search.best_trial


def test_a_layout_whose_repeat_failed_is_not_measured_again(rig):
    def fails_again(spec) -> Script:
        failing = spec.layout == FASTEST and spec.kind is TrialKind.REPEAT
        return Script(reason=FailureReason.GPU_OOM) if failing else steady(spec)

    rig.launcher.script = fails_again
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND, SECOND]
    assert search.trial(search.best_trial).layout == SECOND
    assert search.end_reason is EndReason.MAX_TRIALS


def test_a_repeat_is_tried_again_as_any_trial_is(rig):
    rig.launcher.script = lambda spec: (
        Script(reason=FailureReason.HANG) if (spec.trial, spec.attempt) == ("t0010", "a1") else steady(spec)
    )
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert [a.reason for a in search.trial("t0010").attempts] == [FailureReason.HANG, None]


LONG_S = 290.0
"""Seconds of trials so long that they do not lower the time limit that the budget reserves."""


def long_and_steady(spec) -> Script:
    return replace(steady(spec), duration_s=LONG_S)


def budget_hours(rig, used_s: float) -> float:
    """Budget for one more attempt on one node after `used_s`."""
    return (used_s + rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)) / 3600


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_pays_for_as_many_repeats_as_fit_and_the_reason_stays(rig):
    rig.launcher.script = long_and_steady
    rig.limits = replace(rig.limits, budget_node_hours=budget_hours(rig, 10.5 * LONG_S))
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND]
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_that_ended_the_proposing_pays_for_no_repeat(rig):
    rig.launcher.script = long_and_steady
    rig.limits = replace(rig.limits, budget_node_hours=budget_hours(rig, 4.5 * LONG_S))
    search = rig.open_driver().run()
    assert (len(search.trials), repeats_of(search), search.end_reason) == (5, [], EndReason.BUDGET)


@pytest.mark.usefixtures("constant_limits")
def test_a_layout_too_large_for_the_budget_leaves_the_smaller_ones_their_repeats(rig):
    two_nodes = replace(LAYOUTS[0], num_nodes=2, data_parallel=8, grad_accum_steps=2)
    rig.layouts, rig.launcher.script = (LAYOUTS[0], LAYOUTS[1], two_nodes), long_and_steady
    rig.limits = replace(rig.limits, budget_node_hours=budget_hours(rig, 3.3 * LONG_S))
    search = rig.open_driver().run()
    assert (search.trials[2].layout, search.trials[2].reason) == (two_nodes, FailureReason.CANCELLED_BY_SEARCH)
    assert repeats_of(search) == [LAYOUTS[1], LAYOUTS[0]]
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)


def test_wall_time_ends_the_repeats_too(rig):
    rig.limits = replace(rig.limits, max_wall_time_s=10.5 * 61)
    search = rig.open_driver().run()
    assert 0 < len(repeats_of(search)) < 4
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.WALL_TIME)


def test_a_cancel_leads_to_no_repeats(rig):
    rig.callbacks = DriverCallbacks(cancel_requested=iter([False] * 5 + [True]).__next__)
    assert repeats_of(rig.open_driver().run()) == []


@pytest.mark.parametrize("trial", ["t0009", "t0010", "t0011", "t0012"])
def test_interrupted_and_resumed_the_same_repeats_are_made(rig, trial):
    driver = None

    def interrupt(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED and event.data["trial"] == trial:
            driver.interrupt()

    rig.limits, rig.callbacks = replace(rig.limits, max_trials=50), DriverCallbacks(on_event=interrupt)
    driver = rig.open_driver()
    stopped = driver.run()
    assert (stopped.state, stopped.trials[-1].trial) == (SearchState.RUNNING, trial)
    rig.callbacks = DriverCallbacks()
    search = rig.open_driver().run()
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert search.end_reason is EndReason.SPACE_EXHAUSTED


def test_a_search_whose_sampler_has_converged_measures_its_finalists_and_says_so(rig, monkeypatch):
    monkeypatch.setattr(GridSampler, "has_converged", lambda self, history: len(history) >= 4)
    search = rig.open_driver().run()
    searched = [trial for trial in search.trials if trial.kind is TrialKind.SEARCH]
    assert (len(searched), search.end_reason) == (4, EndReason.CONVERGED)
    assert len(search.trials) > 4


def test_once_repeats_have_begun_no_layout_is_proposed_whatever_they_change_for_the_sampler(rig, monkeypatch):
    monkeypatch.setattr(
        GridSampler, "has_converged", lambda self, history: max((t.value for t in history), default=0.0) >= 1300.0
    )
    rig.launcher.script = lambda spec: Script(tokens_per_sec=1000.0) if spec.kind is TrialKind.REPEAT else steady(spec)
    search = rig.open_driver().run()
    assert [t.kind for t in search.trials] == [TrialKind.SEARCH] * 4 + [TrialKind.REPEAT] * 4
    assert search.end_reason is EndReason.CONVERGED
