"""Monitor of the attempts in flight: adopts those of an earlier driver, polls, cancels, and records each end once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from orchestrator.search.context import SearchContext
from orchestrator.search.node_hours import billed_hours_of, node_hours_of, node_hours_until_requeue
from orchestrator.search.pilot_charges import charge_ended_pilots
from trials.attempt_result import AttemptResult, LaunchStatus, Liveness, flag_other_fingerprint
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import EventKind, SearchState
from trials.trial import Attempt, FailureReason, TrialState

_USUAL_WAITS = (None, "Priority", "Resources", "BeginTime")
"""Reasons for which jobs usually wait; other reasons may last forever, so that the user is told."""

_NOT_RECORDED = (None, "Priority", "Resources")
"""Reasons that change from poll to poll and say no more than `queued`."""

_LONG_WAIT_S = 60.0


class AttemptMonitor:
    """Polls attempts through the launcher and records what changed."""

    def __init__(self, context: SearchContext):
        self._context = context
        self._wait_reasons: dict[str, str] = {}

    def adopt(self) -> None:
        """Adopt the attempts of an earlier driver. Those that were never accepted are launched again."""
        attempts = {self._context.key(a): a for a in self._context.index.in_flight}
        adopted = self._context.launcher.adopt({key: self._context.request(a) for key, a in attempts.items()})
        for key, attempt in attempts.items():
            if key in adopted and attempt.state is TrialState.SUBMITTED:
                self._context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=adopted[key])
            elif key not in adopted and attempt.state is not TrialState.SUBMITTED:
                lost = LaunchStatus(
                    Liveness.ENDED, reason=FailureReason.JOB_LOST, detail="not found after the driver's restart"
                )
                self._end(attempt, lost)

    def poll(self) -> None:
        """Poll everything that was launched, and charge the pilots that have ended."""
        launched = {
            self._context.key(a): a for a in self._context.index.in_flight if a.state is not TrialState.SUBMITTED
        }
        is_due = launched or self._context.search.open_pilots
        for key, status in self._context.launcher.poll(launched).items() if is_due else ():
            self._advance(launched[key], status)
        charge_ended_pilots(self._context)

    def cancel(self, attempts: Sequence[Attempt]) -> set[str]:
        """Cancel these attempts; those that were never launched end at once. Returns the keys of those that may still
        run.

        A launch in doubt may turn out to have had a job only now, and to have used node-hours.
        """
        known = {self._context.key(attempt): attempt for attempt in attempts}
        unreached = self._context.launcher.cancel(known)
        ended = [key for key, a in known.items() if a.state is TrialState.SUBMITTED and key not in unreached]
        for key, status in self._context.launcher.poll(ended).items() if ended else ():
            if status.liveness is Liveness.ENDED and status.job_id is not None:
                self._context.record(EventKind.ATTEMPT_LAUNCHED, known[key], job_id=status.job_id)
                self._end(self._context.trial(known[key]).last_attempt or known[key], status)
            else:
                reason, detail = FailureReason.CANCELLED_BY_SEARCH, "cancelled before its launch"
                self._end(known[key], LaunchStatus(Liveness.ENDED, reason=reason, detail=detail))
        return unreached

    def idle_reason(self) -> str:
        """Reason why the search is idle, and of what its attempts wait for."""
        words = f"nothing has started or ended for {self._context.limits.idle_limit_s:g} s"
        waits = sorted({f"{name} waits: {what}" for name, what in self._wait_reasons.items()})
        return "; ".join([words, *waits])

    def _advance(self, attempt: Attempt, status: LaunchStatus) -> None:
        if status.liveness is Liveness.UNKNOWN:
            if attempt.unknown_since is None:
                self._context.record(EventKind.ATTEMPT_UNKNOWN, attempt, unknown_since=self._context.launcher.now())
            if status.detail:
                self._context.log_once.warning(f"{_name(attempt)} is unreachable: {status.detail}")
            return
        self._context.stop_if_never_started(status)
        if status.restart > attempt.restart:
            attempt = self._record_requeue(attempt, status)
        if status.liveness is Liveness.ENDED:
            self._end(self._with_job_id(attempt, status), status)
            return
        if attempt.unknown_since is not None:
            self._context.record(EventKind.ATTEMPT_UNKNOWN, attempt, unknown_since=None)
        if status.started or status.detail is None:
            self._wait_reasons.pop(_name(attempt), None)
        else:
            self._wait_reasons[_name(attempt)] = status.detail
        self._with_job_id(attempt, status)
        if status.started and attempt.state is not TrialState.RUNNING:
            started_at = status.started_at or self._context.launcher.now()
            self._context.record(EventKind.ATTEMPT_RUNNING, attempt, started_at=started_at, nodes=list(status.nodes))
        elif status.detail not in _USUAL_WAITS and self._has_waited_long(attempt):
            self._context.log_once.info(f"{_name(attempt)} waits: {status.detail}")
        waits_for = None if status.detail in _NOT_RECORDED else status.detail
        if waits_for != attempt.waits_for:
            self._context.record(EventKind.ATTEMPT_WAITS, attempt, waits_for=waits_for)

    def _with_job_id(self, attempt: Attempt, status: LaunchStatus) -> Attempt:
        """The attempt with the job id that the launcher knows now, such as that of a step. A running attempt keeps its
        id."""
        if status.job_id in (None, attempt.job_id) or attempt.state is TrialState.RUNNING:
            return attempt
        self._context.record(EventKind.ATTEMPT_LAUNCHED, attempt, job_id=status.job_id)
        return self._context.trial(attempt).last_attempt or attempt

    def _has_waited_long(self, attempt: Attempt) -> bool:
        since = attempt.submitted_at
        return since is not None and self._context.launcher.now() - since > _LONG_WAIT_S

    def _record_requeue(self, attempt: Attempt, status: LaunchStatus) -> Attempt:
        """Record a requeued job: the node-hours used so far count, and the attempt continues as its next restart."""
        node_hours = node_hours_until_requeue(attempt, status, self._context.launcher.now())
        self._context.record(EventKind.ATTEMPT_REQUEUED, attempt, restart=status.restart, node_hours=node_hours)
        return self._context.trial(attempt).last_attempt or attempt

    def _end(self, attempt: Attempt, status: LaunchStatus) -> None:
        if self._context.search.state is SearchState.STOPPING and _may_be_cancelled_by_us(status):
            status = replace(status, reason=self._context.cancel_reason)
        trial, now = self._context.trial(attempt), self._context.launcher.now()
        try:
            result = self._context.factory.result(trial, attempt, status, now)
        except OSError as error:
            self._context.log_once.warning(f"{_name(attempt)} has ended, but its folder cannot be read: {error}")
            self._advance(attempt, LaunchStatus(Liveness.UNKNOWN))
            return
        result = self._with_fingerprint_flag(attempt, result)
        self._context.record(EventKind.ATTEMPT_ENDED, attempt, **self._ended_data(attempt, status, result))

    def _with_fingerprint_flag(self, attempt: Attempt, result: AttemptResult) -> AttemptResult:
        """Flag a measurement whose program, software or hardware differs from that of the search's first one: it is not
        comparable. The two sides of an experiment each have their own first one."""
        first = self._context.index.first_measured_like(self._context.trial(attempt).layout)
        outcome = None if first is None or first.last_attempt is None else first.last_attempt.outcome
        return result if outcome is None else flag_other_fingerprint(result, outcome.fingerprint)

    def _ended_data(self, attempt: Attempt, status: LaunchStatus, result: AttemptResult) -> dict[str, Any]:
        now = self._context.launcher.now()
        node_hours = node_hours_of(attempt, status, now)
        return {
            "state": result.state.value,
            "reason": result.reason,
            "outcome": None if result.outcome is None else result.outcome.to_json(),
            "excerpt": result.excerpt,
            "nodes": list(status.nodes),
            "leaves": list(self._context.launcher.leaves_of(status.nodes or attempt.nodes)),
            "started_at": status.started_at,
            "ended_at": status.ended_at or now,
            "node_hours": node_hours,
            "billed_hours": billed_hours_of(attempt.num_nodes, status, node_hours),
        }


def _may_be_cancelled_by_us(status: LaunchStatus) -> bool:
    """True if a stopping search may have cancelled the attempt itself; a later driver cannot know."""
    return status.reason is None or policy_of(status.reason).ending is Ending.CANCELLED


def _name(attempt: Attempt) -> str:
    return f"{attempt.trial}.{attempt.attempt}"
