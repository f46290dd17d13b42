"""What the user's setup file holds, shown before jobs source it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec


def setup_json(spec: SearchSpec) -> dict[str, str] | None:
    """The contract's `setup_file`: path and text; None where no job sources one. InputError as setup_text."""
    from orchestrator.launchers.slurm.job_files import setup_text

    path = spec.launcher.slurm.setup_file
    if path is None or not spec.launcher.uses_slurm:
        return None
    return {"path": path, "text": setup_text(path)}


def setup_lines(spec: SearchSpec) -> Iterator[str]:
    """The same for a person, line by line; whoever prints it escapes what would do something to a terminal."""
    if (found := setup_json(spec)) is None:
        return
    yield f"each job sources a copy of {found['path']}:"
    yield from (f"  {line.expandtabs()}" for line in found["text"].splitlines())
