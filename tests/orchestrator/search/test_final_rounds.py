"""Finals that end once they are decided: rounds, who drops out, restarts, limits, and what is said of it."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS, RULES, Rig, assert_kills_change_nothing
from trials.analysis.final_rounds import describe_finals_end, finals_end_of
from trials.analysis.finals import Finals
from trials.ledger.events import EndReason, EventKind, SearchRecord
from trials.trial import TrialKind

pytestmark = pytest.mark.slow

A, B, C, TODAY = LAYOUTS[8], LAYOUTS[7], LAYOUTS[6], LAYOUTS[0]
CLEAR, IN_DOUBT = 2000.0, 2800.0
"""Throughput of B that is clearly less than A's 3000, and one that more repeats may separate."""


def speeds(b: float):
    """Scripts by layout; all others are slower still."""
    known = {A: 3000.0, B: b, TODAY: 1000.0}
    return lambda spec, restart=0: Script(tokens_per_sec=known.get(spec.layout, 500.0), duration_s=290.0)


@pytest.fixture
def rig(tmp_path) -> Rig:
    limits = Limits(9, 1, finalists=2, finalist_repeats=3, finals=Finals.UNTIL_DECIDED)
    return Rig("scripted", tmp_path, limits, first=(TODAY,))


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
def test_finals_end_once_they_are_decided_without_what_is_clearly_slower(rig, caplog, b, limits, repeats, words):
    rig.limits, rig.script = replace(rig.limits, **limits), speeds(b)
    found, told = finals_of(rig, caplog)
    assert found == repeats
    assert told is None if words is None else f"the finals ended after {words}" in told


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_that_ends_a_round_is_said_so(rig, caplog):
    last_s = rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)
    rig.limits, rig.script = replace(rig.limits, budget_node_hours=(12.5 * 290.0 + last_s) / 3600), speeds(IN_DOUBT)
    assert finals_of(rig, caplog) == ("ABtA", "the finals were cut short in round 2 of at most 3")
    assert rig.open_driver().search.end_reason is EndReason.MAX_TRIALS


@pytest.mark.parametrize("parallel", [1, 3])
def test_killed_as_a_repeat_begins_or_ends_the_next_driver_decides_alike(tmp_path, parallel):
    def searched(name: str) -> Rig:
        limits = Limits(5, parallel, finalists=2, finalist_repeats=3, finals=Finals.UNTIL_DECIDED)
        layouts, script = (B, A, C), speeds(IN_DOUBT)
        return Rig("scripted", tmp_path / name, limits, first=(TODAY,), layouts=layouts, script=script)

    changes = (EventKind.TRIAL_PROPOSED, EventKind.TRIAL_ENDED)
    is_due = lambda event: event.kind in changes and event.data["trial"] > "t0004"  # noqa: E731
    assert_kills_change_nothing(searched, finals_in, is_due)
