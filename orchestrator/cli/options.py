"""Options shared by several verbs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.config.schema.search_file import SAMPLERS
from orchestrator.service.driver_process import ExecutorKind
from search_spaces.errors import InputError
from search_spaces.schema.yaml_document import Override

SEARCH_FILE_HELP = "The search file, or the name of one included in Parlay: quickstart."
SearchFilePath = Annotated[Path, typer.Argument(metavar="SEARCH.YAML", help=SEARCH_FILE_HELP)]
SearchId = Annotated[
    str | None,
    typer.Argument(
        metavar="[SEARCH]", help="A search's id, a unique prefix of it, or its folder; default: the newest search."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the file: --set search.max_trials=5."),
]
WorkDir = Annotated[str | None, typer.Option("--work-dir", help="Parent folder of the folder that is written.")]
LedgerUrl = Annotated[str | None, typer.Option("--ledger", metavar="URL", help="URL of the ledger's database.")]
LauncherKind = Annotated[str | None, typer.Option("--launcher", help="ray, local, slurm, slurm_pilot or simulated.")]
SamplerName = Annotated[
    str | None,
    typer.Option("--sampler", help=f"One of {', '.join(SAMPLERS)}."),
]
AsJob = Annotated[bool, typer.Option("--as-job", help="Run the driver as a Slurm job that resubmits itself.")]
JobTime = Annotated[
    str | None, typer.Option("--job-time", metavar="TIME", help="Time limit of the driver's job; default: 8:00:00.")
]
ExecutorName = Annotated[
    ExecutorKind, typer.Option("--executor", help="process: the driver runs in this process. ray: in a Ray actor.")
]
ByCron = Annotated[
    bool,
    typer.Option("--cron", help="Start no driver; print the crontab and scrontab lines that advance the search."),
]
NoService = Annotated[bool, typer.Option("--no-service", help="Start a driver process even if `parlay serve` runs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate everything; write and launch nothing.")]
Scripts = Annotated[
    Path | None,
    typer.Option(
        "--scripts", metavar="FOLDER", help="With --dry-run: write the batch scripts of the first jobs to this folder."
    ),
]

Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="IMAGE_OR_PYTHON",
        help="Measure a few layouts with the file's software and with this, in turns, and compare the two.",
    ),
]
AgainstLayouts = Annotated[
    int | None, typer.Option("--layouts", help="With --against: number of layouts; default: search.against_layouts.")
]


_KEYS = {
    "--launcher": "launcher.kind",
    "--sampler": "search.sampler",
    "--work-dir": "work_dir",
    "--ledger": "ledger.url",
    "--against": "search.against",
    "--layouts": "search.against_layouts",
}
"""Keys of the search file that an option of their own changes."""


def to_overrides(sets: Iterable[str] | None, **named: object) -> list[Override]:
    """All changes to the search file from a command line; named options, such as `work_dir`, come last."""
    options = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value is not None}
    by_name = [Override(f"{_KEYS[option]}={json.dumps(value)}", option) for option, value in options.items()]
    return [*map(Override, sets or ()), *by_name]


def require_dry_run(dry_run: bool, scripts: Path | None) -> None:
    """Raise InputError for --scripts without --dry-run."""
    if scripts is not None and not dry_run:
        fix = "add --dry-run, or leave --scripts out"
        raise InputError.of("usage", "needs --dry-run", key="--scripts", value=str(scripts), fix=fix)
