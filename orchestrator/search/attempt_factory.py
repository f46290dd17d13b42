"""An attempt on its way to the launcher and back: its spec, its request, and the outcome it left."""

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

from orchestrator.common.timeouts import FOLDER_TIMEOUT_S, HangGuard
from orchestrator.launchers.base import LaunchRequest
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.attempt_result import AttemptResult, LaunchStatus, classify
from trials.files.folders import SearchFolder, links_outside, read_json, write_json
from trials.files.path_owners import FolderIdentity
from trials.trial import (
    Attempt,
    FailureReason,
    MeasureRules,
    Outcome,
    Rendezvous,
    Trial,
    TrialKind,
    TrialSpec,
    TrialState,
)

LAUNCHER_GRACE_S = 30.0
"""The trial ends itself at its own time limit; the launcher ends it this much later, whatever it does."""

MAX_OUTCOME_BYTES = 64 * 2**20
"""A trial of 100,000 steps, the most there are, leaves a few."""
OUTCOME_GRACE_S = 90.0
"""How long an ended attempt's outcome may still come where another machine wrote it: NFS may answer from what it knew
of a folder up to a minute ago."""

SILENT_NODES_GRACE_S = 10.0
"""The same where nothing was heard of the nodes for long: what they wrote before is older than what NFS keeps."""

_OUTCOME_NOT_AWAITED = (
    *(FailureReason.CANCELLED_BY_USER, FailureReason.CANCELLED_BY_SEARCH),
    FailureReason.INTERRUPTED,  # is tried again whatever comes
)


@dataclass(frozen=True)
class AttemptFactory:
    """What all attempts of a search share. `trainer` is the search file's section, `python` the ranks' interpreter.

    The `baseline` is measured whole, as every layout is that is measured again. `taken` is the folder as its driver
    took it; nothing is launched in another.
    """

    folder: SearchFolder
    model: ModelShape
    cluster: Cluster
    measure: MeasureRules
    python: str
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"kind": "parlay"})
    seed: int = 1234
    baseline: Layout | None = None
    taken: FolderIdentity | None = None
    _folders: HangGuard = field(default_factory=lambda: HangGuard(FOLDER_TIMEOUT_S), compare=False, repr=False)

    @property
    def time_limit_s(self) -> float:
        """Seconds after which a launcher ends an attempt: the trial ends itself before."""
        return self.measure.time_limit_s + LAUNCHER_GRACE_S

    def spec(self, trial: Trial, attempt: Attempt) -> TrialSpec:
        """spec.json of this attempt: a pure function of what the ledger holds, so that a crash changes nothing."""
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
            trainer=self.trainer,
            seed=self.seed,
            rendezvous=Rendezvous("file" if trial.layout.num_nodes == 1 else "tcp"),
        )

    def _rules(self, trial: Trial, attempt: Attempt) -> MeasureRules:
        may_stop = trial.kind is TrialKind.SEARCH and (self.baseline is None or trial.layout.key != self.baseline.key)
        return replace(
            self.measure,
            time_limit_s=attempt.time_limit_s - LAUNCHER_GRACE_S,
            early_stopping=self.measure.early_stopping and may_stop,
        )

    def request(self, trial: Trial, attempt: Attempt) -> LaunchRequest:
        """The launch of this attempt; nothing of it is written."""
        return LaunchRequest(
            self.spec(trial, attempt),
            self.folder.attempt(trial.trial, attempt.attempt),
            self.python,
            str(self.folder.code),
            attempt.time_limit_s,
            exclude=attempt.exclude,
            submitted_at=attempt.submitted_at,
            job_id=attempt.job_id,
            restart=attempt.restart,
            taken=self.taken,
        )

    def with_spec_file(self, request: LaunchRequest) -> LaunchRequest:
        """The request, its spec.json now in place. OSError where that cannot be written, or not in time; InputError
        where the folder is not the one that was taken."""
        self._folders.call(str(request.folder.path), partial(_write_spec, request, self.folder.path))
        return request

    def result(self, trial: Trial, attempt: Attempt, status: LaunchStatus, now: float | None = None) -> AttemptResult:
        """How an ended attempt ended, from its folder and what the launcher saw.

        `now` is the launcher's; with it OSError is raised for an outcome that may still come (late, empty or cut, as a
        network file system may show it), and without it the result is on what is there. OSError also where the folder
        cannot be read, or does not answer in time.
        """
        path = self.folder.attempt(attempt.trial, attempt.attempt).outcome(status.restart)
        may_come = now is not None and _may_still_come(attempt, status, now)
        try:
            data = self._folders.call(str(path.parent), partial(_read_uncached, path, self.folder.path))
        except ValueError as error:
            if may_come:
                raise OSError(f"{path} is not whole") from error
            return _invalid(error)
        if data is None and may_come and _ended_elsewhere(status):
            raise OSError(f"{path} is not there")
        try:
            outcome = None if data is None else Outcome.from_json(data)
        except ValueError as error:
            return _invalid(error)
        return classify(self.spec(trial, attempt), outcome, status)


def _write_spec(request: LaunchRequest, root: Path) -> None:
    request.require_taken()
    if links_outside(request.folder.path, root):
        raise OSError(f"{request.folder.path} leads out of the search's folder")
    request.folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_json(request.folder.spec, request.spec.to_json())


def _read_uncached(path: Path, root: Path) -> dict[str, Any] | None:
    """The JSON at `path` as its file system knows it now: NFS asks its server when the folder is opened.

    ValueError for what is no outcome, or does not lie in the search's folder `root`.
    """
    with suppress(FileNotFoundError):
        os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    if links_outside(path.parent, root):
        raise ValueError(f"{path.parent} leads out of the search's folder")
    return read_json(path, MAX_OUTCOME_BYTES)


def _may_still_come(attempt: Attempt, status: LaunchStatus, now: float) -> bool:
    """Whether the grace is not over, counted from the later of the attempt's end and the first look for its outcome."""
    if attempt.unknown_since is None:
        return True
    known = (attempt.unknown_since, status.ended_at)
    since = max((moment for moment in known if moment is not None and moment <= now), default=-math.inf)
    return now - since < (SILENT_NODES_GRACE_S if status.nodes_were_silent else OUTCOME_GRACE_S)


def _ended_elsewhere(status: LaunchStatus) -> bool:
    """Whether another machine may have written an outcome that is worth waiting for."""
    return (
        status.started and status.reason not in _OUTCOME_NOT_AWAITED and bool({*status.nodes} - {socket.gethostname()})
    )


def _invalid(error: ValueError) -> AttemptResult:
    return AttemptResult(TrialState.FAILED, FailureReason.RESULT_INVALID, None, f"the outcome file: {error}")


def next_attempt(
    trial: Trial, nonce: str, time_limit_s: float, reserved_s: float | None = None, exclude: tuple[str, ...] = ()
) -> Attempt:
    """The trial's first or next attempt, not yet submitted anywhere."""
    name = f"a{len(trial.attempts) + 1}"
    return Attempt(trial.trial, name, nonce, trial.layout.num_nodes, time_limit_s, reserved_s, exclude)


def as_cancelled(status: LaunchStatus, reason: FailureReason) -> LaunchStatus:
    """The same ending, told as a cancellation: only the driver knows that it asked for it, and why."""
    return replace(status, reason=reason)
