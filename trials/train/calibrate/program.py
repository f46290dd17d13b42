"""`python -m trials.train.calibrate SPEC_PATH`: benchmarks of a cluster's ranks, run by all of them together.

Rank 0 writes measurements.json next to the spec. Exit code 0 when all was measured, 1 when this rank failed or was
ended (the outcome has the reason), 2 for bad usage.
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
    run_program("trials.train.calibrate", arguments, read_spec, partial(run_rank, run=_calibrate), exit_at_once)


def _calibrate(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    from trials.train.calibrate.benchmarks import measure

    found = measure(spec, folder, env, report)
    if env.rank == 0:
        found.write(folder.path)
