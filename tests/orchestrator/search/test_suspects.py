"""Suspect runs are repeated on other nodes and never win."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.rig import RULES, Rig, assert_kills_change_nothing, speed_of
from trials.ledger.events import EndReason, SearchRecord
from trials.trial import TrialKind, TrialSpec

pytestmark = [pytest.mark.fault(38)]

SUSPECT = ("suspect_node",)


@pytest.fixture
def suspecting(tmp_path) -> Callable[..., Rig]:
    """Makes searches on three nodes, one trial at a time; the suspect trials are flagged and run at half speed."""

    def made(*suspects: str, name: str = "rig", **limits: object) -> Rig:
        def script(spec: TrialSpec, restart: int) -> Script:
            if spec.trial in suspects:
                return Script(tokens_per_sec=speed_of(spec) / 2, flags=SUSPECT)
            return Script(tokens_per_sec=speed_of(spec))

        limits = Limits(**{"max_trials": 4, "parallel_trials": 1, **limits})
        rig = Rig("scripted", tmp_path / name, limits, num_nodes=3, script=script)
        rig.launcher.nodes = ("n1", "n2", "n3")
        return rig

    return made


def repeats(search: SearchRecord) -> list[tuple[str, str]]:
    """Pairs of a trial and the one whose layout it measured again."""
    first: dict[str, str] = {}
    for trial in search.trials:
        first.setdefault(trial.layout.key, trial.trial)
    return [(t.trial, first[t.layout.key]) for t in search.trials if t.kind is TrialKind.REPEAT]


def test_a_suspect_run_is_measured_once_more_at_once_and_elsewhere(suspecting):
    search = suspecting("t0002").run()
    assert repeats(search) == [("t0003", "t0002")]
    suspect, again = search.trial("t0002").last_attempt, search.trial("t0003").last_attempt
    assert suspect.nodes == ("n1",)
    assert (again.exclude, again.nodes) == (("n1",), ("n2",))
    assert search.trial("t0004").last_attempt.exclude == (), "the node serves other layouts"
    assert sum(t.kind is TrialKind.SEARCH for t in search.trials) == 4
    assert search.end_reason is EndReason.MAX_TRIALS


@pytest.mark.parametrize("finalists", [0, 2])
def test_a_slow_layout_that_was_rerun_is_no_finalist(suspecting, finalists):
    search = suspecting("t0001", finalists=finalists).run()  # the slowest of the four
    assert repeats(search)[:1] == [("t0002", "t0001")]
    assert [layout for _, layout in repeats(search)[1:]] == ["t0005", "t0004"][:finalists]
    assert search.best_trial == "t0005"


@pytest.mark.usefixtures("constant_limits")
def test_a_budget_without_room_for_a_rerun_ends_the_search(suspecting):
    rig = suspecting()
    longest_s = rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)
    rig.script = lambda spec, restart: Script(duration_s=290.0, flags=SUSPECT if spec.trial == "t0002" else ())
    rig.limits = replace(rig.limits, budget_node_hours=(1.5 * 290.0 + longest_s) / 3600)
    search = rig.run()
    assert repeats(search) == []
    assert (search.end_reason, search.best_trial) == (EndReason.BUDGET, "t0001")


@pytest.mark.slow
@pytest.mark.parametrize("every", [pytest.param(1, marks=[pytest.mark.walks, pytest.mark.timeout(120)]), 4])
def test_killed_after_any_event_and_resumed_the_same_layouts_are_rerun(suspecting, every):
    def story(rig: Rig, search: SearchRecord) -> tuple:
        assert repeats(search) == [("t0002", "t0001"), ("t0004", "t0003")]
        return [(t.layout.key, t.kind, t.state) for t in search.trials], search.best_trial, search.end_reason

    searched = lambda name: suspecting("t0001", name=name, max_trials=2, finalists=1)  # noqa: E731
    assert_kills_change_nothing(searched, story, every=every)
