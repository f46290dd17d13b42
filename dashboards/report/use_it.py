"""Use of a search's recipe, for the report: its folder, the commands that train with it, and its replay."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.text import printable
from search_spaces.errors import InputError
from search_spaces.plain_file import read_plain
from search_spaces.schema.yaml_document import parse_document
from trials.files.folders import SearchFolder
from trials.trainers.registry import TRAINERS


@dataclass(frozen=True)
class LaunchCommand:
    """Command that trains with the recipe's files by a trainer, in the parent folder of the recipe. It was not run.
    `was_measured`: the layout was measured with this trainer. `files` are those of the recipe that state the layout for
    it."""

    trainer: str
    command: str
    was_measured: bool
    files: tuple[str, ...] = ()

    @property
    def has_placeholders(self) -> bool:
        return "YOUR_" in self.command

    @property
    def reads_node_rank(self) -> bool:
        return "$NODE_RANK" in self.command


@dataclass(frozen=True)
class UseIt:
    """Use of a recipe: `recipe` is the path of its folder, `start` starts the measured program (None where nothing
    ran), `launches` begins with the trainer that measured the layout."""

    recipe: str
    start: str | None
    launches: tuple[LaunchCommand, ...]
    replay: str


def use_it(folder: SearchFolder) -> UseIt | None:
    """Use of this search's recipe; None before there is one that can be read."""
    file = folder.recipe / "recipe.yaml"
    try:
        recipe = parse_document(read_plain(file), str(file), file.parent).data
    except (OSError, ValueError, InputError):
        return None
    start, path = recipe.get("start") if isinstance(recipe, Mapping) else None, printable(str(folder.recipe))
    command = f"cd {shlex.quote(path)} && {printable(start)}" if isinstance(start, str) else None
    return UseIt(path, command, tuple(_launches(recipe)), f"parlay replay {folder.cli_name}")


def _launches(recipe: Mapping[str, Any]) -> Iterator[LaunchCommand]:
    """Commands of the recipe's `exports`, that of the layout's engine first; trainers that refuse it have none."""
    exports, layout = recipe.get("exports"), recipe.get("layout")
    engine = layout.get("engine") if isinstance(layout, Mapping) else None
    known = [export for export in exports if isinstance(export, Mapping)] if isinstance(exports, list) else []
    titles = {made.name: made.title for trainer in TRAINERS.values() if (made := trainer.export) is not None}
    for export in sorted(
        known, key=lambda export: (export.get("status") != "measured", export.get("trainer") != engine)
    ):
        if isinstance(export.get("unrun_start"), str):
            name = str(export.get("trainer"))
            was_measured = export.get("status") == "measured"
            given = export.get("files")
            files = tuple(printable(str(file)) for file in given) if isinstance(given, list) else ()
            yield LaunchCommand(
                printable(titles.get(name, name)), printable(export["unrun_start"]), was_measured, files
            )
