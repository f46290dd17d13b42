"""Conversion between records and rows of the ledger's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Row

from search_spaces.layouts.layout import Layout
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.ledger.tables import AttemptRow, SearchRow, TrialRow
from trials.trial import Attempt, FailureReason, Outcome, Trial, TrialKind, TrialState


def search_values(search: SearchRecord) -> dict[str, Any]:
    """Column values of a search, without its trials and the copy of its lease."""
    return {
        "search_id": search.search_id,
        "spec": dict(search.spec),
        "code_hash": search.code_hash,
        "state": search.state.value,
        "end_reason": None if search.end_reason is None else search.end_reason.value,
        "detail": search.detail,
        "best_trial": search.best_trial,
        "created_at": search.created_at,
        "ended_at": search.ended_at,
        "last_seq": search.last_seq,
        "fencing": search.fencing,
        "pilots": dict(search.pilots),
    }


def trial_values(search_id: str, trial: Trial) -> dict[str, Any]:
    """Column values of a trial, without its attempts and its order."""
    return {
        "search_id": search_id,
        "trial": trial.trial,
        "proposed_at": trial.proposed_at,
        "layout": trial.layout.to_json(),
        "layout_key": trial.layout.key,
        "kind": trial.kind.value,
        "prediction": None if trial.prediction is None else dict(trial.prediction),
        "state": trial.state.value,
        "reason": None if trial.reason is None else trial.reason.value,
    }


def attempt_values(search_id: str, attempt: Attempt) -> dict[str, Any]:
    return {
        "search_id": search_id,
        "trial": attempt.trial,
        "attempt": attempt.attempt,
        "nonce": attempt.nonce,
        "num_nodes": attempt.num_nodes,
        "time_limit_s": attempt.time_limit_s,
        "reserved_s": attempt.reserved_s,
        "exclude": list(attempt.exclude),
        "state": attempt.state.value,
        "reason": None if attempt.reason is None else attempt.reason.value,
        "job_id": attempt.job_id,
        "nodes": list(attempt.nodes),
        "submitted_at": attempt.submitted_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "unknown_since": attempt.unknown_since,
        "waits_for": attempt.waits_for,
        "restart": attempt.restart,
        "earlier_node_hours": attempt.earlier_node_hours,
        "node_hours": attempt.node_hours,
        "outcome": None if attempt.outcome is None else attempt.outcome.to_json(),
        "excerpt": attempt.excerpt,
    }


def search_record(row: SearchRow | Row[Any], trials: Iterable[Trial] = ()) -> SearchRecord:
    """The record of a search's row. Given only the columns that change, its spec is empty."""
    return SearchRecord(
        search_id=row.search_id,
        spec={**getattr(row, "spec", {})},  # TypeError unless it is a mapping
        code_hash=getattr(row, "code_hash", ""),
        created_at=row.created_at,
        state=SearchState(row.state),
        end_reason=None if row.end_reason is None else EndReason(row.end_reason),
        detail=row.detail,
        best_trial=row.best_trial,
        ended_at=row.ended_at,
        last_seq=row.last_seq,
        fencing=row.fencing,
        trials=tuple(trials),
        pilots=row.pilots,
    )


def trial_record(row: TrialRow | Row[Any], attempts: Iterable[AttemptRow | Row[Any]]) -> Trial:
    trial = Trial(
        trial=row.trial,
        layout=Layout.from_json(row.layout),
        kind=TrialKind(row.kind),
        state=TrialState(row.state),
        reason=None if row.reason is None else FailureReason(row.reason),
        prediction=row.prediction,
        proposed_at=row.proposed_at,
    )
    for attempt in attempts:
        trial = trial.with_attempt(attempt_record(attempt))
    return trial


def attempt_record(row: AttemptRow | Row[Any]) -> Attempt:
    return Attempt(
        trial=row.trial,
        attempt=row.attempt,
        nonce=row.nonce,
        num_nodes=row.num_nodes,
        time_limit_s=row.time_limit_s,
        reserved_s=row.reserved_s,
        exclude=tuple(row.exclude),
        state=TrialState(row.state),
        job_id=row.job_id,
        nodes=tuple(row.nodes),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        unknown_since=row.unknown_since,
        waits_for=row.waits_for,
        restart=row.restart,
        earlier_node_hours=row.earlier_node_hours,
        node_hours=row.node_hours,
        reason=None if row.reason is None else FailureReason(row.reason),
        outcome=None if row.outcome is None else Outcome.from_json(row.outcome),
        excerpt=row.excerpt,
    )
