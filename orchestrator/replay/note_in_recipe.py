"""A recipe whose layout another trainer has run since: it says so, with what the replay found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.recipe.build import PARLAY_TRAINER_ONLY
from orchestrator.recipe.exports import TITLES, Export, ExportStatus, exports
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.recipe import Recipe, recipe_yaml
from orchestrator.recipe.render import readme
from orchestrator.recipe.write import rewrite_files
from search_spaces.errors import InputError
from trials.trial import Flag, TrialSpec

_FOUND = ("verdict", "ratio", "ratio_low", "ratio_high")
_DEVICE = "device"


def note_replay(recorded: LoadedRecipe, ran: LoadedRecipe, python: str, answer: Mapping[str, Any], at: str) -> bool:
    """Write into the recipe that the other trainer of `ran` ran its layout, with what the replay found at `at`.

    `recorded` is the recipe as it was when the replay began, `answer` the replay's object of `--json`. Returns whether
    there was something to note: not of an edited recipe, of one that lies there no more, of runs on another device, or
    that failed or whose log does not prove the layout, nor of a trainer without files of its own. OSError where the
    folder cannot be written.
    """
    found = None if recorded.banner else _export(ran, python, answer, at)
    now = None if found is None else _as_it_is_now(recorded)
    if found is None or now is None:
        return False
    recipe = with_export(now, found)
    files = dict(found.files) | {"recipe.yaml": recipe_yaml(recipe), "README.md": readme(recipe)}
    rewrite_files(recorded.folder, files)
    return True


def _as_it_is_now(recorded: LoadedRecipe) -> Recipe | None:
    """The same recipe with what other replays have noted meanwhile; None where it is another one, or was edited."""
    try:
        now = read_recipe(recorded.folder).recipe
    except InputError:
        return None
    return now if now.evidence == recorded.recipe.evidence else None


def with_export(recipe: Recipe, export: Export) -> Recipe:
    """The recipe with this entry in the place of that trainer's older one."""
    kept = [export.to_json() if old["trainer"] == export.trainer else old for old in recipe.exports]
    since = f"Measured with Parlay's own training program, and since by a replay with {TITLES[export.trainer]}."
    caveats = [since if caveat == PARLAY_TRAINER_ONLY else caveat for caveat in recipe.caveats]
    return replace(recipe, exports=tuple(kept), caveats=tuple(caveats))


def _export(ran: LoadedRecipe, python: str, answer: Mapping[str, Any], at: str) -> Export | None:
    """The trainer's files as those of the one that ran the layout: its script, arguments and template are the ones
    that were measured."""
    elsewhere = any(difference["field"] == _DEVICE for difference in answer["differences"])
    if ran.trainer is None or answer["detail"] is not None or elsewhere or Flag.LAYOUT_UNVERIFIED in answer["flags"]:
        return None
    made = _export_of(ran.spec(), python)
    if made is None or made.trainer not in {old["trainer"] for old in ran.recipe.exports}:
        return None
    found = {"at": at, "tokens_per_sec": answer["measured"], **{name: answer[name] for name in _FOUND}}
    return replace(made, replayed=found)


def _export_of(spec: TrialSpec, python: str) -> Export | None:
    measured = [e for e in exports(spec, python) if e.status is ExportStatus.MEASURED and e.trainer != "command"]
    return measured[0] if measured else None
