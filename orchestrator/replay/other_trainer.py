"""Replay with another trainer than the one of the search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import Recipe
from search_spaces.engines import ENGINE_PROFILES, engines_of
from search_spaces.errors import InputError, Problem
from search_spaces.routing import Routing
from search_spaces.rules.check import engine_violations, mixed_engines_problem
from search_spaces.schema.validation import Section, validate
from search_spaces.schema.yaml_document import Document, Override, with_overrides
from trials.schema.trainer_section import TrainerSection
from trials.trainers.registry import TRAINERS


class _TrainerOnly(Section):
    """Section for the values of `--trainer` and `--set`."""

    trainer: TrainerSection


def trainer_section(kind: str, overrides: Iterable[Override | str], folder: Path) -> TrainerSection:
    """The trainer section of this kind with each `trainer.key=value` applied; paths are relative to `folder`.

    InputError as for a search file's section.
    """
    document = with_overrides(Document({"trainer": {"kind": kind}}, {}, None, folder), overrides)
    try:
        return validate(_TrainerOnly, document).trainer
    except InputError as error:
        raise InputError(*map(_for_the_command_line, error.problems)) from None


def _for_the_command_line(problem: Problem) -> Problem:
    return replace(problem, fix=f"add --set {problem.key}=...") if problem.code == "missing_key" else problem


def for_trainer(loaded: LoadedRecipe, section: TrainerSection) -> LoadedRecipe:
    """The recipe for that trainer, its layout on one of the trainer's engines.

    InputError for a script that does not exist on this machine, unless a container has it, and for another engine
    where a CPU emulates the device of one.
    """
    _require_script(loaded, section)
    layout, engines = loaded.recipe.layout, engines_of(section.kind)
    if layout.engine not in engines:
        _require_comparable(loaded.recipe, engines[-1])
        layout = replace(layout, engine=engines[-1]).canonical()
    return replace(loaded, recipe=replace(loaded.recipe, layout=layout), trainer=section.for_trials())


def other_trainer_error(loaded: LoadedRecipe) -> str | None:
    """Rule of the other trainer that the layout violates; None if there is none, or no other trainer."""
    if loaded.trainer is None:
        return None
    rules, layout = TRAINERS[loaded.trainer["kind"]].rules, loaded.recipe.layout
    routing, kinds = Routing.of(loaded.recipe.routing), ENGINE_PROFILES[layout.engine].routings
    if loaded.recipe.routing is not None and routing.kind not in kinds:
        return f"it measured with routing {routing} of experts; engine {layout.engine} has {' or '.join(kinds)}"
    broken = next(engine_violations(layout, loaded.recipe.model, rules), None)
    return None if broken is None else f"{broken.message} ({broken.code})"


def _require_comparable(recipe: Recipe, engine: str) -> None:
    fix = f"replay on {recipe.layout.engine}, which measured it, or search with {engine}"
    accelerator = recipe.cluster.accelerator.name
    problem = mixed_engines_problem((recipe.layout.engine, engine), accelerator, fix, "--trainer")
    if problem is not None:
        raise InputError(problem)


def _require_script(loaded: LoadedRecipe, section: TrainerSection) -> None:
    container = (loaded.recipe.launcher.get("slurm") or {}).get("container")
    if section.script is not None and not container and not Path(section.script).is_file():
        raise InputError.of(
            "script",
            f"{section.script} is not a file on this machine",
            rule="the training script is on a file system that this machine and the compute nodes share",
            fix="name it: --set trainer.script=PATH",
            key="trainer.script",
            value=section.script,
        )
