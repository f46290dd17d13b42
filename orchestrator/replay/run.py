"""A replay in a folder of its own: the trainer and the launcher that run it, and where its result is written down."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from orchestrator.launchers import factory
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.schema import LauncherSection
from orchestrator.lifecycle.signals import CancelOnSignal
from orchestrator.preflight.trainer import PYTHON_OF_IMAGES, is_in_image
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import Recipe
from orchestrator.replay.machine_lock import MachineLock, NullLock, home_error
from orchestrator.replay.note_in_recipe import note_replay
from orchestrator.replay.other_trainer import trainer_section, under_trainer
from orchestrator.replay.replay import (
    ReplayResult,
    ReplayRules,
    ReplayStopped,
    impossible_result,
    launcher_section,
    replay,
    this_machine,
)
from orchestrator.replay.runs import ReplayCallbacks
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.validation import restore
from trials.files.folders import SearchFolder, write_json
from trials.files.path_owners import require_trusted_path
from trials.files.text import counted
from trials.ledger.location import home_folder
from trials.trial import utc_text

LAUNCHERS = ("local", "ray", "slurm")
"""What may start a replay's ranks."""


def with_trainer(
    loaded: LoadedRecipe, kind: str | None, sets: Sequence[str], launcher_kind: str | None
) -> tuple[LoadedRecipe, str]:
    """The recipe as the trainer is to run it, and the interpreter that does; without a kind the one that measured."""
    python = _python_of(loaded.recipe, launcher_section(loaded.recipe, launcher_kind))
    if kind is None and not sets:
        return loaded, python
    if kind is None:
        fix = "name the trainer with --trainer, or leave --set out"
        raise InputError.of("usage", "says something of another trainer", key="--set", value=sets[0], fix=fix)
    section = trainer_section(kind, sets, Path.cwd())
    return under_trainer(loaded, section), section.python or python


def _python_of(recipe: Recipe, launcher: LauncherSection) -> str:
    """What PARLAY_PYTHON names, as for launch.sh, else the interpreter that was measured; the one that a search would
    take, where that is not to be had."""
    in_image, measured = is_in_image(launcher), recipe.fingerprint.get("executable")
    if named := os.environ.get("PARLAY_PYTHON"):
        return named
    was_in_image = is_in_image(restore(LauncherSection, dict(recipe.launcher)))
    if measured and in_image == was_in_image and (in_image or shutil.which(measured)):
        return str(measured)
    return PYTHON_OF_IMAGES if in_image else sys.executable


def run_replay(
    loaded: LoadedRecipe,
    python: str,
    launcher_kind: str | None,
    rules: ReplayRules,
    work_dir: Path,
    note: Callable[[str], None],
    stop: CancelOnSignal,
) -> ReplayResult:
    """Measure in a new folder of `work_dir`, under the launcher of this kind or the one that measured; `ray` falls back
    to plain processes as in a search.

    Raises KeyboardInterrupt when `stop` was asked for, ReplayStopped once something may have been measured: what was
    stands in the folder as an answer does. InputError where Parlay's home cannot be written, or others could put a
    folder of theirs in the place of ours; OSError where the folder cannot be written.
    """
    section = launcher_section(loaded.recipe, launcher_kind)
    is_here = section.kind == "local" or (section.kind == "ray" and section.address is None)
    here = this_machine(loaded.recipe.cluster, os.environ) if is_here else None
    if (answer := impossible_result(loaded, here)) is not None:
        return answer
    require_trusted_path(work_dir, "work_dir", "work_dir")
    folder = SearchFolder(work_dir.absolute() / f"replay-{secrets.token_hex(3)}")
    watcher = ReplayCallbacks(note, stop.is_requested, MachineLock(home_folder()) if is_here else NullLock())
    with ExitStack() as stack:
        stack.enter_context(stop.handling())
        stack.callback(watcher.lock.release)
        watcher.acquire_lock(time.sleep)  # before Ray starts, which would disturb whoever measures
        launcher, remark = _launcher(section, here or loaded.recipe.cluster)
        stack.enter_context(closing(launcher))
        note(remark or f"measuring {counted(rules.repeats, 'time')} in {folder.path}")
        try:
            result = replay(loaded, launcher, folder, python=python, rules=rules, watcher=watcher)
        except ReplayStopped as stopped:
            _write_interrupted_result(folder, stopped.result, note)
            raise
        _write_result(folder, result)
        return result


def _launcher(section: LauncherSection, cluster: Cluster) -> tuple[Launcher, str | None]:
    try:
        return factory.make_launcher(section, parallel_trials=1, cluster=cluster)
    except OSError as error:  # of Slurm: what searches share of its answers lies in Parlay's home
        raise home_error(home_folder(), error) from error


def _write_interrupted_result(folder: SearchFolder, result: ReplayResult, note: Callable[[str], None]) -> None:
    """Of a replay that was told to stop, which it does also where that cannot be written."""
    try:
        note(f"{_write_result(folder, result)} says how far it came")
    except OSError as error:
        note(f"how far it came could not be written: {error}")


def _write_result(folder: SearchFolder, result: ReplayResult) -> Path:
    file = folder.path / "replay.json"
    write_json(file, result.to_json())
    return file


def note_in_recipe(
    recorded: LoadedRecipe, ran: LoadedRecipe, python: str, result: ReplayResult, note: Callable[[str], None]
) -> None:
    """What another trainer did with the layout stands in the recipe; one that cannot be written is a remark."""
    try:
        if note_replay(recorded, ran, python, result.to_json(), utc_text()):
            note(f"{recorded.folder} says now that {result.trainer} ran the layout, and how fast")
    except OSError as error:
        note(f"the recipe could not be told that {result.trainer} ran the layout: {error}")
