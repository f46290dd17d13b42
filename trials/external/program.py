"""`python -m trials.external SPEC_PATH`: supervises one rank of a third-party trainer. Standard library only.

Started as `trials.train` is, one process a rank, with the trainer's interpreter. Exit code 0 when the trial was
measured or ended itself, 1 when it failed or was ended (the outcome says why), 2 for bad usage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from search_spaces.errors import InputError
from search_spaces.rules.check import engine_violations
from trials.external.child import KILL_TIMEOUT_S, end_descendants
from trials.external.fingerprint import program
from trials.external.log_follower import follow
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment, process_age_s
from trials.ranks.failures import bound_of, excerpt_of, reason_of
from trials.ranks.program import exit_at_once, read_spec, require_world, run_program, wait_for_root_cause
from trials.ranks.report import Report
from trials.trainers.registry import TRAINERS
from trials.trial import TrialSpec


def main(arguments: Sequence[str]) -> NoReturn:
    """Run this rank to its end, with everything its trainer started."""
    run_program("trials.external", arguments, _read_spec, run_rank, _leave)


def run_rank(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> bool:
    """Run the trial; False where it failed, and the attempt's outcome has the reason."""
    report = Report(spec, folder, env.rank, env.restart, started_at=time.time() - process_age_s())
    spec = replace(spec, layout=spec.layout.canonical())
    try:
        require_runnable(spec, env)
        follow(spec, folder, env, report)
    except BaseException as error:
        return _report_failure(error, spec, report)
    return report.failure() is None


def require_runnable(spec: TrialSpec, env: RankEnvironment) -> None:
    """InputError for a layout that cannot run, TrialFailure for another world size; called before anything is waited
    for."""
    problems = list(engine_violations(spec.layout, spec.model, TRAINERS[spec.trainer["kind"]].rules))
    if problems:
        raise InputError(*problems)
    require_world(spec, env)


def _read_spec(path: Path) -> TrialSpec:
    spec = read_spec(path)
    if spec.trainer["kind"] == "parlay":
        raise ValueError("the spec's trainer is Parlay's own: start trials.train")
    return spec


def _report_failure(error: BaseException, spec: TrialSpec, report: Report) -> bool:
    """Write the failure and the program that failed, after a grace period if the root cause seems to lie in another
    rank, and print the excerpt.

    True if the trial was measured meanwhile: the end of this rank is then the normal end.
    """
    reason, excerpt = reason_of(error, report.folder.path), excerpt_of(error)
    wait_for_root_cause(error, report)
    if report.has_outcome() and report.failure() is None:
        return True
    print(excerpt, file=sys.stderr, flush=True)
    ran = {} if isinstance(error, InputError) else program(spec)
    report.fail(reason, excerpt, bound_of(error), fingerprint=ran)
    return False


def _leave(code: int) -> NoReturn:
    for pid in end_descendants():
        print(f"process {pid} still runs {KILL_TIMEOUT_S:.0f} s after SIGKILL", file=sys.stderr)
    exit_at_once(code)
