"""Fabric check: the first job of a search, before anything is proposed. Recorded and launched like an attempt."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.launchers.base import LaunchRequest
from orchestrator.search.attempt_factory import OUTCOME_GRACE_S
from orchestrator.search.context import SearchContext
from orchestrator.search.node_hours import LAUNCHER_GRACE_S, billed_hours_of, node_hours_with_requeues
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.fabric import FabricTimes, shapes_of
from trials.files.folders import AttemptFolder, read_json
from trials.ledger.events import FABRIC_CHECK, EventKind, FabricCheck, SearchState
from trials.measure_rules import MeasureRules
from trials.trial import Attempt, FailureReason, Outcome, TrialKind, TrialSpec, TrialState

_log = logging.getLogger(__name__)

TIME_LIMIT_S = 600.0
"""Start and measurement together."""


@dataclass(frozen=True)
class FabricProgram:
    """Measurement of a check and its consequences.

    `cluster` is the part that is checked, `trainer` the spec's section, and `conclude` gives `slow_nodes`,
    `num_available`, `findings` and `links` of a FabricCheck.
    """

    cluster: Cluster
    trainer: Mapping[str, Any]
    conclude: Callable[[FabricTimes], dict[str, Any]]


@dataclass(frozen=True)
class DueLaunch:
    """A launch that is due, and the event that records it with its job id."""

    request: LaunchRequest
    kind: EventKind
    data: Mapping[str, str]


class FabricChecker:
    """Takes a search's fabric check a step further at each call. A check that fails is reported, and the search goes on
    without: it helps to choose layouts, and says nothing about whether they run."""

    def __init__(self, context: SearchContext, program: FabricProgram | None):
        self._context = context
        self._program = program
        self._is_skipped = False
        self._ended_at: float | None = None

    @property
    def is_in_flight(self) -> bool:
        return self._check is not None and self._check.is_in_flight

    def adopt(self) -> None:
        """Take over the check of an earlier driver. One that was never accepted is launched again."""
        if self._check is None or not self._check.is_in_flight:
            return
        attempt = self._check.attempt
        adopted = self._context.launcher.adopt({self._context.key(attempt): self._request(attempt)})
        if self._context.key(attempt) in adopted:
            if attempt.state is TrialState.SUBMITTED:
                self._record(TrialState.QUEUED, job_id=adopted[self._context.key(attempt)])
        elif attempt.state is not TrialState.SUBMITTED:
            self._end_without_times(LaunchStatus(Liveness.ENDED), FailureReason.JOB_LOST, "not found after a restart")

    def advance(self) -> bool:
        """Do what is due now; True once the search may begin.

        Raises LaunchPostponed while the launcher cannot tell what the check costs.
        """
        if self._is_due:
            self._submit()
        if self._check is not None and self._check.is_in_flight:
            is_starved = self._context.is_starved(self._check.attempt)
            if self._context.search.state is SearchState.STOPPING or is_starved:
                self._cancel(self._check.attempt)
            elif self._check.attempt.state is not TrialState.SUBMITTED:
                self._poll(self._check.attempt)
        return not (self.is_in_flight or self._is_due)

    @property
    def _check(self) -> FabricCheck | None:
        return self._context.search.fabric_check

    @property
    def _is_due(self) -> bool:
        """True if an attempt of the check is to be submitted."""
        if self._program is None or self._is_skipped or self._context.search.trials or not self._context.is_running:
            return False
        return self._check is None or not (self._check.is_in_flight or self._check.is_over)

    def _submit(self) -> None:
        """Record the intent, if the budget has room for it and for a trial."""
        assert self._program is not None
        num_nodes = self._program.cluster.num_nodes
        launcher, limit_s = self._context.launcher, TIME_LIMIT_S + LAUNCHER_GRACE_S
        needed_node_s = launcher.reservation_node_s(limit_s, num_nodes)
        if not self._context.has_budget_beside(needed_node_s):
            _log.warning(
                f"no fabric check: it may cost {needed_node_s / 3600:.3g} node-hours, which with a trial are"
                " more than search.budget_node_hours has left"
            )
            self._is_skipped = True
            return
        name = "a1" if self._check is None else f"a{int(self._check.attempt.attempt[1:]) + 1}"
        limits = {"num_nodes": num_nodes, "time_limit_s": limit_s, "reserved_s": launcher.longest_s(limit_s)}
        data = {"attempt": name, "state": TrialState.SUBMITTED.value, "nonce": secrets.token_hex(16), **limits}
        data["is_step"] = launcher.runs_steps
        self._context.event(EventKind.FABRIC_CHECK, **data)

    def to_launch(self) -> list[DueLaunch]:
        """The check, if it is recorded and not launched yet."""
        if self._check is None or self._check.attempt.state is not TrialState.SUBMITTED:
            return []
        attempt = self._check.attempt
        launched = {"attempt": attempt.attempt, "state": TrialState.QUEUED.value}
        return [DueLaunch(self._request(attempt), EventKind.FABRIC_CHECK, launched)]

    def _poll(self, attempt: Attempt) -> None:
        status = self._context.launcher.poll([self._context.key(attempt)])[self._context.key(attempt)]
        self._context.stop_if_never_started(status)
        if status.liveness is Liveness.UNKNOWN:
            if status.detail:
                self._context.log_once.warning(f"the fabric check is unreachable: {status.detail}")
        elif status.liveness is Liveness.ENDED:
            self._end(attempt, status)
        elif status.started and attempt.state is not TrialState.RUNNING:
            started_at = status.started_at or self._context.launcher.now()
            job_id = status.job_id or attempt.job_id
            self._record(TrialState.RUNNING, job_id=job_id, started_at=started_at, nodes=list(status.nodes))
        elif status.detail and not status.started:
            self._context.log_once.info(f"the fabric check waits: {status.detail}")

    def _cancel(self, attempt: Attempt) -> None:
        key = self._context.key(attempt)
        if self._context.launcher.cancel([key]):
            self._context.log_once.warning("the fabric check is unreachable, retrying to cancel it")
            return
        status = self._context.launcher.poll([key])[key]
        if status.liveness is not Liveness.ENDED:
            status = LaunchStatus(Liveness.ENDED)
        self._end_without_times(status, self._context.cancel_reason, None)

    def _end(self, attempt: Attempt, status: LaunchStatus) -> None:
        """Record what was found, or why nothing was. The files may arrive late, or in part, from another machine."""
        assert self._program is not None
        now = self._context.launcher.now()
        self._ended_at = self._ended_at or now
        folder = self._request(attempt).folder
        try:
            found = None if status.failed else self._read_times(folder)
            reason, excerpt = _failure(folder, status)
        except ValueError as error:
            found, reason, excerpt = None, status.reason or FailureReason.RESULT_INVALID, str(error)
        if found is not None:
            self._record(TrialState.MEASURED, **self._ending(attempt, status), **self._program.conclude(found))
        elif status.failed or status.reason is not None or now - self._ended_at >= OUTCOME_GRACE_S:
            self._end_without_times(status, reason, excerpt)

    def _read_times(self, folder: AttemptFolder) -> FabricTimes | None:
        """Times of all exchanges, or None; ValueError as FabricTimes.read."""
        assert self._program is not None
        cluster, shapes = self._program.cluster, shapes_of(self._program.trainer)
        return FabricTimes.read(folder.path, shapes, cluster.gpus_per_node, cluster.num_nodes)

    def _end_without_times(self, status: LaunchStatus, reason: FailureReason, excerpt: str | None) -> None:
        assert self._check is not None
        self._record(
            TrialState.FAILED,
            **self._ending(self._check.attempt, status),
            reason=reason.value,
            excerpt=excerpt,
            slow_nodes=[],
            num_available=0,
            findings=[],
            links=None,
        )
        self._ended_at = None
        goes_on = "" if self._context.search.state is SearchState.STOPPING else "; the search goes on without it"
        if self._check.is_over:
            folder = self._context.factory.folder.attempt(FABRIC_CHECK, self._check.attempt.attempt).path
            words = f"{reason}: {excerpt}" if excerpt else str(reason)
            _log.warning(f"the fabric check failed: {words} (its logs: {folder}){goes_on}")

    def _ending(self, attempt: Attempt, status: LaunchStatus) -> dict[str, Any]:
        now = self._context.launcher.now()
        node_hours = node_hours_with_requeues(attempt, status, now)
        return {
            "job_id": status.job_id or attempt.job_id,
            "started_at": status.started_at or attempt.started_at,
            "nodes": list(status.nodes or attempt.nodes),
            "ended_at": status.ended_at or now,
            "node_hours": node_hours,
            "billed_hours": billed_hours_of(attempt.num_nodes, status, node_hours),
        }

    def _record(self, state: TrialState, **data: Any) -> None:
        assert self._check is not None
        self._context.event(EventKind.FABRIC_CHECK, attempt=self._check.attempt.attempt, state=state.value, **data)

    def _request(self, attempt: Attempt) -> LaunchRequest:
        assert self._program is not None
        factory = self._context.factory
        spec = program_spec(
            self._program.cluster,
            factory.model,
            self._program.trainer,
            factory.folder.search_id,
            attempt,
            attempt.time_limit_s - LAUNCHER_GRACE_S,
        )
        return LaunchRequest(
            spec,
            factory.folder.attempt(attempt.trial, attempt.attempt),
            factory.python,
            str(factory.folder.code),
            attempt.time_limit_s,
            submitted_at=attempt.submitted_at,
            job_id=attempt.job_id,
            restart=attempt.restart,
            taken=factory.taken,
            is_first=self._context.nothing_has_started,
        )


def _failure(folder: AttemptFolder, status: LaunchStatus) -> tuple[FailureReason, str]:
    """Reason of a check without times, and the last line of its text. ValueError for an invalid outcome file."""
    reason, excerpt = status.reason, status.detail
    if (data := read_json(folder.outcome(status.restart))) is not None:
        try:
            outcome = Outcome.from_json(data)
        except ValueError as error:
            raise ValueError(f"invalid outcome file: {error}") from error
        reason, excerpt = reason or outcome.reason, outcome.excerpt or excerpt
    lines = (excerpt or "").strip().splitlines() or ["its ranks left no times"]
    return reason or FailureReason.RESULT_INVALID, lines[-1]


def program_spec(
    cluster: Cluster,
    model: ModelShape,
    trainer: Mapping[str, Any],
    search_id: str,
    attempt: Attempt,
    time_limit_s: float,
) -> TrialSpec:
    """spec.json of a job that runs one of Parlay's programs on all ranks and trains nothing: a pure function of the
    record, so that it is the same after a crash.

    `trainer` selects the program, which ends itself after `time_limit_s`.
    """
    layout = Layout(num_nodes=cluster.num_nodes, data_parallel=cluster.num_gpus)
    return TrialSpec(
        search_id=search_id,
        trial=attempt.trial,
        attempt=attempt.attempt,
        nonce=attempt.nonce,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=model,
        global_batch_size=layout.global_batch_size,
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        accelerator=cluster.accelerator.name,
        measure=MeasureRules(time_limit_s=time_limit_s),
        trainer=trainer,
    )
