"""Frame of every rank's program: spec and environment, exit codes, reporting of failures.

Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from trials.files.folders import AttemptFolder, read_json
from trials.ranks.environment import RankEnvironment, bind_to_cores
from trials.ranks.failures import TrialFailure, is_own_file_error, is_peer_failure
from trials.ranks.report import Report
from trials.trial import FailureReason, TrialSpec

FILES_FAILED = 74
"""Exit code of a rank that could not read its spec or write its outcome: EX_IOERR of sysexits.h. Its log may be missing
too."""
GRACE_S = 3.0
"""Seconds that a rank which lost a peer waits for that peer's outcome before it writes its own."""


def run_program(
    module: str,
    arguments: Sequence[str],
    read: Callable[[Path], TrialSpec],
    run_rank: Callable[[TrialSpec, AttemptFolder, RankEnvironment], bool],
    leave: Callable[[int], NoReturn],
) -> NoReturn:
    """Exit with 0 when this rank did its part, 1 when it failed or was ended, 2 for bad usage, FILES_FAILED where the
    file system failed under its own files."""
    if len(arguments) != 1:
        print(f"usage: python -m {module} SPEC_PATH", file=sys.stderr)
        leave(2)
    path = Path(arguments[0])
    try:
        spec, env = read(path), RankEnvironment.read(os.environ)
        bind_to_cores(spec, env)
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        leave(FILES_FAILED if isinstance(error, OSError) else 2)
    try:
        is_done = run_rank(spec, AttemptFolder(path.parent), env)
    except BaseException as error:
        with suppress(OSError):
            traceback.print_exc()
        leave(FILES_FAILED if is_own_file_error(error, path.parent) else 1)
    leave(0 if is_done else 1)


def read_spec(path: Path) -> TrialSpec:
    """Read spec.json; FileNotFoundError without one, ValueError for a damaged one."""
    data = read_json(path)
    if data is None:
        raise FileNotFoundError("the spec does not exist")
    return TrialSpec.from_json(data)


def require_world(spec: TrialSpec, env: RankEnvironment) -> None:
    """TrialFailure unless the number of ranks is the spec's."""
    if env.world_size != spec.num_gpus:
        found = f"{env.world_size} ranks were started, the spec says {spec.num_gpus}"
        raise TrialFailure(FailureReason.RESULT_INVALID, f"wrong world size: {found}")


def wait_for_root_cause(error: BaseException, report: Report) -> None:
    """Wait for another rank's outcome where the root cause seems to lie there."""
    deadline = time.monotonic() + (GRACE_S if is_peer_failure(error, report.folder.path) else 0.0)
    while time.monotonic() < deadline and not report.has_outcome():
        time.sleep(0.05)


def exit_at_once(code: int) -> NoReturn:
    """Exit without the interpreter's cleanup, which takes a second with torch, or hangs. Output that cannot be written
    is dropped."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
