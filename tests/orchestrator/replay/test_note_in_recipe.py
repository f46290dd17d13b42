"""A recipe after another trainer ran its layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.note_in_recipe import write_note
from orchestrator.replay.other_trainer import for_trainer, trainer_section
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of

AT = "2026-11-20T10:00:00Z"
SHARDED = replace(LAYOUT, pipeline_parallel=1, data_parallel=2, zero_stage=1, attention_kernel="math")
FOUND = {
    "verdict": "slower",
    "trainer": "megatron-lm",
    "recorded": 1000.0,
    "measured": 900.0,
    "ratio": 0.9,
    "ratio_low": 0.87,
    "ratio_high": 0.93,
    "differences": [{"field": "torch", "recorded": "2.6", "here": "2.7"}],
    "flags": [],
    "detail": None,
}


@pytest.fixture
def recipe(tmp_path: Path) -> LoadedRecipe:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "program.py").write_text("")
    source = source_of(measured_trial("t0001", SHARDED, 0.1), accelerator="a100-80gb")
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def under_megatron(recipe: LoadedRecipe) -> LoadedRecipe:
    return under(recipe, "megatron-lm")


def under(recipe: LoadedRecipe, trainer: str) -> LoadedRecipe:
    script = recipe.folder.parent / "pretrain_mine.py"
    script.write_text("")
    section = trainer_section(trainer, ["trainer.script=pretrain_mine.py"], script.parent)
    return for_trainer(recipe, section)


def export_of(recipe: LoadedRecipe, trainer: str) -> dict[str, Any]:
    return dict(next(e for e in recipe.recipe.exports if e["trainer"] == trainer))


def test_its_files_say_that_it_ran_the_layout_and_how_fast(recipe):
    assert export_of(recipe, "megatron-lm")["status"] == "not_measured"
    assert write_note(recipe, under_megatron(recipe), "python3", FOUND, AT)
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
    assert "pretrain_mine.py" in export["unrun_start"]
    first = (recipe.folder / "megatron_args.txt").read_text().splitlines()[0]
    assert first.endswith(", measured with this trainer.")
    page = (recipe.folder / "README.md").read_text()
    assert "**Megatron-LM**, measured with this trainer, 900 tokens/s, 0.90 times the recipe's (0.87 to 0.93)" in page


def test_nothing_else_of_the_recipe_changes(recipe):
    assert write_note(recipe, under_megatron(recipe), "python3", FOUND, AT)
    again = read_recipe(recipe.folder)
    others = [e for e in again.recipe.exports if e["trainer"] != "megatron-lm"]
    assert others == [e for e in recipe.recipe.exports if e["trainer"] != "megatron-lm"]
    assert replace(again.recipe, exports=(), caveats=()) == replace(recipe.recipe, exports=(), caveats=())
    assert again.banner is None
    assert (recipe.folder / "launch.sh").stat().st_mode & 0o777 == 0o700
    assert (recipe.folder / "code" / "program.py").is_file()


def test_no_caveat_says_any_more_that_no_other_trainer_ran_it(recipe):
    assert write_note(recipe, under_megatron(recipe), "python3", FOUND, AT)
    before, now = recipe.recipe.caveats, read_recipe(recipe.folder).recipe.caveats
    assert "Measured with Parlay's own training program, engine torch; not measured with another trainer." in before
    assert "Measured with Parlay's own training program, engine torch, and since by a replay with Megatron-LM." in now
    assert len(now) == len(before)


def test_the_folder_stays_with_what_others_have_put_there_as_its_files_stay_readable_to_them(recipe):
    folder, training = recipe.folder, recipe.folder / "run-20261120T100000Z"
    training.mkdir()
    (folder / "recipe.yaml").chmod(0o644)
    before = folder.stat().st_ino, training.stat().st_ino
    assert write_note(recipe, under_megatron(recipe), "python3", FOUND, AT)
    assert (folder.stat().st_ino, training.stat().st_ino) == before
    assert (folder / "recipe.yaml").stat().st_mode & 0o777 == 0o644


def test_what_another_replay_noted_meanwhile_stays(recipe):
    ours, other = under(recipe, "megatron-lm"), under(recipe, "megatron-deepspeed")
    assert write_note(recipe, other, "python3", FOUND, AT)
    assert write_note(recipe, ours, "python3", FOUND, AT)
    now = read_recipe(recipe.folder)
    assert export_of(now, "megatron-deepspeed")["status"] == export_of(now, "megatron-lm")["status"] == "measured"


def test_a_recipe_that_another_search_has_replaced_or_that_is_gone_is_left_alone(recipe):
    other = replace(recipe.recipe, evidence=recipe.recipe.evidence | {"code_hash": "another"})
    assert not write_note(replace(recipe, recipe=other), under_megatron(recipe), "python3", FOUND, AT)
    ran = under_megatron(recipe)
    (recipe.folder / "recipe.yaml").unlink()
    assert not write_note(recipe, ran, "python3", FOUND, AT)


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
    assert not write_note(recipe, under_megatron(recipe), "python3", FOUND | answer, AT)
    assert export_of(read_recipe(recipe.folder), "megatron-lm")["status"] == "not_measured"


def test_an_edited_recipe_stays_as_it_is(recipe):
    edited = replace(recipe, banner="EDITED RECIPE: ...")
    assert not write_note(edited, under_megatron(recipe), "python3", FOUND, AT)


def test_its_own_trainer_needs_no_note(recipe):
    assert not write_note(recipe, recipe, "python3", FOUND, AT)
