"""Options shared by several verbs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.config.schema.search_file import SAMPLERS
from orchestrator.service.driver_process import ExecutorKind
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec

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


@dataclass(frozen=True)
class Change:
    """A change to the search file: `key=value` as with `--set`, and the option it was given by."""

    text: str
    option: str

    @property
    def key(self) -> str:
        return self.text.partition("=")[0]


_KEYS = {
    "--launcher": "launcher.kind",
    "--sampler": "search.sampler",
    "--work-dir": "work_dir",
    "--ledger": "ledger.url",
    "--against": "search.against",
    "--layouts": "search.against_layouts",
}
"""Keys of the search file that an option of their own changes."""


def to_overrides(sets: Iterable[str] | None, **named: object) -> list[Change]:
    """All changes to the search file from a command line; named options, such as `work_dir`, come last."""
    options = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value is not None}
    changes = [Change(text, "--set") for text in sets or ()]
    return changes + [Change(f"{_KEYS[option]}={json.dumps(value)}", option) for option, value in options.items()]


@contextmanager
def naming_options(changes: Iterable[Change]) -> Iterator[None]:
    """Within this block an error about a changed value names the option that set it, not `--set`."""
    options = {change.key: change.option for change in changes}
    try:
        yield
    except InputError as error:
        renamed = [
            replace(p, file=options[p.key]) if p.file == "--set" and p.key in options else p for p in error.problems
        ]
        raise InputError(*renamed) from error


@contextmanager
def loading(search_file: Path, changes: Sequence[Change], compares_speeds: bool = True) -> Iterator[SearchSpec]:
    """Within this block the search of the file with these changes, and errors as in `naming_options`;
    `compares_speeds` as for `load_search_file`."""
    from orchestrator.config.loader import load_search_file

    with naming_options(changes):
        yield load_search_file(search_file, [change.text for change in changes], compares_speeds)


def require_dry_run(dry_run: bool, scripts: Path | None) -> None:
    """Raise InputError for --scripts without --dry-run."""
    if scripts is not None and not dry_run:
        fix = "add --dry-run, or leave --scripts out"
        raise InputError.of("usage", "needs --dry-run", key="--scripts", value=str(scripts), fix=fix)
