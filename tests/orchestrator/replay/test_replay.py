"""A recipe's layout measured again: verdicts, sessions, interruptions, and what is run."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.launchers.base import LaunchRefused
from orchestrator.lifecycle.logs import ListSink, sending_to
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.measured_layout import recorded_runs
from orchestrator.replay.replay import (
    ReplayRules,
    cluster_mismatch_reason,
    impossible_replay,
    launcher_section,
    replay,
    this_machine,
)
from orchestrator.replay.run import with_trainer
from orchestrator.replay.runs import MachineLock, ReplayCallbacks
from orchestrator.replay.speed_ratio import ReplayVerdict
from search_spaces.errors import ExternalError, InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import in_turn
from tests.strangers import STRANGER, needs_a_stranger
from trials.files.folders import SearchFolder
from trials.trial import FailureReason, utc_seconds

CPU, H100 = ACCELERATORS["cpu"], ACCELERATORS["h100-80gb"]
REFUSED = "Slurm refused it: partition main is down"


@pytest.fixture
def loaded(tmp_path, monkeypatch) -> LoadedRecipe:
    monkeypatch.delenv("PARLAY_PYTHON", raising=False)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "marker.py").write_text("")
    source = source_of(measured_trial("t0001", LAYOUT, 0.1))
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def replayed(loaded, launcher, tmp_path, rules=None, here=None, callbacks=None):
    folder, rules = SearchFolder(tmp_path / "quickstart-replay"), rules or ReplayRules(repeats=3)
    known = impossible_replay(loaded, here)
    return known or replay(loaded, launcher, folder, python="python3", rules=rules, callbacks=callbacks)


def test_the_same_speed_is_reproduced_and_what_differs_is_named(loaded, tmp_path):
    launcher = in_turn(*[0.1, 0.101, 0.099] * 3)
    data = replayed(loaded, launcher, tmp_path).plain()
    assert (data["verdict"], len(launcher.requests)) == ("reproduced", 3), "no other session is asked for"
    assert data["ratio_low"] < data["ratio"] < data["ratio_high"]
    assert data["ratio"] == pytest.approx(1.0, abs=0.01)
    assert data["measured"] / data["recorded"] == pytest.approx(data["ratio"])
    assert data["differences"] == [{"field": "torch", "recorded": "2.13.0", "here": "2.14.0"}]


@pytest.mark.parametrize(
    ("step_times_s", "rules", "verdict", "sessions"),
    [
        ([0.115] * 9, ReplayRules(3), ReplayVerdict.SLOWER, [3, 3, 3]),
        ([0.085] * 9, ReplayRules(3), ReplayVerdict.FASTER, [3, 3, 3]),
        ([0.108] * 3 + [0.099] * 3 + [0.098] * 3, ReplayRules(3), ReplayVerdict.REPRODUCED, [3, 3]),
        ([0.115, 0.095] * 4 + [0.115], ReplayRules(1, sessions=9), ReplayVerdict.INCONCLUSIVE, [1] * 9),
    ],
    ids=["slower", "faster", "slow minutes", "no verdict"],
)
def test_another_speed_is_said_once_every_session_agrees(
    loaded, tmp_path, step_times_s, rules, verdict, sessions, logged
):
    launcher = in_turn(*step_times_s)
    result = replayed(loaded, launcher, tmp_path, rules, callbacks=ReplayCallbacks())
    found = result.plain()["sessions"]
    assert (result.verdict, [session["runs"] for session in found]) == (verdict, sessions)
    assert len(logged) == len(sessions) - 1, "it may be a temporary effect"
    starts = [utc_seconds(session["started_at"]) for session in found]
    assert all(later - earlier >= 300 for earlier, later in pairwise(starts))
    assert len({request.spec.trial for request in launcher.requests}) == sum(sessions)


def test_another_script_is_named_after_one_run_and_its_speed_says_nothing_of_the_recorded_one(loaded, tmp_path):
    was, now = {"scripts": {"/home/a/train.py": "1a2b" * 16}}, {"scripts": {"/home/a/train.py": "9f8e" * 16}}
    recorded = replace(loaded, recipe=replace(loaded.recipe, fingerprint=was))
    launcher = in_turn(0.1, 0.1, 0.1, fingerprint=now)
    data = replayed(recorded, launcher, tmp_path).plain()
    assert (data["verdict"], data["ratio"], len(launcher.requests)) == ("impossible", None, 1)
    [difference] = data["differences"]
    assert difference == {"field": "scripts./home/a/train.py", "recorded": "1a2b" * 16, "here": "9f8e" * 16}
    other_trainer = replace(recorded, trainer=loaded.spec().trainer)
    launcher = in_turn(0.1, 0.1, 0.1, fingerprint=now)
    assert replayed(other_trainer, launcher, tmp_path / "other").verdict is ReplayVerdict.REPRODUCED


@pytest.mark.parametrize(
    ("endings", "runs"),
    [([0.115] * 9, 3), ([0.115, 0.115, KeyboardInterrupt()], 2), ([0.1, 0.1, KeyboardInterrupt()], 2)],
    ids=["between sessions", "in a run", "in a run, as it was"],
)
def test_a_replay_that_is_stopped_decides_nothing_and_has_what_it_measured(loaded, tmp_path, endings, runs):
    launcher = in_turn(*endings)
    callbacks = ReplayCallbacks(lambda: len(launcher.requests) == 3)
    with pytest.raises(KeyboardInterrupt) as stopped:
        replayed(loaded, launcher, tmp_path, callbacks=callbacks)
    data = stopped.value.answer.plain()
    assert (data["verdict"], data["detail"]) == ("inconclusive", "stopped before it had a verdict")
    assert [session["runs"] for session in data["sessions"]] == [runs]
    assert data["ratio"] == pytest.approx(0.1 / endings[0])
    assert launcher.cancelled == (["quickstart-replay.t0003.a1"] if runs == 2 else [])


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
    assert (first.try_acquire(), second.try_acquire()) == (False, True)


def test_each_run_is_a_replay_trial_of_the_recipes_layout_with_the_recipes_code(loaded, tmp_path):
    """A run that may be tried again is."""
    launcher = in_turn(FailureReason.NODE_FAILURE, 0.1, 0.1)
    replayed(loaded, launcher, tmp_path, ReplayRules(repeats=2))
    names = [f"quickstart-replay.{name}" for name in ("t0001.a1", "t0001.a2", "t0002.a1")]
    assert [r.spec.attempt_key for r in launcher.requests] == names
    assert {(r.spec.kind.value, r.spec.layout) for r in launcher.requests} == {("replay", LAYOUT)}
    assert (Path(launcher.requests[0].code) / "marker.py").exists()


@pytest.mark.parametrize(
    ("endings", "verdict", "detail", "runs"),
    [
        ([FailureReason.GPU_OOM], ReplayVerdict.IMPOSSIBLE, "gpu_oom: its words", []),
        ([FailureReason.TIME_LIMIT], ReplayVerdict.INCONCLUSIVE, "time_limit: its words", []),
        ([0.1] * 2 + [FailureReason.SCRIPT_ERROR], ReplayVerdict.INCONCLUSIVE, "script_error: its words", [2]),
        ([0.115] * 5 + [FailureReason.SCRIPT_ERROR], ReplayVerdict.INCONCLUSIVE, "script_error: its words", [3, 2]),
        ([0.1, 0.1, LaunchRefused(REFUSED)], ReplayVerdict.INCONCLUSIVE, REFUSED, [2]),
        ([0.1, 0.1, ExternalError(REFUSED)], ReplayVerdict.INCONCLUSIVE, REFUSED, [2]),
    ],
    ids=["memory", "time", "as it was", "a later session", "refused", "no answer"],
)
def test_a_run_without_a_measurement_ends_the_replay_with_its_words_and_what_was_measured_before(
    loaded, tmp_path, endings, verdict, detail, runs
):
    launcher = in_turn(*endings)
    result = replayed(loaded, launcher, tmp_path)
    data = result.plain()
    assert (result.verdict, result.detail) == (verdict, detail)
    assert [session["runs"] for session in data["sessions"]] == runs
    assert data["ratio"] == (pytest.approx(0.1 / endings[0]) if runs else None)


def test_a_launcher_that_refuses_the_first_run_is_not_hidden_behind_a_verdict(loaded, tmp_path):
    with pytest.raises(LaunchRefused):
        replayed(loaded, in_turn(LaunchRefused("no Ray at 10.0.0.1:6379")), tmp_path)


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
    assert (result.verdict, launcher.requests) == (ReplayVerdict.IMPOSSIBLE, [])
    assert words in result.detail


@pytest.mark.parametrize(
    ("needed", "here", "is_enough"), [((4, 1), (8, 2), True), ((8, 1), (4, 2), False), ((4, 2), (8, 1), False)]
)
def test_nodes_of_other_sizes_are_other_hardware(needed, here, is_enough):
    assert (cluster_mismatch_reason(Cluster(H100, *needed), Cluster(H100, *here)) is None) is is_enough


def test_this_machine_has_as_many_cpu_ranks_as_needed_and_only_the_gpus_it_shows():
    assert this_machine(Cluster(CPU, 4, 1), {}).gpus_per_node == 4
    assert this_machine(Cluster(H100, 8, 1), {"CUDA_VISIBLE_DEVICES": "0,1"}).gpus_per_node == 2
    assert this_machine(Cluster(H100, 8, 1), {"CUDA_VISIBLE_DEVICES": ""}).accelerator.name == "cpu"


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
    (told,), (listed,) = evidence["runs"], loaded.recipe.evidence.runs
    runs = [told | {"trial": f"t{n}", "outcome": told["outcome"] | {"flags": each}} for n, each in enumerate(flags)]
    (loaded.folder / "evidence.json").write_text(json.dumps({"runs": runs}))
    both = tuple(replace(listed, trial=f"t{n}", step_time_s=time_s) for n, time_s in enumerate((0.5, 0.1)))
    ran = replace(loaded, recipe=replace(loaded.recipe, evidence=replace(loaded.recipe.evidence, runs=both)))
    assert [run.step_time_s for run in recorded_runs(ran)] == [0.5, 0.1][-counted:]


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        *(("repeats", 0), ("repeats", True), ("margin", 0.0), ("margin", 0.5)),
        *(("sessions", 0), ("session_interval_s", 299.0)),
    ],
)
def test_rules_that_make_no_sense_are_refused(rule, value):
    with pytest.raises(InputError):
        ReplayRules(**{rule: value})


SLURM = {"kind": "slurm", "slurm": {"partition": "gpu"}}


@pytest.mark.parametrize(
    ("recorded", "asked", "kind", "partition"),
    [
        (SLURM, None, "slurm", "gpu"),
        (SLURM, "slurm", "slurm", "gpu"),
        (SLURM, "local", "local", "gpu"),
        ({}, None, "ray", None),
        ({"kind": "simulated", "table": "/tables/a.csv"}, None, "local", None),
    ],
    ids=["its own", "the same", "another", "none", "a table"],
)
def test_the_launcher_of_the_search_is_taken_with_its_options_unless_another_is_named(recorded, asked, kind, partition):
    found = launcher_section(SimpleNamespace(launcher=recorded), asked)
    assert (found.kind, found.slurm.partition) == (kind, partition)


IMAGE = {"kind": "slurm", "slurm": {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}}}
THERE, GONE = "/bin/sh", "/no/such/python"


def python_of(loaded: LoadedRecipe, measured: str, kind: str | None = None, **changes: Any) -> str:
    recipe = replace(loaded.recipe, python=measured, **changes)
    return with_trainer(replace(loaded, recipe=recipe), None, (), kind)[1]


@pytest.mark.parametrize(
    ("measured", "kind", "changes", "taken"),
    [
        (THERE, None, {}, THERE),
        (GONE, None, {}, sys.executable),
        (GONE, None, {"launcher": IMAGE}, GONE),
        (THERE, "local", {"launcher": IMAGE}, sys.executable),
        (GONE, "local", {"launcher": IMAGE}, sys.executable),
    ],
)
def test_the_python_that_was_measured_is_taken_where_it_is_still_there_or_in_an_image(
    loaded, measured, kind, changes, taken
):
    assert python_of(loaded, measured, kind, **changes) == taken


def test_parlay_python_names_another_as_it_does_for_the_recipes_scripts(loaded, monkeypatch):
    monkeypatch.setenv("PARLAY_PYTHON", "/opt/py/bin/python")
    assert python_of(loaded, THERE) == "/opt/py/bin/python"


@pytest.mark.bad_input(42)
@pytest.mark.security("paths")
@needs_a_stranger
@pytest.mark.parametrize(
    ("theirs", "key"),
    [("recipe", "recipe"), ("recipe/spec.json", "recipe"), ("recipe/code", "recipe"), ("python",) * 2],
)
def test_a_recipe_or_interpreter_of_another_user_is_not_run_unless_told_to_trust_it(loaded, tmp_path, theirs, key):
    python = tmp_path / "python"
    python.symlink_to(THERE)
    os.chown(tmp_path / theirs, STRANGER, -1, follow_symlinks=False)
    with pytest.raises(InputError) as refused:
        python_of(loaded, str(python))
    (problem,) = refused.value.problems
    assert (problem.key, problem.value, "--trust" in problem.fix) == (key, str(tmp_path / theirs), True)
    recipe = replace(loaded, recipe=replace(loaded.recipe, python=str(python)))
    assert with_trainer(recipe, None, (), None, trust=True)[1] == str(python)
