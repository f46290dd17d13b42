"""Replays of a recipe with a third-party trainer, and what its files say of it afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.note_in_recipe import write_note
from orchestrator.replay.other_trainer import for_trainer, trainer_section
from orchestrator.replay.replay import ReplayAnswer, ReplayRules, impossible_replay, replay
from orchestrator.replay.speed_ratio import ReplayVerdict
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import in_turn
from trials.files.folders import SearchFolder

SHARDED = replace(LAYOUT, pipeline_parallel=1, data_parallel=2, zero_stage=1, attention_kernel="math")


def loaded(tmp_path, layout: Layout, accelerator: str = "a100-80gb") -> LoadedRecipe:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text("")
    source = source_of(measured_trial("t0001", layout, 0.1), accelerator=accelerator)
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def megatron(tmp_path, *overrides: str):
    (tmp_path / "pretrain_gpt.py").write_text("")
    return trainer_section("megatron-lm", ["trainer.script=pretrain_gpt.py", *overrides], tmp_path)


def replayed(recipe: LoadedRecipe, tmp_path, *endings):
    launcher = in_turn(*endings)
    rules = ReplayRules(repeats=max(1, len(endings)))
    folder = SearchFolder(tmp_path / "again")
    known = impossible_replay(recipe, None)
    return known or replay(recipe, launcher, folder, python="python3", rules=rules), launcher


def test_the_other_trainer_runs_the_layout_as_its_own(tmp_path):
    section = megatron(tmp_path, "trainer.arguments=[--data-path, /data/c4]")
    recipe = for_trainer(loaded(tmp_path, SHARDED), section)
    result, launcher = replayed(recipe, tmp_path, 0.1, 0.101, 0.099)
    spec = launcher.requests[0].spec
    assert spec.trainer == {
        "kind": "megatron-lm",
        "script": str(tmp_path / "pretrain_gpt.py"),
        "arguments": ["--data-path", "/data/c4"],
    }
    assert spec.layout == replace(SHARDED, engine="megatron-lm").canonical()
    assert spec.global_batch_size == SHARDED.global_batch_size
    assert (result.verdict, result.trainer) == (ReplayVerdict.REPRODUCED, "megatron-lm")


def test_a_layout_that_the_trainer_cannot_run_is_impossible_and_nothing_is_launched(tmp_path):
    gpipe = replace(LAYOUT, pipeline_schedule="gpipe")
    result, launcher = replayed(for_trainer(loaded(tmp_path, gpipe), megatron(tmp_path)), tmp_path)
    assert result.verdict is ReplayVerdict.IMPOSSIBLE
    assert "pipeline_schedule is gpipe" in str(result.detail)
    assert "(megatron-lm.pipeline_schedule)" in str(result.detail)
    assert launcher.requests == []


@pytest.mark.bad_input(53)
def test_another_engine_is_refused_where_a_cpu_emulates_its_gpu(tmp_path):
    """Its result would be a headline between engines; the recipe's own trainer may be replayed."""
    on_cpu = loaded(tmp_path, SHARDED, "cpu")
    with pytest.raises(InputError, match="compares megatron-lm and torch on cpu, which emulates the GPU") as error:
        for_trainer(on_cpu, megatron(tmp_path))
    [problem] = error.value.problems
    assert (problem.key, problem.fix) == (
        "--trainer",
        "replay on torch, which measured it, or search with megatron-lm",
    )
    assert for_trainer(on_cpu, trainer_section("parlay", [], tmp_path)).recipe.layout == on_cpu.recipe.layout


@pytest.mark.parametrize(
    ("kind", "overrides", "words"),
    [
        ("megatron", [], "one of parlay, megatron-lm"),
        ("megatron-lm", ["trainer.scrpt=x"], "unknown key 'scrpt'"),
        ("nanotron", ["trainer.script=run_train.py"], "required by kind nanotron"),
    ],
)
def test_a_trainer_that_is_none_is_refused_as_in_a_search_file(tmp_path, kind, overrides, words):
    with pytest.raises(InputError) as error:
        trainer_section(kind, overrides, tmp_path)
    assert any(words in f"{p.message} {p.rule}" for p in error.value.problems), error.value.problems


def test_a_script_that_is_not_there_is_refused(tmp_path):
    section = trainer_section("megatron-lm", ["trainer.script=nowhere.py"], tmp_path)
    with pytest.raises(InputError, match=r"nowhere\.py is not a file on this machine"):
        for_trainer(loaded(tmp_path, SHARDED), section)


AT = "2026-11-20T10:00:00Z"
FOUND: dict[str, Any] = {
    "verdict": "slower",
    "trainer": "megatron-lm",
    "recorded": 1000.0,
    "measured": 900.0,
    "ratio": 0.9,
    "ratio_low": 0.87,
    "ratio_high": 0.93,
    "fast_ratio": None,
    "fast_ratio_low": None,
    "fast_ratio_high": None,
    "sessions": [],
    "differences": [{"field": "torch", "recorded": "2.6", "here": "2.7"}],
    "flags": [],
    "detail": None,
}


@pytest.fixture
def recipe(tmp_path: Path) -> LoadedRecipe:
    return loaded(tmp_path, SHARDED)


def under_megatron(recipe: LoadedRecipe) -> LoadedRecipe:
    return for_trainer(recipe, megatron(recipe.folder.parent))


def export_of(recipe: LoadedRecipe, trainer: str) -> dict[str, Any]:
    return dict(next(e for e in recipe.recipe.exports if e["trainer"] == trainer))


def test_its_files_say_that_it_ran_the_layout_and_how_fast(recipe):
    assert export_of(recipe, "megatron-lm")["status"] == "not_measured"
    assert write_note(recipe, under_megatron(recipe), "python3", ReplayAnswer(**FOUND), AT)
    again = read_recipe(recipe.folder)
    export = export_of(again, "megatron-lm")
    assert export["status"] == "measured"
    assert export["replayed"] == {
        "at": AT,
        "tokens_per_sec": 900.0,
        "verdict": "slower",
        "ratio": 0.9,
        "ratio_low": 0.87,
        "ratio_high": 0.93,
    }
    assert "pretrain_gpt.py" in export["unrun_start"]
    first = (recipe.folder / "megatron_args.txt").read_text().splitlines()[0]
    assert first.endswith(", measured with this trainer.")
    page = (recipe.folder / "README.md").read_text()
    assert "**Megatron-LM**, measured with this trainer, 900 tokens/s, 0.90 times the recipe's (0.87 to 0.93)" in page


def test_nothing_else_of_the_recipe_changes_nor_what_others_have_put_into_its_folder(recipe):
    folder, training = recipe.folder, recipe.folder / "run-20261120T100000Z"
    training.mkdir()
    (folder / "recipe.yaml").chmod(0o644)
    before = folder.stat().st_ino, training.stat().st_ino
    assert write_note(recipe, under_megatron(recipe), "python3", ReplayAnswer(**FOUND), AT)
    assert (folder.stat().st_ino, training.stat().st_ino) == before
    assert (folder / "recipe.yaml").stat().st_mode & 0o777 == 0o644, "others may still read it"
    again = read_recipe(recipe.folder)
    others = [e for e in again.recipe.exports if e["trainer"] != "megatron-lm"]
    assert others == [e for e in recipe.recipe.exports if e["trainer"] != "megatron-lm"]
    assert replace(again.recipe, exports=(), caveats=()) == replace(recipe.recipe, exports=(), caveats=())
    assert again.banner is None
    assert (recipe.folder / "launch.sh").stat().st_mode & 0o777 == 0o700
    assert (recipe.folder / "code" / "program.py").is_file()


def test_a_recipe_that_another_search_has_replaced_or_that_is_gone_is_left_alone(recipe):
    other = replace(recipe.recipe, evidence=replace(recipe.recipe.evidence, code_hash="another"))
    assert not write_note(replace(recipe, recipe=other), under_megatron(recipe), "python3", ReplayAnswer(**FOUND), AT)
    ran = under_megatron(recipe)
    (recipe.folder / "recipe.yaml").unlink()
    assert not write_note(recipe, ran, "python3", ReplayAnswer(**FOUND), AT)


@pytest.mark.parametrize(
    "answer",
    [
        {"detail": "script_error: its words"},
        {"flags": ["unproven"]},
        {"differences": [{"field": "device", "recorded": "NVIDIA A100", "here": "NVIDIA H100"}]},
    ],
    ids=["failed", "layout-unproven", "another-device"],
)
def test_what_says_nothing_of_the_layout_with_that_trainer_here_is_not_noted(recipe, answer):
    assert not write_note(recipe, under_megatron(recipe), "python3", ReplayAnswer(**FOUND | answer), AT)
    assert export_of(read_recipe(recipe.folder), "megatron-lm")["status"] == "not_measured"
