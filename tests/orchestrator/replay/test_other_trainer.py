"""Replays of a recipe of Parlay's own trainer with a third-party trainer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.comparison.speed_ratio import ReplayVerdict
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.other_trainer import for_trainer, trainer_section
from orchestrator.replay.replay import ReplayRules, impossible_result, replay
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import in_turn
from trials.files.folders import SearchFolder

SHARDED = replace(LAYOUT, pipeline_parallel=1, data_parallel=2, zero_stage=1, attention_kernel="math")


def loaded(tmp_path, layout: Layout, accelerator: str = "a100-80gb") -> LoadedRecipe:
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", layout, 0.1), accelerator=accelerator)
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def megatron(tmp_path, *overrides: str):
    (tmp_path / "pretrain_gpt.py").write_text("")
    return trainer_section("megatron-lm", ["trainer.script=pretrain_gpt.py", *overrides], tmp_path)


def replayed(recipe: LoadedRecipe, tmp_path, *endings):
    launcher = in_turn(*endings)
    rules = ReplayRules(repeats=max(1, len(endings)))
    folder = SearchFolder(tmp_path / "again")
    known = impossible_result(recipe, None)
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
    assert result.to_json()["trainer"] == "megatron-lm"


def test_without_another_trainer_it_is_the_recipes_own(tmp_path):
    result, launcher = replayed(loaded(tmp_path, SHARDED), tmp_path, 0.1)
    assert launcher.requests[0].spec.trainer["kind"] == "parlay"
    assert result.trainer == "parlay"


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
        ("megatron-lm", [], "required by kind megatron-lm"),
        ("megatron-lm", ["trainer.scrpt=x"], "unknown key 'scrpt'"),
        ("megatron-lm", ["search.seed=1"], "unknown key"),
        ("nanotron", ["trainer.script=run_train.py"], "required by kind nanotron"),
    ],
)
def test_a_trainer_that_is_none_is_refused_as_in_a_search_file(tmp_path, kind, overrides, words):
    with pytest.raises(InputError) as error:
        trainer_section(kind, overrides, tmp_path)
    assert any(words in f"{p.message} {p.rule}" for p in error.value.problems), error.value.problems


def test_what_is_missing_is_asked_for_as_an_option(tmp_path):
    with pytest.raises(InputError) as error:
        trainer_section("megatron-lm", [], tmp_path)
    assert [p.fix for p in error.value.problems] == ["add --set trainer.script=..."]


def test_a_script_that_is_not_there_is_refused(tmp_path):
    section = trainer_section("megatron-lm", ["trainer.script=nowhere.py"], tmp_path)
    with pytest.raises(InputError, match=r"nowhere\.py is not a file on this machine"):
        for_trainer(loaded(tmp_path, SHARDED), section)
