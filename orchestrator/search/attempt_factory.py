"""Specs and launch requests of attempts, and the results read from their outcome files."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.timeouts import FOLDER_TIMEOUT_S, HangGuard
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from search_spaces.engines import PARLAY
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import PYTHON
from search_spaces.model_shape import ModelShape
from trials.attempt_result import AttemptResult, LaunchStatus, classify
from trials.failure_policy import policy_of
from trials.files.folders import SearchFolder, links_outside, read_json
from trials.files.path_owners import FolderIdentity
from trials.measure_rules import MeasureRules
from trials.trial import Attempt, FailureReason, Outcome, Trial, TrialKind, TrialSpec, TrialState

MAX_OUTCOME_BYTES = 64 * 2**20
"""The longest possible trial, 100,000 steps, writes a few MiB."""
OUTCOME_GRACE_S = 90.0
"""Seconds to wait for the outcome of an attempt that ended on another machine: NFS may answer from a cache of up to a
minute."""

SILENT_NODES_GRACE_S = 10.0
"""The same for nodes that were silent for long: their last writes are older than the NFS cache."""


@dataclass(frozen=True)
class AttemptFactory:
    """Factory of launch requests: what all attempts of a search share.

    `trainer` is the search file's section, `check` that of the fabric check, `python` the ranks' interpreter. The
    `baseline` is always measured completely, as are repeats. `taken` is the folder as its driver acquired it; nothing
    is launched in another one. `guard` is for the attempts' folders, which may hang.
    """

    folder: SearchFolder
    model: ModelShape
    cluster: Cluster
    measure: MeasureRules
    python: str
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"kind": PARLAY})
    check: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1234
    baseline: Layout | None = None
    taken: FolderIdentity | None = None
    guard: HangGuard = field(default_factory=lambda: HangGuard(FOLDER_TIMEOUT_S), compare=False, repr=False)

    @property
    def time_limit_s(self) -> float:
        """Seconds after which a launcher ends an attempt. The trial ends itself before."""
        return self.measure.time_limit_s + LAUNCHER_GRACE_S

    def spec(self, trial: Trial, attempt: Attempt) -> TrialSpec:
        """spec.json of this attempt: a pure function of the record, so that it is the same after a crash."""
        return TrialSpec(
            search_id=self.folder.search_id,
            trial=trial.trial,
            attempt=attempt.attempt,
            nonce=attempt.nonce,
            kind=trial.kind,
            layout=trial.layout,
            model=self.model,
            global_batch_size=trial.layout.global_batch_size,
            num_gpus=trial.layout.num_gpus,
            gpus_per_node=self.cluster.gpus_per_node,
            accelerator=self.cluster.accelerator.name,
            measure=self._rules(trial, attempt),
            trainer=self.check if trial.kind is TrialKind.CHECK else self.trainer,
            seed=self.seed,
        )

    def _rules(self, trial: Trial, attempt: Attempt) -> MeasureRules:
        limit_s = attempt.time_limit_s - LAUNCHER_GRACE_S
        if trial.kind is TrialKind.CHECK:
            return MeasureRules(time_limit_s=limit_s)
        may_stop = trial.kind is TrialKind.SEARCH and (self.baseline is None or trial.layout.key != self.baseline.key)
        return replace(
            self.measure,
            time_limit_s=limit_s,
            early_stopping=self.measure.early_stopping and may_stop,
        )

    def request(self, trial: Trial, attempt: Attempt) -> LaunchRequest:
        """The launch request of this attempt. Writes nothing."""
        return LaunchRequest(
            self.spec(trial, attempt),
            self.folder.attempt(trial.trial, attempt.attempt),
            trial.layout.of_trial.software.get(PYTHON, self.python),
            str(self.folder.code),
            attempt.time_limit_s,
            exclude=attempt.exclude,
            submitted_at=attempt.submitted_at,
            job_id=attempt.job_id,
            restart=attempt.restart,
            taken=self.taken,
        )

    def result(self, trial: Trial, attempt: Attempt, status: LaunchStatus, now: float | None = None) -> AttemptResult:
        """Result of an ended attempt, from its folder and the launcher's status.

        With `now`, the launcher's time, an outcome that may still arrive raises OSError: a network file system may show
        it late, empty or cut. Without `now`, the result rests on what is there. OSError also if the folder cannot be
        read in time.
        """
        path = self.folder.attempt(attempt.trial, attempt.attempt).outcome(status.restart)
        may_come = now is not None and _may_still_come(attempt, status, now)
        try:
            data = self.guard.call(str(path.parent), partial(_read_uncached, path, self.folder.path))
        except ValueError as error:
            if may_come:
                raise OSError(f"{path} is incomplete") from error
            return _invalid(error)
        if data is None and may_come and _ended_elsewhere(status):
            raise OSError(f"{path} does not exist yet")
        try:
            outcome = None if data is None else Outcome.from_json(data)
        except ValueError as error:
            return _invalid(error)
        return classify(self.spec(trial, attempt), outcome, status)


def _read_uncached(path: Path, root: Path) -> dict[str, Any] | None:
    """Read the JSON at `path` past the NFS cache: opening the folder makes NFS ask its server.

    ValueError for content that is not an outcome, or for a path outside the search's folder `root`.
    """
    with suppress(FileNotFoundError):
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    if links_outside(path.parent, root):
        raise ValueError(f"{path.parent} is outside the search's folder")
    return read_json(path, MAX_OUTCOME_BYTES)


def _may_still_come(attempt: Attempt, status: LaunchStatus, now: float) -> bool:
    """True until the grace is over, counted from the attempt's end or the first look for its outcome, whichever is
    later."""
    if attempt.unknown_since is None:
        return True
    known = (attempt.unknown_since, status.ended_at)
    since = max((moment for moment in known if moment is not None and moment <= now), default=-math.inf)
    return now - since < (SILENT_NODES_GRACE_S if status.nodes_were_silent else OUTCOME_GRACE_S)


def _ended_elsewhere(status: LaunchStatus) -> bool:
    """True if another machine may have written an outcome to wait for."""
    is_elsewhere = bool({*status.nodes} - {socket.gethostname()})
    return status.started and policy_of(status.reason).needs_outcome and is_elsewhere


def _invalid(error: ValueError) -> AttemptResult:
    return AttemptResult(TrialState.FAILED, FailureReason.RESULT_INVALID, None, f"invalid outcome file: {error}")


def next_attempt(
    trial: Trial,
    nonce: str,
    time_limit_s: float,
    reserved_s: float | None = None,
    is_step: bool = False,
    exclude: tuple[str, ...] = (),
) -> Attempt:
    """The trial's first or next attempt, not submitted yet."""
    name = f"a{len(trial.attempts) + 1}"
    return Attempt(trial.trial, name, nonce, trial.layout.num_nodes, time_limit_s, reserved_s, is_step, exclude)
