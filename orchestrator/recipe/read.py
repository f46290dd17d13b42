"""Reads a recipe's folder; refuses another version, edited files and contradictory numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.recipe.recipe import AS_WRITTEN, Recipe, checksum
from orchestrator.recipe.write import sha256, tree_sha256
from search_spaces.decoding import parse_json
from search_spaces.errors import InputError, Problem
from search_spaces.plain_file import read_named
from search_spaces.schema.yaml_document import read_document
from trials.trial import TrialKind, TrialSpec

_NAME_ONE = "name a recipe by its folder or its recipe.yaml, or a search that has one"
_RULE = "a recipe records what was measured; its checksums protect it"


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and its folder. `banner` is set for an edited one that was read with `force`: show it with any result.

    `trainer` is another trainer to replay with, in the form of spec.json.
    """

    recipe: Recipe
    folder: Path
    banner: str | None = None
    trainer: Mapping[str, Any] | None = None

    @property
    def code(self) -> Path:
        """Folder of the compute-side source that was measured."""
        return self.folder / "code"

    def spec(self) -> TrialSpec:
        """The measured trial's spec, with layout, model and cluster from recipe.yaml.

        InputError if spec.json is missing or invalid.
        """
        recipe, path = self.recipe, self.folder / "spec.json"
        try:
            spec = TrialSpec.from_json(parse_json(read_named(path)))
        except (OSError, ValueError) as error:
            fix = f"{AS_WRITTEN}: --force needs its spec.json too"
            raise InputError.of("recipe", f"spec.json: {error}", file=str(path), rule=_RULE, fix=fix) from error
        return replace(
            spec,
            kind=TrialKind.REPLAY,
            layout=recipe.layout,
            model=recipe.model,
            global_batch_size=recipe.layout.global_batch_size,
            num_gpus=recipe.layout.num_gpus,
            gpus_per_node=recipe.cluster.gpus_per_node,
            accelerator=recipe.cluster.accelerator.name,
            trainer=spec.trainer if self.trainer is None else self.trainer,
        )


def read_recipe(path: Path, force: bool = False) -> LoadedRecipe:
    """Read a recipe from its folder or its recipe.yaml.

    InputError for another kind of file, another schema, an edited recipe, or contradictory numbers. `force` accepts an
    edited one and sets `banner`; it allows nothing else.
    """
    file = path / "recipe.yaml" if path.is_dir() else path
    try:
        document = read_document(file)
    except InputError as error:
        raise InputError(*(replace(p, fix=_NAME_ONE) for p in error.problems)) from error
    try:
        recipe = Recipe.from_json(document.data)
    except InputError as error:
        raise error.at(file=str(file)) from None
    edits = list(_edits(recipe, document.data, file))
    if edits and not force:
        raise InputError(*edits)
    banner = "EDITED RECIPE: " + "; ".join(p.message for p in edits) if edits else None
    return LoadedRecipe(recipe, file.parent.absolute(), banner)


def _edits(recipe: Recipe, data: Any, file: Path) -> Iterator[Problem]:
    if data["checksum"] != checksum(data):
        yield _edited(file)
    for name, expected in recipe.evidence.files.items():
        beside = file.parent / name
        if Path(name).name != name or _sha256_of(beside) != expected:
            yield _edited(beside)


def _sha256_of(path: Path) -> str | None:
    if path.is_dir():
        return tree_sha256(path)
    try:
        return sha256(read_named(path))
    except OSError:
        return None


def _edited(path: Path) -> Problem:
    return Problem(
        "checksum",
        f"{path.name} was edited: its checksum differs" if path.exists() else f"{path.name} is missing",
        rule=_RULE,
        fix=f"{AS_WRITTEN}, or read it with --force",
        file=str(path),
    )
