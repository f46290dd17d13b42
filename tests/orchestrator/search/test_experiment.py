"""Search of an experiment: the same layouts with two software stacks, in turns, whatever happens to the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS, Rig, assert_kills_change_nothing
from trials.trial import FailureReason, Flag, TrialKind, TrialSpec, TrialState

LIMITS = Limits(max_trials=4, parallel_trials=1, finalists=4, finalist_repeats=3, are_paired=True)


def twice_as_fast(spec: TrialSpec, restart: int = 0) -> Script:
    """Twice as fast with the other software, which has another torch."""
    is_other = bool(spec.layout.of_trial.software)
    fingerprint = {"torch": "2.15.0" if is_other else "2.14.0"}
    return Script(tokens_per_sec=2000.0 if is_other else 1000.0, fingerprint=fingerprint)


def experiment_in(path) -> Rig:
    return Rig("scripted", path, LIMITS, software={"python": "/opt/b/bin/python"}, script=twice_as_fast)


@pytest.fixture
def experiment(tmp_path) -> Rig:
    return experiment_in(tmp_path)


def sides(search) -> list[tuple[int, str]]:
    """Number of the layout and the stack of each trial, in order."""
    number = lambda trial: LAYOUTS.index(trial.layout.with_software({}))  # noqa: E731
    return [(number(t), "B" if t.layout.of_trial.software else "A") for t in search.trials]


def test_layouts_are_measured_in_turns_and_a_clear_difference_needs_one_round(experiment):
    search = experiment.run()
    first, repeats = sides(search)[:4], sides(search)[4:]
    assert first == [(0, "A"), (0, "B"), (1, "B"), (1, "A")]
    assert sorted(repeats) == [(0, "A"), (0, "B"), (1, "A"), (1, "B")]
    assert [side for _, side in repeats] == ["B", "A", "B", "A"], "after A B comes B A"
    assert all(t.kind is TrialKind.REPEAT for t in search.trials[4:])
    assert not any(Flag.FINGERPRINT_CHANGED in trial.flags for trial in search.trials)
    assert {t.last_attempt.outcome.fingerprint["torch"] for t in search.trials} == {"2.14.0", "2.15.0"}


def test_an_update_of_one_stack_in_between_is_flagged(experiment):
    other = {"torch": "2.16.0"}
    experiment.script = lambda spec, restart: (
        replace(twice_as_fast(spec), fingerprint=other) if spec.trial == "t0003" else twice_as_fast(spec)
    )
    assert [t.trial for t in experiment.run().trials if Flag.FINGERPRINT_CHANGED in t.flags] == ["t0003"]


def test_a_layout_that_fails_with_one_stack_is_tried_with_the_other_and_not_repeated(experiment):
    experiment.script = lambda spec, restart: (
        Script(reason=FailureReason.GPU_OOM) if spec.layout == LAYOUTS[0] else twice_as_fast(spec)
    )
    search = experiment.run()
    assert sides(search)[:4] == [(0, "A"), (0, "B"), (1, "B"), (1, "A")]
    assert {number for number, _ in sides(search)[4:]} == {1}


def test_whenever_the_driver_is_killed_the_next_one_completes_the_pairs_and_nothing_runs_twice(tmp_path):
    def story(rig, search) -> list[tuple[int, str]]:
        assert all(len(t.attempts) == 1 and t.state is TrialState.MEASURED for t in search.trials)
        return sides(search)

    assert_kills_change_nothing(lambda name: experiment_in(tmp_path / name), story, every=3)
