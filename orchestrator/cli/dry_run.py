"""Implements `--dry-run`: validates everything, launches nothing, and writes the first jobs' scripts on request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.output import print_result
from search_spaces.errors import InputError

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.lifecycle.dry_run import DryRunAnswer
    from search_spaces.search_space import SearchSpace


@dataclass(frozen=True)
class DryRunOptions:
    """`enabled` for a dry run; `scripts` is the folder for the first jobs' scripts."""

    enabled: bool
    scripts: Path | None

    def __post_init__(self) -> None:
        if self.scripts is not None and not self.enabled:
            fix, value = "add --dry-run, or leave --scripts out", str(self.scripts)
            raise InputError.of("usage", "needs --dry-run", key="--scripts", value=value, fix=fix)


def print_dry_run(spec: SearchSpec, space: SearchSpace, scripts: Path | None, as_json: bool) -> None:
    """Print what a valid search would try."""
    answer, text = describe_dry_run(spec, space, scripts)
    print_result(answer, as_json, text)


def describe_dry_run(spec: SearchSpec, space: SearchSpace, scripts: Path | None) -> tuple[DryRunAnswer, str]:
    """Describe what a valid search would try: as an answer, and as text."""
    from orchestrator.lifecycle.dry_run import DryRunAnswer, format_dry_jobs, write_first_jobs
    from orchestrator.schema.setup_file import SetupFile

    jobs, lines = [], []
    if scripts is not None:
        jobs = write_first_jobs(spec, space, scripts)
        lines = format_dry_jobs(jobs)
    num_layouts = len(space.layouts)
    trials, ranks = min(spec.search.max_trials, num_layouts), int(space.layouts.num_gpus.max())
    words = (
        f"valid: up to {trials} of {num_layouts} layouts would be tried on {ranks} ranks"
        f" with launcher {spec.launcher.kind}; nothing was launched or written"
    )
    setup = SetupFile.of(spec.launcher)
    answer = DryRunAnswer(
        num_layouts=num_layouts, max_trials=trials, spec=spec.to_json(), setup_file=setup, scripts=jobs
    )
    return answer, "\n".join([words, *lines, *(setup.lines() if setup else ())])
