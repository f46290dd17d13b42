"""Finals that end once they are decided: rounds, who drops out, restarts, limits, and what is said of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.rig import LAYOUTS, RULES, Killed, Rig, raise_killed
from trials.analysis.final_rounds import describe_finals_end, finals_end_of
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchRecord
from trials.trial import FailureReason, Flag, TrialKind

pytestmark = pytest.mark.slow

A, B, C, TODAY = LAYOUTS[8], LAYOUTS[7], LAYOUTS[6], LAYOUTS[0]


def speeds(a: float, b: float, today: float = 1000.0):
    """Scripts by layout; all others are slower still."""
    known = {A: a, B: b, TODAY: today}
    return lambda spec: Script(tokens_per_sec=known.get(spec.layout, 500.0), duration_s=290.0)


@pytest.fixture
def rig(tmp_path):
    limits = Limits(9, 1, finalists=2, finalist_repeats=3, finals=Finals.UNTIL_DECIDED)
    return Rig(tmp_path, limits=limits, first=(TODAY,))


def names_of_repeats(search) -> str:
    names = {A: "A", B: "B", C: "C", TODAY: "t"}
    return "".join(names[trial.layout] for trial in search.trials if trial.kind is TrialKind.REPEAT)


def finals_of(rig, caplog) -> tuple[str, list[str]]:
    """Repeats of a search that is driven to its end, and what the log says of the finals, as its record does."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        search = rig.open_driver().run()
    told = [text for text in caplog.messages if "the finals" in text]
    end = finals_end_of(as_recorded(search, rig))
    assert told == ([] if end is None else [describe_finals_end(end)])
    return names_of_repeats(search), told


def as_recorded(search: SearchRecord, rig: Rig) -> SearchRecord:
    """The record with the sections of a search file that the finals follow from."""
    limits = rig.limits
    counts = {"finals": limits.finals.value, "finalists": limits.finalists, "finalist_repeats": limits.finalist_repeats}
    baseline = rig.first[0].to_json() if rig.first else None
    return replace(search, spec={"search": counts, "baseline": baseline, "global_batch_size": 16})


def test_one_clearly_faster_than_all_is_measured_again_once(rig, caplog):
    rig.launcher.script = speeds(3000.0, 2000.0)
    assert finals_of(rig, caplog) == (
        "ABt",
        [
            "the finals ended after 1 of at most 3 rounds: one layout is clearly faster than every other that was"
            " measured again"
        ],
    )


def test_those_that_repeats_would_not_tell_apart_are_measured_again_once(rig, caplog):
    rig.launcher.script = speeds(3000.0, 2990.0)
    repeats, [told] = finals_of(rig, caplog)
    assert repeats == "ABt"
    assert told.endswith("1 of at most 3 rounds: further repeats would hardly separate layouts that are still tied")


def test_two_in_doubt_go_on_without_what_is_clearly_slower(rig, caplog):
    rig.launcher.script = speeds(3000.0, 2800.0)
    repeats, [told] = finals_of(rig, caplog)
    assert repeats == "ABtABAB"
    assert told.startswith("the finals ended after 3 of at most 3 rounds: one layout is clearly faster")


def test_what_is_in_doubt_after_the_last_round_stays_so(rig, caplog):
    rig.limits = replace(rig.limits, finalist_repeats=1)
    rig.launcher.script = speeds(3000.0, 2840.0)
    assert finals_of(rig, caplog) == (
        "ABt",
        ["the finals ended after 1 round, the limit (search.finalist_repeats)"],
    )


def test_a_fixed_count_is_kept_and_nothing_is_said(rig, caplog):
    rig.limits = replace(rig.limits, finals=Finals.FIXED)
    rig.launcher.script = speeds(3000.0, 2000.0)
    assert finals_of(rig, caplog) == ("ABt" * 3, [])


def test_a_layout_whose_repeat_failed_is_out_and_the_others_are_decided(rig, caplog):
    steady = speeds(3000.0, 2800.0)
    rig.launcher.script = lambda spec: (
        Script(reason=FailureReason.GPU_OOM) if spec.layout == A and spec.kind is TrialKind.REPEAT else steady(spec)
    )
    repeats, [told] = finals_of(rig, caplog)
    assert repeats == "ABt"
    assert "clearly faster" in told


def test_a_suspect_repeat_does_not_decide(rig, caplog):
    steady = speeds(3000.0, 2000.0)
    rig.launcher.script = lambda spec: (
        replace(steady(spec), flags=(Flag.SUSPECT_NODE.value,)) if spec.trial == "t0010" else steady(spec)
    )
    repeats, _ = finals_of(rig, caplog)
    assert repeats == "ABtABt"


def test_one_layout_alone_is_measured_again_once(rig, caplog):
    rig.limits, rig.first = replace(rig.limits, finalists=1), ()
    rig.launcher.script = speeds(3000.0, 2000.0)
    assert finals_of(rig, caplog) == (
        "A",
        ["the finals ended after 1 of at most 3 rounds: one layout alone was measured again"],
    )


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_that_ends_a_round_is_said_so(rig, caplog):
    rig.launcher.script = speeds(3000.0, 2800.0)
    last_s = rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)
    rig.limits = replace(rig.limits, budget_node_hours=(12.5 * 290.0 + last_s) / 3600)
    assert finals_of(rig, caplog) == ("ABtA", ["the finals were cut short in round 2 of at most 3"])
    assert rig.open_driver().search.end_reason is EndReason.MAX_TRIALS


@pytest.mark.parametrize("parallel", [1, 3])
def test_killed_as_a_repeat_begins_or_ends_the_next_driver_decides_alike(tmp_path, caplog, parallel):
    def searched(name: str) -> Rig:
        (tmp_path / name).mkdir()
        limits = Limits(5, parallel, finalists=2, finalist_repeats=3, finals=Finals.UNTIL_DECIDED)
        rig = Rig(tmp_path / name, limits=limits, first=(TODAY,), layouts=(B, A, C))
        rig.launcher.script = speeds(3000.0, 2800.0)
        return rig

    events: list = []
    rig = searched("undisturbed")
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: events.append(event))
    wanted, told = finals_of(rig, caplog)
    first = next(event.seq for event in events if event.data.get("kind") == "repeat")
    changes = (EventKind.TRIAL_PROPOSED, EventKind.TRIAL_ENDED)
    for event in [event for event in events if event.seq >= first and event.kind in changes]:
        rig = searched(str(event.seq))
        rig.callbacks = DriverCallbacks(on_event=lambda _, e, at=event.seq: raise_killed(e.seq == at))
        with pytest.raises(Killed):
            rig.open_driver().run()
        rig.callbacks = DriverCallbacks()
        assert finals_of(rig, caplog) == (wanted, told), f"killed at {event.kind}"


def test_layouts_of_other_numbers_of_nodes_go_on_only_while_they_may_win(rig):
    wide = replace(
        LAYOUTS[3],
        num_nodes=2,
        data_parallel=2 * LAYOUTS[3].data_parallel,
        grad_accum_steps=LAYOUTS[3].grad_accum_steps // 2,
    )
    rig.layouts, rig.num_nodes, rig.first = (A, B, wide), 2, ()
    rig.limits = replace(rig.limits, finalists=1)
    known = {A: 1000.0, B: 900.0, wide: 2000.0}
    rig.launcher.script = lambda spec: Script(tokens_per_sec=known[spec.layout])
    search = rig.open_driver().run()
    assert [trial.layout for trial in search.trials if trial.kind is TrialKind.REPEAT] == [wide, A]
