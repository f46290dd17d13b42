"""Writes a recipe's folder under a temporary name and renames it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orchestrator.launchers.local.rank_groups import device_environment
from orchestrator.recipe.build import RecipeSource, build_recipe, evidence
from orchestrator.recipe.launch_sbatch import launch_sbatch, slurm_options, user_environment
from orchestrator.recipe.recipe import recipe_yaml
from orchestrator.recipe.render import env_txt, launch_sh, readme
from orchestrator.search.code_snapshot import code_hash
from search_spaces.plain_file import read_plain
from slurm.request import SETUP_NAME
from trials.files.folders import SearchFolder, sync_folder, write_text
from trials.trial import utc_text

_CACHES = shutil.ignore_patterns("__pycache__")


def write_recipe(folder: Path, source: RecipeSource, code: Path) -> Path:
    """Write the recipe to `folder`, with a copy of the compute-side source `code`; returns the path of recipe.yaml.

    A previous recipe is replaced. A crash leaves the old one, the new one, or neither, and never a mixture.
    """
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.part")
    try:
        part.mkdir(parents=True, mode=0o700)
        shutil.copytree(code, part / "code", ignore=_CACHES)
        files = recipe_files(source, utc_text(), tree_sha256(part / "code"), _measured_setup(source, code.parent))
        for name, text in files.items():
            (part / name).write_text(text, encoding="utf-8")
        (part / "launch.sh").chmod(0o700)
        _swap_in(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder / "recipe.yaml"


def rewrite_files(folder: Path, files: Mapping[str, str]) -> None:
    """Replace these files of a recipe, each with one rename, recipe.yaml last.

    The folder is kept: trainings may be running in it. Raises OSError.
    """
    for name in sorted(files, key=lambda name: name == "recipe.yaml"):
        path = folder / name
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        write_text(path, files[name])
        if mode is not None:
            path.chmod(mode)


def recipe_files(source: RecipeSource, created_at: str, code_sha256: str, setup: str | None = None) -> dict[str, str]:
    """Text of every file of the recipe, by name.

    `code_sha256` is the hash of the recipe's code/, `setup` the setup script that the measured job sourced.
    """
    options = slurm_options(source.search.spec, source.spec)
    settings = source.spec.layout.of_trial
    environment = user_environment(options) | device_environment(source.spec)
    environment = {name: value for name, value in environment.items() if name not in settings.env} | settings.given_env
    files = {
        "spec.json": _json(source.spec.to_json()),
        "evidence.json": _json(evidence(source)),
        "env.txt": env_txt(environment, settings.removed_env),
        "launch.sh": launch_sh(source.spec, environment, source.python, source.search.replayed_table),
    }
    if options is not None:
        files["launch.sbatch"] = launch_sbatch(source.spec, options, source.python)
        files |= {"modules.txt": "".join(f"{module}\n" for module in options.modules)} if options.modules else {}
        files |= {SETUP_NAME: setup} if setup is not None else {}
    sums = {name: sha256(text.encode()) for name, text in files.items()}
    for export in source.exports:
        files |= export.files
    recipe = build_recipe(source, created_at, version("parlay"), sums | {"code": code_sha256})
    return files | {"recipe.yaml": recipe_yaml(recipe), "README.md": readme(recipe)}


def _measured_setup(source: RecipeSource, search: Path) -> str | None:
    """Setup script that the measured attempt's job sourced; None without one, or if its copy is gone."""
    spec = source.spec
    try:
        return read_plain(SearchFolder(search).attempt(spec.trial, spec.attempt).path / SETUP_NAME).decode()
    except (OSError, ValueError):
        return None


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def tree_sha256(folder: Path) -> str:
    return "sha256:" + code_hash(folder)


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _swap_in(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    if folder.exists():
        os.replace(folder, old)
    os.replace(part, folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
