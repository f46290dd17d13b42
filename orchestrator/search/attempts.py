"""An attempt on its way to the launcher and back: its spec, its request, and the outcome it left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.launchers.base import ENDING_ALLOWANCE_S, LaunchRequest
from search_spaces.cluster import Cluster
from search_spaces.model_shape import ModelShape
from trials.classify import Ending, Verdict, classify
from trials.folder import SearchFolder, read_json, write_json
from trials.trial import (
    Attempt,
    FailureReason,
    MeasureRules,
    Outcome,
    Rendezvous,
    Trial,
    TrialSpec,
    TrialState,
)

LAUNCHER_GRACE_S = 30.0
"""The trial ends itself at its own time limit; the launcher ends it this much later, whatever it does."""


@dataclass(frozen=True)
class TrialProgram:
    """What all attempts of a search share. `trainer` is the search file's section, `python` the ranks' interpreter."""

    folder: SearchFolder
    model: ModelShape
    cluster: Cluster
    measure: MeasureRules
    python: str
    trainer: Mapping[str, Any] = field(default_factory=lambda: {"kind": "parlay"})
    seed: int = 1234

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
            measure=replace(self.measure, time_limit_s=attempt.time_limit_s - LAUNCHER_GRACE_S),
            trainer=self.trainer,
            seed=self.seed,
            rendezvous=Rendezvous("file" if trial.layout.num_nodes == 1 else "tcp"),
        )

    def request(self, trial: Trial, attempt: Attempt) -> LaunchRequest:
        """The launch of this attempt, with its spec.json in place."""
        spec = self.spec(trial, attempt)
        folder = self.folder.attempt(trial.trial, attempt.attempt)
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(folder.spec, spec.to_json())
        return LaunchRequest(
            spec,
            folder,
            self.python,
            str(self.folder.code),
            attempt.time_limit_s,
            exclude=attempt.exclude,
            submitted_at=attempt.submitted_at,
            job_id=attempt.job_id,
            restart=attempt.restart,
        )

    def verdict(self, trial: Trial, attempt: Attempt, ending: Ending) -> Verdict:
        """How an ended attempt ended, from its folder and what the launcher saw."""
        spec = self.spec(trial, attempt)
        try:
            outcome = self._outcome(attempt, ending.restart)
        except ValueError as error:
            return Verdict(TrialState.FAILED, FailureReason.RESULT_INVALID, None, f"the outcome file: {error}")
        return classify(spec, outcome, ending)

    def _outcome(self, attempt: Attempt, restart: int) -> Outcome | None:
        data = read_json(self.folder.attempt(attempt.trial, attempt.attempt).outcome(restart))
        return None if data is None else Outcome.from_json(data)


def longest_attempt_s(measure: MeasureRules) -> float:
    """Seconds from an attempt's start to its certain end: its own limit, the launcher's grace, the forced ending."""
    return measure.time_limit_s + LAUNCHER_GRACE_S + ENDING_ALLOWANCE_S


def next_attempt(
    trial: Trial, nonce: str, time_limit_s: float, reserved_s: float | None = None, exclude: tuple[str, ...] = ()
) -> Attempt:
    """The trial's first or next attempt, not yet submitted anywhere."""
    name = f"a{len(trial.attempts) + 1}"
    return Attempt(trial.trial, name, nonce, trial.layout.num_nodes, time_limit_s, reserved_s, exclude)


def node_hours_of(attempt: Attempt, ending: Ending, now: float) -> float:
    """Node-hours an ended attempt used, runs before a requeue included; never more than was reserved for it.

    The launcher ends every attempt in time, so a longer span is a clock that jumped or a driver that was away, and a
    negative one a clock that went back.
    """
    started = attempt.started_at if ending.started_at is None else ending.started_at
    if started is None:
        return attempt.earlier_node_hours
    ended = now if ending.ended_at is None else ending.ended_at
    seconds = min(max(0.0, ended - started), attempt.longest_s)
    return attempt.earlier_node_hours + attempt.num_nodes * seconds / 3600


def cancelled(ending: Ending, reason: FailureReason) -> Ending:
    """The same ending, told as a cancellation: only the driver knows that it asked for it, and why."""
    return replace(ending, reason=reason)
