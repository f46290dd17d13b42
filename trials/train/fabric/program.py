"""`python -m trials.train.fabric SPEC_PATH`: fabric check of a job's ranks.

Rank 0 writes fabric.json next to the spec. Exit code 0 when all was timed, 1 when this rank failed or was ended (the
outcome has the reason), 2 for bad usage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.program import exit_at_once, read_spec, run_program
from trials.ranks.report import Report
from trials.train.program import run_rank
from trials.trial import TrialSpec


def main(arguments: Sequence[str]) -> NoReturn:
    """Run this rank's part."""
    run_program("trials.train.fabric", arguments, read_spec, partial(run_rank, run=_check), exit_at_once)


def _check(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    from trials.train.fabric.check import check_fabric

    found = check_fabric(spec, folder, env, report)
    if env.rank == 0:
        found.write(folder.path)
