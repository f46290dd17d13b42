"""Text of the user's setup file, shown before jobs source it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec


def setup_json(spec: SearchSpec) -> dict[str, str] | None:
    """The contract's `setup_file`: path and text; None if no job sources one. Raises InputError as setup_text does."""
    from orchestrator.launchers.slurm.job_files import setup_text

    path = spec.launcher.slurm.setup_file
    if path is None or not spec.launcher.uses_slurm:
        return None
    return {"path": path, "text": setup_text(path)}


def setup_lines(spec: SearchSpec) -> Iterator[str]:
    """The setup file as lines of text; the caller escapes control characters."""
    if (found := setup_json(spec)) is None:
        return
    yield f"each job sources a copy of {found['path']}:"
    yield from (f"  {line.expandtabs()}" for line in found["text"].splitlines())
