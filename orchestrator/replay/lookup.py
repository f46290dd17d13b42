"""Lookup of the sides of a comparison."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.records.lookup import find_search, is_path_without_search

if TYPE_CHECKING:
    from orchestrator.replay.compare import ComparisonSide

_log = logging.getLogger(__name__)


def find_side(given: str, ledger: str | None, force: bool) -> ComparisonSide:
    """Find one side: a search by id or folder, else a recipe by folder or file.

    With `force`, an edited recipe is read too.
    """
    from orchestrator.recipe.read import read_recipe
    from orchestrator.replay.compare import side_of_recipe, side_of_search

    if not is_path_without_search(given):
        found = find_search(given, ledger)
        return side_of_search(found.record, found.spec, str(found.folder.path))
    loaded = read_recipe(Path(given), force)
    if loaded.banner:
        _log.warning(loaded.banner)
    return side_of_recipe(loaded)
