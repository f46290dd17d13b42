"""`python -m trials.train.doctor SPEC_PATH`: node probe of a job's ranks, and their all-reduce bandwidth.

Rank 0 writes node_probe.json next to the spec; NCCL logs its transports in the ranks' logs. Exit code 0 when all was
probed, 1 when this rank failed or was ended (the outcome has the reason), 2 for bad usage.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping, Sequence
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
    run_program("trials.train.doctor", arguments, read_spec, partial(run_rank, run=_probe), exit_at_once)


def _probe(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    enable_nccl_log(os.environ)
    from trials.train.doctor.probe import probe_nodes

    found = probe_nodes(spec, folder, env, report)
    if env.rank == 0:
        found.write(folder.path)


def enable_nccl_log(environ: MutableMapping[str, str]) -> None:
    """Make NCCL, and RCCL, log the chosen transports in the rank's log, whatever was set for other runs."""
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,NET"
    environ.pop("NCCL_DEBUG_FILE", None)
