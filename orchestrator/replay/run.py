"""Runs a replay in a new folder: sets up trainer and launcher, and writes replay.json."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from subprocess import TimeoutExpired

from orchestrator.config.fork_servers import with_server_memory
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.diagnostics.preflight.trainer import PYTHON_OF_IMAGES, installed_for, is_in_image, package_problems
from orchestrator.launchers import factory
from orchestrator.launchers.base import Launcher
from orchestrator.lifecycle.signals import StopSignals
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import Recipe
from orchestrator.replay.node_search import NodeSearch
from orchestrator.replay.other_trainer import for_trainer, trainer_section
from orchestrator.replay.replay import (
    ReplayAnswer,
    ReplayRules,
    ReplayStopped,
    impossible_replay,
    launcher_section,
    replay,
    this_machine,
)
from orchestrator.replay.requirement import NodeHourBudget, RequirementVerdict
from orchestrator.replay.runs import MachineLock, ReplayCallbacks, home_error
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.validation import restore
from search_spaces.schema.yaml_document import Override
from trials.files.folders import SearchFolder, write_json
from trials.files.path_owners import require_trusted_path
from trials.files.text import plural
from trials.ledger.location import home_folder
from trials.trainers.registry import TRAINERS

_log = logging.getLogger(__name__)


LAUNCHERS = ("local", "ray", "slurm")
"""Launchers that can start a replay's ranks."""


def with_trainer(
    loaded: LoadedRecipe,
    kind: str | None,
    sets: Sequence[Override | str],
    launcher_kind: str | None,
    trust: bool = False,
) -> tuple[LoadedRecipe, str]:
    """The recipe for this trainer and the interpreter to run it with; without `kind` the recipe's own trainer.

    Unless told to `trust` it, InputError for a recipe, or an interpreter that it names, which is another user's or
    could be replaced by one: a replay runs both.
    """
    if not trust:
        for name in ("", "recipe.yaml", "spec.json", "code"):  # in /tmp they may be another user's
            _require_own(loaded.folder / name, "recipe")
    if kind is None and not sets:
        return loaded, _python_of(loaded.recipe, launcher_section(loaded.recipe, launcher_kind), trust)
    if kind is None:
        fix = "name the trainer with --trainer, or leave --set out"
        raise InputError.of("usage", "sets options of another trainer", key="--set", value=str(sets[0]), fix=fix)
    section = trainer_section(kind, sets, Path.cwd())
    python = section.python or _python_of(loaded.recipe, launcher_section(loaded.recipe, launcher_kind), trust)
    return for_trainer(loaded, section), python


def _require_own(path: Path, key: str) -> None:
    try:
        require_trusted_path(path, "trust", key)
    except InputError as error:
        fix = "read it, then replay it with --trust; or"
        raise InputError(*(replace(p, fix=f"{fix} {p.fix}") for p in error.problems)) from None


def _python_of(recipe: Recipe, launcher: LauncherSection, trust: bool) -> str:
    """PARLAY_PYTHON, as for launch.sh, else the measured interpreter, or a search's default if that is not here."""
    in_image = is_in_image(launcher)
    if named := os.environ.get("PARLAY_PYTHON"):
        return named
    was_in_image = is_in_image(restore(LauncherSection, dict(recipe.launcher)))
    if in_image == was_in_image and (in_image or shutil.which(recipe.python)):
        if not (trust or in_image) and "/" in recipe.python:
            _require_own(Path(recipe.python), "python")
        return recipe.python
    return PYTHON_OF_IMAGES if in_image else sys.executable


def run_replay(
    loaded: LoadedRecipe,
    python: str,
    launcher_kind: str | None,
    rules: ReplayRules,
    work_dir: Path,
    stop: StopSignals,
) -> ReplayAnswer:
    """Measure in a new folder of `work_dir`, with the launcher of this kind or the one of the search.

    `ray` falls back to plain processes as in a search. Raises KeyboardInterrupt when `stop` is requested, and
    ReplayStopped once a run has begun, after writing the result so far. InputError when Parlay's home cannot be
    written, when other users could replace the folder, or when ranks on this machine would lack a package of the
    layout's engine; OSError when the folder cannot be written.
    """
    section = launcher_section(loaded.recipe, launcher_kind)
    if TRAINERS[loaded.recipe.trainer["kind"]].preload is not None:
        section = with_server_memory(section)
    is_here = section.kind == "local" or (section.kind == "ray" and section.address is None)
    here = this_machine(loaded.recipe.cluster, os.environ) if is_here else None
    if (answer := impossible_replay(loaded, here, rules)) is not None:
        return answer
    if is_here:
        _require_packages(loaded, python)
    require_trusted_path(work_dir, "work_dir", "work_dir")
    folder = SearchFolder(work_dir.absolute() / f"replay-{secrets.token_hex(3)}")
    callbacks = ReplayCallbacks(stop.is_requested, MachineLock(home_folder()) if is_here else None)
    with ExitStack() as stack:
        stack.enter_context(stop.handling())
        stack.callback(callbacks.release_lock)
        callbacks.acquire_lock(time.sleep)  # before Ray starts, which would disturb a measurement
        launcher, remark = _launcher(section, here or loaded.recipe.cluster)
        stack.enter_context(closing(launcher))
        _log.info(remark or f"measuring {plural(rules.repeats, 'time')} in {folder.path}")
        try:
            answer = replay(loaded, launcher, folder, python=python, rules=rules, callbacks=callbacks)
        except ReplayStopped as stopped:
            _write_interrupted_result(folder, stopped.answer)
            raise
        if answer.requirement is not None and answer.requirement.verdict is RequirementVerdict.FAIL:
            _write_result(folder, answer)
            answer = _with_slow_nodes(answer, loaded, section, folder, python, rules, callbacks)
        _write_result(folder, answer)
        return answer


def _with_slow_nodes(
    answer: ReplayAnswer,
    loaded: LoadedRecipe,
    section: LauncherSection,
    folder: SearchFolder,
    python: str,
    rules: ReplayRules,
    callbacks: ReplayCallbacks,
) -> ReplayAnswer:
    """The answer with the slow nodes, which are looked for within what is left of the budget."""
    failed = answer.requirement
    assert failed is not None
    budget = NodeHourBudget(failed.node_hours, failed.node_hours_used)
    _log.info(f"{failed.required:g} is not reached: looking for slow nodes among {', '.join(failed.nodes)}")
    found, words = NodeSearch(loaded, failed.nodes, section, folder, python, rules.margin, budget, callbacks).run()
    update = {"slow": found, "search_of_nodes": words, "node_hours_used": budget.used}
    return answer.model_copy(update={"requirement": failed.model_copy(update=update)})


def _require_packages(loaded: LoadedRecipe, python: str) -> None:
    """InputError where ranks on this machine would lack a package that the layout's engine needs; nothing where their
    Python does not answer."""
    spec = loaded.spec()
    try:
        installed = installed_for(python)
    except (OSError, ValueError, TimeoutExpired):
        return
    if problems := package_problems(python, installed, spec.accelerator, [(spec.layout, spec.model)], "PARLAY_PYTHON"):
        raise InputError(*problems)


def _launcher(section: LauncherSection, cluster: Cluster) -> tuple[Launcher, str | None]:
    try:
        return factory.make_launcher(section, parallel_trials=1, cluster=cluster)
    except OSError as error:  # Slurm's launcher keeps the shared squeue cache in Parlay's home
        raise home_error(home_folder(), error) from error


def _write_interrupted_result(folder: SearchFolder, answer: ReplayAnswer) -> None:
    """Write the result so far of an interrupted replay; a failure to write is only noted."""
    try:
        _log.info(f"the result so far is in {_write_result(folder, answer)}")
    except OSError as error:
        _log.warning(f"the result so far could not be written: {error}")


def _write_result(folder: SearchFolder, answer: ReplayAnswer) -> Path:
    file = folder.path / "replay.json"
    write_json(file, answer.plain())
    return file
