"""Records in a recipe that a replay ran its layout with another trainer, and the result."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from orchestrator.recipe.build import parlay_trainer_only
from orchestrator.recipe.exports import TITLES, Export, ExportStatus, exports
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.recipe import Recipe, recipe_yaml
from orchestrator.recipe.render import readme
from orchestrator.recipe.write import rewrite_files
from orchestrator.replay.replay import ReplayAnswer
from search_spaces.errors import InputError
from trials.files.folders import HISTORY_FILE
from trials.trial import Flag, utc_text

_log = logging.getLogger(__name__)

_FOUND = {"verdict", "ratio", "ratio_low", "ratio_high"}
_DEVICE = "device"


def note_replay(recorded: LoadedRecipe, ran: LoadedRecipe, python: str, answer: ReplayAnswer) -> None:
    """Record the result of another trainer in the recipe; a failure to write is only logged."""
    try:
        if write_note(recorded, ran, python, answer, utc_text()):
            _log.info(f"{recorded.folder} now records the throughput of the layout with {answer.trainer}")
    except OSError as error:
        _log.warning(f"the throughput with {answer.trainer} could not be recorded in the recipe: {error}")


def note_requirement(recorded: LoadedRecipe, answer: ReplayAnswer) -> None:
    """Add the result of a required speed to the recipe's history, which the report and MLflow show; a failure to write
    is only logged."""
    asked = answer.requirement
    assert asked is not None
    slow = [node for each in asked.slow for node in each.nodes]
    measured = {"at": utc_text(), "ratio": answer.ratio, "ratio_low": answer.ratio_low, "ratio_high": answer.ratio_high}
    line = {**measured, "required": asked.required, "verdict": asked.verdict.value, "slow_nodes": slow}
    try:
        with (recorded.folder / HISTORY_FILE).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        _log.warning(f"the result could not be added to the recipe's history: {error}")


def write_note(recorded: LoadedRecipe, ran: LoadedRecipe, python: str, answer: ReplayAnswer, at: str) -> bool:
    """Record in the recipe that the other trainer of `ran` ran its layout,at `at`, by the replay's `answer`.

    `recorded` is the recipe at the start of the replay, `answer` that of the replay. Returns False
    and writes nothing if the recipe was edited, removed or replaced, if the runs failed, were on another device or did
    not verify the layout, or if the trainer has no export. OSError if the folder cannot be written.
    """
    found = None if recorded.banner else _export(ran, python, answer, at)
    now = None if found is None else _read_again(recorded)
    if found is None or now is None:
        return False
    recipe = with_export(now, found)
    files = dict(found.files) | {"recipe.yaml": recipe_yaml(recipe), "README.md": readme(recipe)}
    rewrite_files(recorded.folder, files)
    return True


def _read_again(recorded: LoadedRecipe) -> Recipe | None:
    """The recipe with what other replays have recorded meanwhile; None if it was replaced or edited."""
    try:
        now = read_recipe(recorded.folder).recipe
    except InputError:
        return None
    return now if now.evidence == recorded.recipe.evidence else None


def with_export(recipe: Recipe, export: Export) -> Recipe:
    """The recipe with this export in place of the trainer's previous one."""
    kept = [export.to_json() if old["trainer"] == export.trainer else old for old in recipe.exports]
    engine, title = recipe.layout.engine, TITLES[export.trainer]
    since = f"Measured with Parlay's own training program, engine {engine}, and since by a replay with {title}."
    caveats = [since if caveat == parlay_trainer_only(engine) else caveat for caveat in recipe.caveats]
    return replace(recipe, exports=tuple(kept), caveats=tuple(caveats))


def _export(ran: LoadedRecipe, python: str, answer: ReplayAnswer, at: str) -> Export | None:
    """The other trainer's export with the measured script, arguments and template; None if there is none to record."""
    elsewhere = any(difference.field == _DEVICE for difference in answer.differences)
    if ran.trainer is None or answer.detail is not None or elsewhere or Flag.UNPROVEN in answer.flags:
        return None
    known = {old["trainer"] for old in ran.recipe.exports} - {"command"}
    measured = (export for export in exports(ran.spec(), python) if export.status is ExportStatus.MEASURED)
    made = next((export for export in measured if export.trainer in known), None)
    if made is None:
        return None
    found = {"at": at, "tokens_per_sec": answer.measured, **answer.model_dump(mode="json", include=_FOUND)}
    return replace(made, replayed=found)
