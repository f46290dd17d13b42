"""Options that several verbs share, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]
SearchFilePath = Annotated[Path, typer.Argument(metavar="SEARCH.YAML", help="The search file.")]
SearchId = Annotated[
    str | None,
    typer.Argument(
        metavar="[SEARCH]", help="A search's id (it may be shortened while unique) or its folder; the newest if absent."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value of the file: --set search.max_trials=5."),
]
WorkDir = Annotated[str | None, typer.Option("--work-dir", help="Folder in which the search gets its own.")]
LedgerUrl = Annotated[str | None, typer.Option("--ledger", metavar="URL", help="The ledger's database.")]
LauncherKind = Annotated[str | None, typer.Option("--launcher", help="ray, local or recorded.")]
SamplerName = Annotated[str | None, typer.Option("--sampler", help="deephyper, random or grid.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, write and launch nothing.")]


def overrides_of(sets: Iterable[str] | None, **named: str | None) -> list[str]:
    """All of a command line's changes to the search file, as `--set` would say them; named ones come last.

    `named` maps a key with `__` for its dots to a value, or None where the option was not given.
    """
    given = {key.replace("__", "."): value for key, value in named.items() if value is not None}
    return [*(sets or ()), *(f"{key}={json.dumps(value)}" for key, value in given.items())]
