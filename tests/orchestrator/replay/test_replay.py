from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.common.logs import ListSink, sending_to
from orchestrator.comparison.recorded_runs import recorded_runs
from orchestrator.comparison.speed_ratio import ReplayVerdict
from orchestrator.launchers.base import LaunchRefused
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.recipe.read import read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.machine_lock import MachineLock
from orchestrator.replay.replay import (
    ReplayRules,
    cluster_mismatch_reason,
    impossible_result,
    launcher_section,
    replay,
    this_machine,
)
from orchestrator.replay.runs import ReplayCallbacks
from search_spaces.errors import ExternalError, InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import in_turn
from trials.files.folders import SearchFolder
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, utc_seconds

CPU = ACCELERATORS["cpu"]
H100 = ACCELERATORS["h100-80gb"]


@pytest.fixture
def loaded(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "marker.py").write_text("")
    return read_recipe(
        write_recipe(tmp_path / "recipe", source_of(measured_trial("t0001", LAYOUT, 0.1)), tmp_path / "code")
    )


def replayed(loaded, launcher, tmp_path, rules=None, here=None, callbacks=None):
    folder, rules = SearchFolder(tmp_path / "quickstart-replay"), rules or ReplayRules(repeats=3)
    known = impossible_result(loaded, here)
    return known or replay(loaded, launcher, folder, python="python3", rules=rules, callbacks=callbacks)


def test_the_same_speed_is_reproduced_and_what_differs_is_named(loaded, tmp_path):
    result = replayed(loaded, in_turn(0.1, 0.101, 0.099), tmp_path)
    data = result.to_json()
    assert data["verdict"] == "reproduced"
    assert data["ratio"] == pytest.approx(1.0, abs=0.01)
    assert data["ratio_low"] < data["ratio"] < data["ratio_high"]
    assert data["measured"] / data["recorded"] == pytest.approx(data["ratio"])
    assert data["differences"] == [{"field": "torch", "recorded": "2.13.0", "here": "2.14.0"}]


def test_another_script_is_named_after_one_run_and_its_speed_says_nothing_of_the_recorded_one(loaded, tmp_path):
    was, now = {"scripts": {"/home/a/train.py": "1a2b" * 16}}, {"scripts": {"/home/a/train.py": "9f8e" * 16}}
    recorded = replace(loaded, recipe=replace(loaded.recipe, fingerprint=was))
    launcher = in_turn(0.1, 0.1, 0.1, fingerprint=now)
    data = replayed(recorded, launcher, tmp_path).to_json()
    assert (data["verdict"], data["ratio"], len(launcher.requests)) == ("impossible", None, 1)
    [difference] = data["differences"]
    assert difference == {"field": "scripts./home/a/train.py", "recorded": "1a2b" * 16, "here": "9f8e" * 16}
    assert all(part in data["detail"] for part in ("another program", "/home/a/train.py", "1a2b1a2b", "9f8e9f8e"))
    other_trainer = replace(recorded, trainer=loaded.spec().trainer)
    launcher = in_turn(0.1, 0.1, 0.1, fingerprint=now)
    assert replayed(other_trainer, launcher, tmp_path / "other").verdict is ReplayVerdict.REPRODUCED


def test_a_replay_compares_speeds_also_where_energy_was_an_objective(tmp_path):
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", LAYOUT, 0.1), measure=MeasureRules(energy=True))
    recipe, launcher = write_recipe(tmp_path / "recipe", source, tmp_path / "code"), in_turn(0.1, 0.101, 0.099)
    assert replayed(read_recipe(recipe), launcher, tmp_path).verdict is ReplayVerdict.REPRODUCED
    assert not launcher.requests[0].spec.measure.energy, "it may be unknown here, or to another trainer"


@pytest.mark.parametrize(("step_time_s", "verdict"), [(0.115, ReplayVerdict.SLOWER), (0.085, ReplayVerdict.FASTER)])
def test_another_speed_is_said_once_every_session_agrees(loaded, tmp_path, step_time_s, verdict, logged):
    launcher = in_turn(*[step_time_s] * 9)
    result = replayed(loaded, launcher, tmp_path, callbacks=ReplayCallbacks())
    assert result.verdict is verdict
    assert [note.partition(", which")[2] for note in logged] == [
        " may be a temporary effect: measuring again in 300s"
    ] * 2
    sessions = result.to_json()["sessions"]
    assert [session["runs"] for session in sessions] == [3, 3, 3]
    assert [session["ratio"] for session in sessions] == pytest.approx([0.1 / step_time_s] * 3)
    starts = [utc_seconds(session["started_at"]) for session in sessions]
    assert all(later - earlier >= 300 for earlier, later in pairwise(starts))
    assert len({request.spec.trial for request in launcher.requests}) == 9


def test_minutes_in_which_the_machine_is_slow_do_not_make_the_layout_slow(loaded, tmp_path):
    launcher = in_turn(*[0.108] * 3, *[0.099] * 3, *[0.098] * 3)
    assert replayed(loaded, launcher, tmp_path, ReplayRules(3, sessions=3)).verdict is ReplayVerdict.REPRODUCED
    launcher = in_turn(*[0.108] * 3)
    lone = replayed(loaded, launcher, tmp_path / "lone", ReplayRules(3, sessions=1))
    assert lone.verdict is not ReplayVerdict.REPRODUCED


def test_a_replay_without_a_verdict_is_measured_until_there_is_one_or_no_session_is_left(loaded, tmp_path):
    launcher = in_turn(*[0.115, 0.095] * 4, 0.115)
    result = replayed(loaded, launcher, tmp_path, ReplayRules(1, sessions=9))
    assert (result.verdict, len(launcher.requests)) == (ReplayVerdict.INCONCLUSIVE, 9)


def test_a_replay_that_is_reproduced_asks_for_no_other_session(loaded, tmp_path):
    launcher = in_turn(*[0.1] * 9)
    assert replayed(loaded, launcher, tmp_path).verdict is ReplayVerdict.REPRODUCED
    assert len(launcher.requests) == 3


def test_a_replay_that_is_told_to_stop_between_sessions_stops_with_what_it_has_measured(loaded, tmp_path, logged):
    launcher = in_turn(*[0.115] * 9)
    with pytest.raises(KeyboardInterrupt) as stopped:
        replayed(loaded, launcher, tmp_path, callbacks=ReplayCallbacks(lambda: bool(logged)))
    assert len(launcher.requests) == 3
    data = stopped.value.result.to_json()
    assert (data["verdict"], data["detail"]) == ("inconclusive", "stopped before it had a verdict")
    assert data["ratio"] == pytest.approx(0.1 / 0.115)
    assert [session["runs"] for session in data["sessions"]] == [3]


def test_runs_that_would_be_reproduced_decide_nothing_where_the_replay_was_stopped(loaded, tmp_path):
    with pytest.raises(KeyboardInterrupt) as stopped:
        replayed(loaded, in_turn(0.1, 0.1, KeyboardInterrupt()), tmp_path)
    assert stopped.value.result.verdict is ReplayVerdict.INCONCLUSIVE
    assert len(stopped.value.result.runs) == 2


def test_replays_of_one_machine_take_turns_and_let_others_in_between_sessions(loaded, tmp_path):
    first, second = MachineLock(tmp_path), MachineLock(tmp_path)

    class Replacing(ListSink):
        """Ends the other replay when this one waits for it, and measures between two sessions of this one."""

        def emit(self, record: logging.LogRecord) -> None:
            if "another replay" not in record.getMessage():
                assert second.try_acquire()
            second.release()

    assert second.try_acquire()
    launcher = in_turn(*[0.115] * 3, *[0.1] * 3)
    with sending_to(Replacing()):
        replayed(loaded, launcher, tmp_path, ReplayRules(3, sessions=2), callbacks=ReplayCallbacks(lock=first))
    assert len(launcher.requests) == 6
    assert second.try_acquire()


def test_the_machine_lock_is_held_until_it_is_released(tmp_path):
    ours, other = MachineLock(tmp_path), MachineLock(tmp_path)
    assert (ours.try_acquire(), ours.try_acquire(), other.try_acquire()) == (True, True, False)
    ours.release()
    assert (other.try_acquire(), ours.try_acquire()) == (True, False)
    other.release()


def test_each_run_is_a_replay_trial_of_the_recipes_layout_with_the_recipes_code(loaded, tmp_path):
    launcher = in_turn(0.1, 0.1)
    replayed(loaded, launcher, tmp_path, ReplayRules(repeats=2))
    assert [r.spec.attempt_key for r in launcher.requests] == [
        "quickstart-replay.t0001.a1",
        "quickstart-replay.t0002.a1",
    ]
    assert {r.spec.kind.value for r in launcher.requests} == {"replay"}
    assert {r.spec.layout for r in launcher.requests} == {LAYOUT}
    assert (Path(launcher.requests[0].code) / "marker.py").exists()


def test_a_run_that_may_be_tried_again_is(loaded, tmp_path):
    launcher = in_turn(FailureReason.NODE_FAILURE, 0.1)
    result = replayed(loaded, launcher, tmp_path, ReplayRules(repeats=1))
    assert result.verdict is ReplayVerdict.REPRODUCED
    assert [r.spec.attempt for r in launcher.requests] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        (FailureReason.GPU_OOM, ReplayVerdict.IMPOSSIBLE),
        (FailureReason.SCRIPT_ERROR, ReplayVerdict.INCONCLUSIVE),
        (FailureReason.TIME_LIMIT, ReplayVerdict.INCONCLUSIVE),
    ],
)
def test_a_run_without_a_measurement_ends_the_replay_with_its_words(loaded, tmp_path, reason, verdict):
    launcher = in_turn(reason)
    result = replayed(loaded, launcher, tmp_path)
    assert (result.verdict, result.comparison) == (verdict, None)
    assert (result.to_json()["ratio"], result.to_json()["sessions"]) == (None, [])
    assert result.detail == f"{reason}: its words"
    assert len(launcher.requests) == 1


def test_a_run_that_fails_at_a_later_session_leaves_the_numbers_of_the_runs_before_it(loaded, tmp_path):
    launcher = in_turn(*[0.115] * 5, FailureReason.SCRIPT_ERROR)
    result = replayed(loaded, launcher, tmp_path)
    data = result.to_json()
    assert (data["verdict"], data["detail"]) == ("inconclusive", "script_error: its words")
    assert [session["runs"] for session in data["sessions"]] == [3, 2]
    assert data["ratio"] == pytest.approx(0.1 / 0.115)
    assert data["ratio_low"] < data["ratio"] < data["ratio_high"]
    assert data["measured"] / data["recorded"] == pytest.approx(data["ratio"])
    assert len(launcher.requests) == 6


def test_runs_that_would_be_reproduced_decide_nothing_once_one_has_failed(loaded, tmp_path):
    result = replayed(loaded, in_turn(0.1, 0.1, FailureReason.SCRIPT_ERROR), tmp_path)
    assert (result.verdict, result.comparison.verdict) == (ReplayVerdict.INCONCLUSIVE, ReplayVerdict.REPRODUCED)


@pytest.mark.parametrize("refusal", [LaunchRefused, ExternalError])
def test_a_launcher_that_refuses_a_later_run_leaves_the_numbers_of_the_runs_before_it(loaded, tmp_path, refusal):
    launcher = in_turn(0.1, 0.1, refusal("Slurm refused it: partition main is down"))
    result = replayed(loaded, launcher, tmp_path)
    assert (result.verdict, result.detail) == (ReplayVerdict.INCONCLUSIVE, "Slurm refused it: partition main is down")
    assert [session["runs"] for session in result.to_json()["sessions"]] == [2]


def test_a_launcher_that_refuses_the_first_run_is_not_hidden_behind_a_verdict(loaded, tmp_path):
    with pytest.raises(LaunchRefused):
        replayed(loaded, in_turn(LaunchRefused("no Ray at 10.0.0.1:6379")), tmp_path)


def test_an_interrupt_cancels_the_run_in_flight(loaded, tmp_path):
    launcher = in_turn(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as stopped:
        replayed(loaded, launcher, tmp_path)
    assert launcher.cancelled == ["quickstart-replay.t0001.a1"]
    assert stopped.value.result.comparison is None


@pytest.mark.bad_input(42)
@pytest.mark.parametrize(
    ("here", "words"),
    [
        (Cluster(CPU, 2, 1), "needs 1 node x 4 cpu = 4, here are 1 x 2 = 2"),
        (Cluster(H100, 8, 1), "the recipe is for cpu, here is h100-80gb"),
    ],
)
def test_other_hardware_or_too_little_is_impossible_and_starts_nothing(loaded, tmp_path, here, words):
    launcher = in_turn()
    result = replayed(loaded, launcher, tmp_path, here=here)
    assert result.verdict is ReplayVerdict.IMPOSSIBLE
    assert words in result.detail
    assert launcher.requests == []


def test_more_of_the_same_hardware_is_enough():
    assert cluster_mismatch_reason(Cluster(H100, 4, 1), Cluster(H100, 8, 2)) is None


def test_two_nodes_of_four_are_not_one_of_eight():
    assert cluster_mismatch_reason(Cluster(H100, 8, 1), Cluster(H100, 4, 2)) is not None


def test_this_machine_has_as_many_cpu_ranks_as_needed_and_only_the_gpus_it_shows():
    assert this_machine(Cluster(CPU, 4, 1), {}).gpus_per_node == 4
    assert this_machine(Cluster(H100, 8, 1), {"CUDA_VISIBLE_DEVICES": "0,1"}).gpus_per_node == 2
    assert this_machine(Cluster(H100, 8, 1), {"CUDA_VISIBLE_DEVICES": ""}).accelerator.name == "cpu"


ODD_END = {"trial": "t0001", "started_at": None, "step_time_s": 0.5, "step_time_low_s": []}


@pytest.mark.parametrize(
    "runs", [[], None, 3, [{"trial": "t0001"}], [{"step_time_s": "fast"}], [{"step_time_s": 0}], [ODD_END]]
)
def test_a_recipe_that_rests_on_no_run_is_refused(loaded, tmp_path, runs):
    evidence = dict(loaded.recipe.evidence) | {"runs": runs}
    bare = replace(loaded, recipe=replace(loaded.recipe, evidence=evidence))
    with pytest.raises(InputError, match=r"evidence\.runs: has no run"):
        replayed(bare, in_turn(), tmp_path)


def test_what_was_recorded_tells_of_fast_steps_as_long_as_its_evidence_does(loaded):
    file = loaded.folder / "evidence.json"
    (run,) = recorded_runs(loaded)
    evidence = json.loads(file.read_text())
    evidence["runs"][0]["outcome"]["step_times_s"] = [9.0, 0.05, 0.1, 0.2]
    evidence["runs"][0]["outcome"]["measured"] |= {"warmup_steps": 1, "measured_steps": 3}
    file.write_text(json.dumps(evidence))
    (told,) = recorded_runs(loaded)
    assert told.fast_step_time_s == pytest.approx(run.step_time_s / 2)
    for damaged in ("{}", "[]", "{", '{"runs": [{"trial": "t0001", "outcome": 3}]}'):
        file.write_text(damaged)
        assert recorded_runs(loaded) == [replace(run, fast_step_time_s=None)]


@pytest.mark.parametrize(
    ("flags", "counted"), [(((), ()), 2), ((("suspect_node",), ()), 1), ((("suspect_node",),) * 2, 2)]
)
def test_of_the_recorded_runs_a_suspect_one_counts_where_there_is_no_other(loaded, flags, counted):
    evidence = json.loads((loaded.folder / "evidence.json").read_text())
    (told,), (listed,) = evidence["runs"], loaded.recipe.evidence["runs"]
    runs = [told | {"trial": f"t{n}", "outcome": told["outcome"] | {"flags": each}} for n, each in enumerate(flags)]
    (loaded.folder / "evidence.json").write_text(json.dumps({"runs": runs}))
    both = [dict(listed) | {"trial": f"t{n}", "step_time_s": time_s} for n, time_s in enumerate((0.5, 0.1))]
    ran = replace(loaded, recipe=replace(loaded.recipe, evidence={"runs": both}))
    assert [run.step_time_s for run in recorded_runs(ran)] == [0.5, 0.1][-counted:]


@pytest.mark.parametrize(
    "rules",
    [
        {"repeats": 0},
        {"repeats": True},
        {"margin": 0.0},
        {"margin": 0.5},
        {"sessions": 0},
        {"session_interval_s": 299.0},
    ],
)
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(InputError):
        ReplayRules(**rules)


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_replay_really_trains_with_the_recipes_code(tmp_path):
    snapshot_code(tmp_path / "code")
    two_ranks = Layout(data_parallel=2, micro_batch_size=2)
    file = write_recipe(tmp_path / "recipe", source_of(measured_trial("t0001", two_ranks, 0.1)), tmp_path / "code")
    launcher = LocalLauncher([[]])
    try:
        result = replay(
            read_recipe(file),
            launcher,
            SearchFolder(tmp_path / "r"),
            python=sys.executable,
            rules=ReplayRules(repeats=1, sessions=1),
        )
    finally:
        launcher.close()
    assert result.detail is None
    assert result.comparison is not None
    assert {d["field"] for d in result.differences} >= {"kernel", "host"}


def test_the_launcher_of_the_search_is_taken_with_its_options_unless_another_is_named():
    recipe = SimpleNamespace(launcher={"kind": "slurm", "slurm": {"partition": "gpu"}})
    assert launcher_section(recipe, None).slurm.partition == "gpu"
    assert launcher_section(recipe, "slurm").slurm.partition == "gpu"
    assert launcher_section(recipe, "local").kind == "local"
    assert launcher_section(SimpleNamespace(launcher={}), None).kind == "ray"


def test_what_a_table_answered_is_replayed_by_plain_processes():
    recipe = SimpleNamespace(launcher={"kind": "simulated", "table": "/tables/a.csv"})
    assert launcher_section(recipe, None).kind == "local"
