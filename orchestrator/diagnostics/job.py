"""Runner of Parlay's own programs on a cluster: selftest, calibrate, the doctor's probe and its fabric check.

Each is a single attempt of the search's launcher, whose ranks leave one result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchRequest
from orchestrator.search.attempt_factory import AttemptFactory, next_attempt
from orchestrator.search.code_snapshot import snapshot_code
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.attempt_result import LaunchStatus
from trials.files.folders import AttemptFolder, SearchFolder, read_json, write_json
from trials.files.path_owners import FolderIdentity
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, Outcome, Trial, TrialKind

T = TypeVar("T")

RESULTS_GRACE_S = 90.0
"""NFS may show another machine's files a minute late, as for outcomes."""


@dataclass(frozen=True)
class Program(Generic[T]):
    """One of Parlay's programs on all ranks of `cluster`; `trainer` selects it.

    `read` returns the result that the ranks leave in the attempt's folder: None while it is incomplete, ValueError for
    a damaged one. `number` tells programs of one folder apart.
    """

    cluster: Cluster
    model: ModelShape
    trainer: Mapping[str, Any]
    python: str
    time_limit_s: float
    read: Callable[[Path], T | None]
    number: int = 1


def new_job(folder: SearchFolder, program: Program[Any]) -> LaunchRequest:
    """Return the program as an attempt, with its spec written to `folder`, and with the code if it is the first one
    there."""
    if program.number == 1:
        folder.path.mkdir(parents=True, mode=0o700)
        snapshot_code(folder.code)
    taken = FolderIdentity.at(folder.path)
    factory = AttemptFactory(
        folder, program.model, program.cluster, MeasureRules(), program.python, check=program.trainer, taken=taken
    )
    layout = Layout(num_nodes=program.cluster.num_nodes, data_parallel=program.cluster.num_gpus)
    trial = Trial(f"t{program.number:04d}", layout, TrialKind.CHECK)
    request = factory.request(trial, next_attempt(trial, "0" * 32, program.time_limit_s + LAUNCHER_GRACE_S))
    request.folder.path.mkdir(parents=True, mode=0o700)
    write_json(request.folder.spec, request.spec.to_json())
    return request


class ProgramFailed(Exception):
    """A program left no result: in the words of the rank that failed, else of the launcher.

    `folder` has what its ranks left, `log` is the log of that rank, or the folder of all logs.
    """

    def __init__(self, words: str, reason: FailureReason | None, folder: Path, log: Path):
        super().__init__(words)
        self.reason = reason
        self.folder = folder
        self.log = log


def run_on_cluster(
    runner: AttemptRunner,
    folder: SearchFolder,
    program: Program[T],
    on_poll: Callable[[Path], object] = lambda place: None,
) -> tuple[AttemptFolder, T]:
    """Run the program as one attempt and return its folder and its result. `folder` is new for the first one; its name
    is the search id.

    `on_poll` is called with the attempt's folder while it runs.

    Raises ProgramFailed, LaunchRefused, and KeyboardInterrupt after a requested stop, with the attempt cancelled.
    """
    request = new_job(folder, program)
    place, problem = request.folder.path, "its ranks left no result"
    status = runner.run(request, lambda: on_poll(place))
    try:
        if not status.failed and (found := runner.wait_for(lambda: program.read(place), RESULTS_GRACE_S)) is not None:
            return request.folder, found
    except ValueError as damaged:
        problem = str(damaged)
    raise _failure(request.folder, status, problem)


def _failure(folder: AttemptFolder, status: LaunchStatus, problem: str) -> ProgramFailed:
    try:
        data = read_json(folder.outcome(status.restart))
        outcome = None if data is None else Outcome.from_json(data)
    except ValueError:
        outcome = None
    if outcome is None or outcome.rank is None:
        return ProgramFailed(status.detail or str(status.reason or problem), status.reason, folder.path, folder.path)
    last_line = (outcome.excerpt or "").strip().splitlines()[-1:]
    words = ": ".join([f"rank {outcome.rank}: {outcome.reason}", *last_line])
    return ProgramFailed(words, outcome.reason, folder.path, folder.rank_log(outcome.rank))
