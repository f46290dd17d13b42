"""Suspect runs are repeated on other nodes and never win; GPUs whose memory is in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.orchestrator.search.rig import LAYOUTS, RULES, Killed, Rig, every_event, kill_after, the_last_of_each_kind
from tests.orchestrator.search.slurm_rig import SlurmRig, speed_of
from trials.ledger.events import EndReason, Event, EventKind, SearchRecord, SearchState
from trials.trial import FailureReason, TrialKind, TrialSpec, TrialState

SUSPECT = ("suspect_node",)


@pytest.fixture
def rig(tmp_path) -> Rig:
    return suspect_rig(tmp_path, lambda spec: spec.trial == "t0002")


def suspect_rig(path: Path, is_suspect: Callable[[TrialSpec], bool]) -> Rig:
    """Three nodes, one trial at a time; `is_suspect` trials are flagged and run at half speed."""
    rig = Rig(path, ScriptedLauncher(nodes=("n1", "n2", "n3")), Limits(max_trials=4, parallel_trials=1), num_nodes=3)
    rig.launcher.script = lambda spec: (
        Script(tokens_per_sec=speed_of(spec) / 2, flags=SUSPECT)
        if is_suspect(spec)
        else Script(tokens_per_sec=speed_of(spec))
    )
    return rig


def repeats(search: SearchRecord) -> list[tuple[str, str]]:
    """Pairs of a trial and the one whose layout it measured again."""
    first = {}
    for trial in search.trials:
        first.setdefault(trial.layout.key, trial.trial)
    return [(t.trial, first[t.layout.key]) for t in search.trials if t.kind is TrialKind.REPEAT]


@pytest.mark.fault(38)
def test_a_suspect_run_is_measured_once_more_at_once_and_elsewhere(rig):
    search = rig.open_driver().run()
    assert repeats(search) == [("t0003", "t0002")]
    suspect, again = search.trial("t0002").last_attempt, search.trial("t0003").last_attempt
    assert suspect.nodes == ("n1",)
    assert (again.exclude, again.nodes) == (("n1",), ("n2",))
    assert sum(t.kind is TrialKind.SEARCH for t in search.trials) == 4
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)


@pytest.mark.fault(38)
def test_the_suspect_node_serves_other_layouts(rig):
    search = rig.open_driver().run()
    assert search.trial("t0004").last_attempt.exclude == ()


@pytest.mark.fault(38)
def test_the_rerun_counts_and_the_suspect_run_does_not(tmp_path):
    rig = suspect_rig(tmp_path, lambda spec: spec.trial == "t0004")  # the fastest of the four
    search = rig.open_driver().run()
    assert repeats(search) == [("t0005", "t0004")]
    assert search.best_trial == "t0005"


@pytest.mark.fault(38)
@pytest.mark.parametrize("finalists", [0, 2])
def test_a_slow_layout_that_was_rerun_is_no_finalist(tmp_path, finalists):
    rig = suspect_rig(tmp_path, lambda spec: spec.trial == "t0001")  # the slowest of the four
    rig.limits = replace(rig.limits, finalists=finalists)
    search = rig.open_driver().run()
    assert repeats(search)[:1] == [("t0002", "t0001")]
    assert [layout for _, layout in repeats(search)[1:]] == ["t0005", "t0004"][:finalists]
    assert search.best_trial == "t0005"


@pytest.mark.fault(38)
def test_a_layout_that_stays_suspect_is_rerun_once_and_never_wins_over_others(tmp_path):
    rig = suspect_rig(tmp_path, lambda spec: False)
    rig.launcher.script = lambda spec: (
        Script(tokens_per_sec=9000.0, flags=SUSPECT)
        if spec.layout == LAYOUTS[1]
        else Script(tokens_per_sec=speed_of(spec))
    )
    search = rig.open_driver().run()
    assert repeats(search) == [("t0003", "t0002")]
    assert search.best_trial == "t0005"


@pytest.mark.fault(38)
def test_where_every_run_is_suspect_two_that_agree_are_an_answer_and_one_is_none(tmp_path):
    rig = suspect_rig(tmp_path, lambda spec: True)
    bests = []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: _note_best(bests, search, event))
    search = rig.open_driver().run()
    assert repeats(search) == [(f"t000{2 * n}", f"t000{2 * n - 1}") for n in (1, 2, 3, 4)]
    assert (search.state, search.best_trial) == (SearchState.COMPLETED, "t0007")
    assert bests == ["t0001", "t0003", "t0005", "t0007"]


@pytest.mark.fault(38)
def test_with_no_other_node_left_it_is_measured_again_where_it_was(rig):
    rig.launcher.nodes, rig.num_nodes = ("n1",), 1
    search = rig.open_driver().run()
    assert repeats(search) == [("t0003", "t0002")]
    assert search.trial("t0003").last_attempt.exclude == ()


@pytest.mark.fault(38)
def test_reruns_wait_for_a_free_place(rig):
    rig.limits = replace(rig.limits, parallel_trials=2)
    search = rig.open_driver().run()
    assert rig.launcher.most_in_flight == 2
    assert len(repeats(search)) == 1


@pytest.mark.fault(38)
@pytest.mark.usefixtures("constant_limits")
def test_a_budget_without_room_for_a_rerun_ends_the_search(rig):
    longest_s = rig.launcher.longest_s(RULES.time_limit_s + LAUNCHER_GRACE_S)
    rig.launcher.script = lambda spec: Script(duration_s=290.0, flags=SUSPECT if spec.trial == "t0002" else ())
    rig.limits = replace(rig.limits, budget_node_hours=(1.5 * 290.0 + longest_s) / 3600)
    search = rig.open_driver().run()
    assert repeats(search) == []
    assert (search.end_reason, search.best_trial) == (EndReason.BUDGET, "t0001")


@pytest.mark.slow
@pytest.mark.fault(38)
@pytest.mark.parametrize(
    "killed_at",
    [pytest.param(every_event, marks=[pytest.mark.walks, pytest.mark.timeout(120)]), the_last_of_each_kind],
)
def test_killed_after_any_event_and_resumed_the_same_layouts_are_rerun(tmp_path, killed_at):
    def fresh(name: str) -> Rig:
        rig = suspect_rig(tmp_path / name, lambda spec: spec.trial == "t0001")
        rig.path.mkdir()
        rig.limits = replace(rig.limits, max_trials=2, finalists=1)
        return rig

    def story(search: SearchRecord) -> tuple:
        return [(t.layout.key, t.kind, t.state) for t in search.trials], search.best_trial, search.end_reason

    rig, events = fresh("undisturbed"), []
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: events.append(event))
    wanted = rig.open_driver().run()
    assert repeats(wanted) == [("t0002", "t0001"), ("t0004", "t0003")]
    for event in killed_at(events):
        rig = fresh(str(event.seq))
        rig.callbacks = kill_after(event)
        with pytest.raises(Killed):
            rig.open_driver().run()
        rig.callbacks = DriverCallbacks()
        assert story(rig.open_driver().run()) == story(wanted), f"killed after event {event.seq}, {event.kind}"


def _note_best(bests: list[str], search: SearchRecord, event: Event) -> None:
    """Note each new best layout, and check that its run and its rerun have both ended by then."""
    if event.kind is EventKind.BEST_CHANGED:
        bests.append(event.data["trial"])
        again = search.trial(f"t{int(event.data['trial'][1:]) + 1:04d}")
        assert again.state is TrialState.MEASURED


@pytest.mark.fault(37)
def test_a_node_with_a_gpu_in_use_is_left_and_the_trial_measured_elsewhere(tmp_path):
    rig = SlurmRig(tmp_path)
    rig.limits = Limits(max_trials=3, parallel_trials=1)
    rig.script = lambda spec, restart: (
        Script(
            duration_s=5.0, reason=FailureReason.GPU_MEMORY_IN_USE, excerpt="GPU 1 of n1: 40.00 of 79.10 GiB are in use"
        )
        if (spec.trial, spec.attempt) == ("t0001", "a1")
        else Script(tokens_per_sec=speed_of(spec))
    )
    search = rig.open_driver().run()
    rig.check(search)
    dirty, clean = search.trial("t0001").attempts
    assert (dirty.reason, clean.state) == (FailureReason.GPU_MEMORY_IN_USE, TrialState.MEASURED)
    assert "40.00 of 79.10 GiB" in dirty.excerpt
    assert (clean.exclude, set(clean.nodes) & set(dirty.nodes)) == (dirty.nodes, set())
    others = [attempt for trial in search.trials[1:] for attempt in trial.attempts]
    assert others
    assert all(attempt.exclude == dirty.nodes for attempt in others)


@pytest.mark.fault(37)
def test_gpus_in_use_wherever_a_trial_goes_end_it_after_two_retries(tmp_path):
    rig = SlurmRig(tmp_path)
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    rig.script = lambda spec, restart: Script(duration_s=5.0, reason=FailureReason.GPU_MEMORY_IN_USE, excerpt="in use")
    search = rig.open_driver().run()
    rig.check(search)
    attempts = search.trial("t0001").attempts
    assert [a.reason for a in attempts] == [FailureReason.GPU_MEMORY_IN_USE] * 3
    assert len({a.nodes for a in attempts}) == 3
