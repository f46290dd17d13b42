"""Finals: who is measured again, in which order and for what budget, what follows from it, and when they end."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from orchestrator.search.samplers.base import GridSampler
from orchestrator.search.stopping import Limits
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS, RULES, Killed, Rig, assert_kills_change_nothing, raise_killed, speed_of, steady
from trials.analysis.final_rounds import describe_finals_end, finals_end_of
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchRecord, SearchState
from trials.trial import FailureReason, TrialKind, TrialState

pytestmark = pytest.mark.slow

FASTEST, SECOND, THIRD = LAYOUTS[8], LAYOUTS[7], LAYOUTS[6]
HEADROOM = MemoryHeadroom(capacity_gib=10.0, min_free_gib=4.0)
LONG_S = 290.0
"""Seconds of trials so long that they do not lower the time limit that the budget reserves."""


@pytest.fixture
def rig(tmp_path) -> Rig:
    limits = Limits(max_trials=9, parallel_trials=1, finalists=2, finalist_repeats=2, finals=Finals.FIXED)
    return Rig("scripted", tmp_path, limits)


def where(condition, script):
    """`script` of a spec, changed where the condition holds: a Script in its place, or fields of it."""

    def changed(spec, restart=0) -> Script:
        if not condition(spec):
            return steady(spec)
        return script if isinstance(script, Script) else replace(steady(spec), **script)

    return changed


def is_repeat_of_the_fastest(spec) -> bool:
    return spec.layout == FASTEST and spec.kind is TrialKind.REPEAT


def repeats_of(search: SearchRecord) -> list[Layout]:
    return [trial.layout for trial in search.trials if trial.kind is TrialKind.REPEAT]


def fastest(rig: Rig) -> str:
    """The fastest layout's trial, as best.json has it, which trials compare with."""
    incumbents = json.loads(rig.folder.best.read_text())["incumbents"]
    return max(incumbents, key=lambda incumbent: incumbent["threshold"])["trial"]


def best_changes(rig: Rig) -> list[str | None]:
    """Trials that become the best in a search that is run after this."""
    changes: list[str | None] = []
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: (
            changes.append(event.data["trial"]) if event.kind is EventKind.BEST_CHANGED else None
        )
    )
    return changes


# -- who is measured again


def test_the_best_are_measured_again_in_rounds_after_all_layouts_were_tried(rig):
    search = rig.run()
    assert [t.kind for t in search.trials] == [TrialKind.SEARCH] * 9 + [TrialKind.REPEAT] * 4
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)


@pytest.mark.parametrize(
    ("today", "finalists", "expected"),
    [
        (LAYOUTS[0], 2, [FASTEST, SECOND, LAYOUTS[0]]),  # last in each round
        (SECOND, 2, [FASTEST, SECOND]),  # not twice where it is among the best
        (LAYOUTS[0], 0, []),
    ],
)
def test_what_runs_today_is_measured_again_too(rig, today, finalists, expected):
    rig.first, rig.limits = (today,), replace(rig.limits, finalists=finalists)
    assert repeats_of(rig.run()) == expected * 2


def test_a_layout_of_another_global_batch_is_measured_but_neither_again_nor_ever_the_best(rig):
    rig.first = (replace(LAYOUTS[0], grad_accum_steps=2),)
    rig.script = where(lambda spec: spec.trial == "t0001", {"tokens_per_sec": 9000.0})
    search = rig.run()
    assert search.trials[0].measured.tokens_per_sec == 9000.0
    assert repeats_of(search) == [SECOND, THIRD] * 2
    assert search.trial(search.best_trial).layout == SECOND


def test_a_round_begins_when_the_one_before_has_ended_and_within_it_a_freed_slot_is_filled(rig):
    rig.limits = replace(rig.limits, parallel_trials=2, finalists=3)
    slow = where(lambda spec: spec.trial == "t0010", {"duration_s": 500.0})
    rig.script = lambda spec, restart: slow(spec) if spec.trial == "t0010" else replace(slow(spec), duration_s=10.0)
    slow, _, third, *second_round = (t.last_attempt for t in rig.run().trials[9:])
    assert third.started_at < slow.ended_at
    assert len(second_round) == 3
    assert all(attempt.submitted_at >= slow.ended_at for attempt in second_round)


def on_two_nodes(layout: Layout) -> Layout:
    accumulation = layout.grad_accum_steps // 2
    return replace(layout, num_nodes=2, data_parallel=2 * layout.data_parallel, grad_accum_steps=accumulation)


WIDE = (on_two_nodes(LAYOUTS[0]), on_two_nodes(LAYOUTS[3]))


def test_the_best_of_each_number_of_nodes_that_no_other_beats_is_measured_again(rig):
    rig.layouts, rig.num_nodes = (*LAYOUTS[:3], *WIDE), 2
    known = dict(zip(rig.layouts, (1000.0, 1100.0, 1200.0, 2000.0, 1900.0), strict=True))
    rig.script = lambda spec, restart: Script(tokens_per_sec=known[spec.layout])
    assert repeats_of(rig.run()) == [*WIDE, LAYOUTS[2]] * 2


# -- which is the best


@pytest.mark.parametrize(("again", "winner"), [(1000.0, SECOND), (1750.0, FASTEST)])
def test_repeats_may_change_the_winner_and_not_who_is_repeated(rig, again, winner):
    rig.script = where(is_repeat_of_the_fastest, {"tokens_per_sec": again})
    search = rig.run()
    assert repeats_of(search) == [FASTEST, SECOND] * 2
    assert search.trial(search.best_trial).layout == winner
    assert fastest(rig) == search.best_trial


def test_of_finalists_that_cannot_be_told_apart_the_one_with_memory_to_spare_is_the_best(rig):
    peaks = {FASTEST: (2001.0, 3.0), SECOND: (2000.0, 2.0)}

    def alike(spec, restart) -> Script:
        speed, peak = peaks.get(spec.layout, (speed_of(spec), 2.0))
        return Script(tokens_per_sec=speed, peak_memory_gib=peak)

    rig.script, changes = alike, best_changes(rig)
    assert rig.run().best_trial == "t0008"
    assert changes[-2:] == ["t0009", "t0008"], "the fastest until the other was measured again"
    assert fastest(rig) == "t0009", "which trials compare with"


@pytest.mark.parametrize(("first", "again"), [((), []), ((FASTEST,), [FASTEST])])
def test_a_layout_that_leaves_too_little_memory_is_no_finalist_and_never_the_best_but_may_be_todays(rig, first, again):
    rig.headroom, rig.first = HEADROOM, first
    full, others = {"peak_memory_gib": 7.0}, {"peak_memory_gib": 5.0}
    rig.script = lambda spec, restart: replace(steady(spec), **(full if spec.layout == FASTEST else others))
    search = rig.run()
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)
    assert repeats_of(search) == [SECOND, THIRD, *again] * 2
    assert search.trial(search.best_trial).layout == SECOND
    assert fastest(rig) == search.best_trial


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_only_one_that_left_enough_is_the_best_no_more_once_a_repeat_has_left_less(rig, is_killed):
    """Also where the driver is killed before it has taken best.json away."""

    def fills_up(spec, restart) -> Script:
        fits = spec.layout == SECOND and spec.trial != "t0011"
        return replace(steady(spec), peak_memory_gib=5.0 if fits else 7.0)

    def kill(search, event) -> None:
        raise_killed(event.kind is EventKind.ATTEMPT_ENDED and event.data["trial"] == "t0011")

    rig.headroom, rig.script = HEADROOM, fills_up
    if is_killed:
        rig.callbacks = DriverCallbacks(on_event=kill)
        with pytest.raises(Killed):
            rig.run()
        assert rig.folder.best.exists()
    changes = best_changes(rig)
    search = rig.run()
    assert changes[-1] is None
    assert (search.best_trial, search.end_reason) == (None, EndReason.NO_FEASIBLE_LAYOUT)
    assert not rig.folder.best.exists()


def test_a_layout_whose_repeat_failed_is_not_measured_again_and_is_no_longer_the_best(rig):
    rig.script = where(is_repeat_of_the_fastest, Script(reason=FailureReason.GPU_OOM, duration_s=500.0))
    search = rig.run()
    assert repeats_of(search) == [FASTEST, SECOND, SECOND]
    assert search.trial(search.best_trial).layout == SECOND
    assert fastest(rig) == search.best_trial
    assert search.end_reason is EndReason.MAX_TRIALS


# -- what ends them


def budget_hours(rig: Rig, trials: float) -> float:
    """Budget for one more attempt on one node after so many long trials."""
    return (trials * LONG_S + rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)) / 3600


@pytest.mark.usefixtures("constant_limits")
@pytest.mark.parametrize(
    ("trials", "searched", "repeats", "reason"),
    [(10.5, 9, [FASTEST, SECOND], EndReason.MAX_TRIALS), (4.5, 5, [], EndReason.BUDGET)],
    ids=["as many repeats as fit", "the proposing alone"],
)
def test_a_budget_pays_for_repeats_only_once_all_layouts_were_tried(rig, trials, searched, repeats, reason):
    rig.script = lambda spec, restart: replace(steady(spec), duration_s=LONG_S)
    rig.limits = replace(rig.limits, budget_node_hours=budget_hours(rig, trials))
    search = rig.run()
    assert (len(search.trials) - len(repeats), repeats_of(search)) == (searched, repeats)
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, reason)
    assert all(trial.state is TrialState.MEASURED for trial in search.trials)


@pytest.mark.usefixtures("constant_limits")
def test_a_layout_too_large_for_the_budget_leaves_the_smaller_ones_their_repeats(rig):
    two_nodes = replace(LAYOUTS[0], num_nodes=2, data_parallel=8, grad_accum_steps=2)
    rig.layouts = (LAYOUTS[0], LAYOUTS[1], two_nodes)
    rig.script = lambda spec, restart: replace(steady(spec), duration_s=LONG_S)
    rig.limits = replace(rig.limits, budget_node_hours=budget_hours(rig, 3.3))
    search = rig.run()
    assert (search.trials[2].layout, search.trials[2].reason) == (two_nodes, FailureReason.CANCELLED_BY_SEARCH)
    assert repeats_of(search) == [LAYOUTS[1], LAYOUTS[0]]
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)


def test_once_a_sampler_has_converged_and_repeats_have_begun_no_layout_is_proposed_whatever_they_change(
    rig, monkeypatch
):
    best = lambda history: max((told.value for told in history), default=0.0)  # noqa: E731
    monkeypatch.setattr(GridSampler, "has_converged", lambda self, history: best(history) >= 1300.0)
    rig.script = where(lambda spec: spec.kind is TrialKind.REPEAT, {"tokens_per_sec": 1000.0})
    search = rig.run()
    assert [t.kind for t in search.trials] == [TrialKind.SEARCH] * 4 + [TrialKind.REPEAT] * 4
    assert search.end_reason is EndReason.CONVERGED


# -- finals that end once they are decided

A, B, C, TODAY = FASTEST, SECOND, THIRD, LAYOUTS[0]
CLEAR, IN_DOUBT = 2000.0, 2800.0
"""Throughput of B that is clearly less than A's 3000, and one that more repeats may separate."""


def speeds(b: float):
    """Scripts by layout; all others are slower still."""
    known = {A: 3000.0, B: b, TODAY: 1000.0}
    return lambda spec, restart=0: Script(tokens_per_sec=known.get(spec.layout, 500.0), duration_s=LONG_S)


@pytest.fixture
def deciding(rig) -> Rig:
    rig.limits, rig.first = replace(rig.limits, finalist_repeats=3, finals=Finals.UNTIL_DECIDED), (TODAY,)
    return rig


def finals_of(rig: Rig, caplog) -> tuple[str, str | None]:
    """Repeats of a search that is driven to its end, and what the log says of the finals, as its record does."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        search = rig.run()
    told = [text for text in caplog.messages if "the finals" in text]
    repeats, end = finals_in(rig, search)
    assert told == ([] if end is None else [end])
    return repeats, end


def finals_in(rig: Rig, search: SearchRecord) -> tuple[str, str | None]:
    """Repeats of a search and how its finals ended, from its record."""
    limits, baseline = rig.limits, rig.first[0].to_json() if rig.first else None
    counts = {"finals": limits.finals.value, "finalists": limits.finalists, "finalist_repeats": limits.finalist_repeats}
    end = finals_end_of(replace(search, spec={"search": counts, "baseline": baseline, "global_batch_size": 16}))
    names = {A: "A", B: "B", C: "C", TODAY: "t"}
    repeats = "".join(names[trial.layout] for trial in search.trials if trial.kind is TrialKind.REPEAT)
    return repeats, end and describe_finals_end(end)


@pytest.mark.parametrize(
    ("b", "limits", "repeats", "words"),
    [
        (CLEAR, {}, "ABt", "1 of at most 3 rounds: one layout is clearly faster than every other"),
        (2990.0, {}, "ABt", "1 of at most 3 rounds: further repeats would hardly separate layouts that are still tied"),
        (IN_DOUBT, {}, "ABtABAB", "3 of at most 3 rounds: one layout is clearly faster"),
        (2840.0, {"finalist_repeats": 1}, "ABt", "1 round, the limit (search.finalist_repeats)"),
        (CLEAR, {"finals": Finals.FIXED}, "ABt" * 3, None),
    ],
    ids=["clear", "tied", "in doubt", "limit", "fixed"],
)
def test_finals_end_once_they_are_decided_without_what_is_clearly_slower(deciding, caplog, b, limits, repeats, words):
    deciding.limits, deciding.script = replace(deciding.limits, **limits), speeds(b)
    found, told = finals_of(deciding, caplog)
    assert found == repeats
    assert told is None if words is None else f"the finals ended after {words}" in told


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_that_ends_a_round_is_said_so(deciding, caplog):
    limits = replace(deciding.limits, budget_node_hours=budget_hours(deciding, 12.5))
    deciding.limits, deciding.script = limits, speeds(IN_DOUBT)
    assert finals_of(deciding, caplog) == ("ABtA", "the finals were cut short in round 2 of at most 3")
    assert deciding.open_driver().search.end_reason is EndReason.MAX_TRIALS


@pytest.mark.parametrize("parallel", [1, 3])
def test_killed_as_a_repeat_begins_or_ends_the_next_driver_decides_alike(tmp_path, parallel):
    def searched(name: str) -> Rig:
        limits = Limits(5, parallel, finalists=2, finalist_repeats=3, finals=Finals.UNTIL_DECIDED)
        layouts, script = (B, A, C), speeds(IN_DOUBT)
        return Rig("scripted", tmp_path / name, limits, first=(TODAY,), layouts=layouts, script=script)

    changes = (EventKind.TRIAL_PROPOSED, EventKind.TRIAL_ENDED)
    is_due = lambda event: event.kind in changes and event.data["trial"] > "t0004"  # noqa: E731
    assert_kills_change_nothing(searched, finals_in, is_due)
