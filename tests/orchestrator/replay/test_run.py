"""Interpreter of a replay's ranks, and its packages."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.launchers import factory
from orchestrator.lifecycle.signals import CancelOnSignal
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.replay import ReplayRules
from orchestrator.replay.run import run_replay, with_trainer
from search_spaces.errors import InputError
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.strangers import STRANGER, needs_a_stranger

IMAGE = {"kind": "slurm", "slurm": {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}}}
THERE, GONE = "/bin/sh", "/no/such/python"


@pytest.fixture
def loaded(tmp_path, monkeypatch) -> LoadedRecipe:
    monkeypatch.delenv("PARLAY_PYTHON", raising=False)
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", LAYOUT, 0.1))
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def python_of(loaded: LoadedRecipe, measured: str, kind: str | None = None, **changes: Any) -> str:
    recipe = replace(loaded.recipe, python=measured, **changes)
    return with_trainer(replace(loaded, recipe=recipe), None, (), kind)[1]


@pytest.mark.parametrize(("measured", "taken"), [(THERE, THERE), (GONE, sys.executable)])
def test_the_one_that_was_measured_where_it_is_still_there(loaded, measured, taken):
    assert python_of(loaded, measured) == taken


@pytest.mark.parametrize(
    ("measured", "kind", "taken"),
    [(GONE, None, GONE), (THERE, "local", sys.executable), (GONE, "local", sys.executable)],
)
def test_that_of_an_image_is_looked_for_nowhere_else(loaded, measured, kind, taken):
    assert python_of(loaded, measured, kind, launcher=IMAGE) == taken


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


@pytest.mark.bad_input(54)
def test_a_python_without_the_packages_of_the_layouts_engine_is_refused_and_nothing_launched(tmp_path, monkeypatch):
    monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: pytest.fail("a launcher is made"))
    monkeypatch.setattr("orchestrator.replay.run.impossible_result", lambda *_: None)
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", replace(LAYOUT, engine="megatron-core"), 0.1))
    recipe = read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"megatron-core": "0.15.3"}\'\n')
    python.chmod(0o755)
    with pytest.raises(InputError, match=r"megatron-core 0\.15\.3 is installed"):
        run_replay(recipe, str(python), "local", ReplayRules(), tmp_path / "runs", CancelOnSignal())
    assert not (tmp_path / "runs").exists()
