"""`parlay init`: a commented search file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.output import log, print_result
from orchestrator.records.output_file import write_new
from search_spaces.errors import InputError


def init(
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A launch script, a trainer's configuration, or a Hugging Face config.json: docs/imports.md.",
        ),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option("--site", help="Site profile for Slurm jobs: a name from docs/sites.md, or a TOML file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a new file instead of stdout.")
    ] = None,
) -> None:
    from orchestrator.config.init import InitAnswer, render_example, render_from

    if site is not None:
        _require_site(site)
    text, notes = (render_example(site), ()) if start is None else render_from(start, site)
    for note in notes:
        log(f"note: {note}")
    answer = InitAnswer(file=None if output is None else str(output), yaml=text, notes=list(notes))
    if output is None:
        print_result(answer, text)
    else:
        write_new(output, text, "--output")
        print_result(answer, f"{output} is written; next: parlay plan {output}")


def _require_site(site: str) -> None:
    """InputError for a site that no search file may name; a path stays as it is written."""
    from orchestrator.config.site import load_profile, section_from_profile

    is_path = "/" in site or site.endswith(".toml")
    try:
        section_from_profile(load_profile(str(Path(site).absolute()) if is_path else site))
    except InputError as error:
        raise InputError(*(replace(p, key="--site") if p.file is None else p for p in error.problems)) from None
