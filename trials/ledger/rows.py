"""Conversion between records and rows of the ledger's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Row

from search_spaces.decoding import decode
from trials.ledger.events import DriverJobUsage, EndReason, FabricCheck, PilotUsage, SearchRecord, SearchState
from trials.ledger.tables import AttemptRow, SearchRow, TrialRow
from trials.trial import Attempt, Trial
from trials.trial_json import ATTEMPT_FIELDS, TRIAL_FIELDS, attempt_json, attempt_of, trial_json, trial_of


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
        "pilots": {name: asdict(usage) for name, usage in search.pilots.items()},
        "driver_jobs": {job_id: asdict(usage) for job_id, usage in search.driver_jobs.items()},
        "fabric_check": _check_json(search.fabric_check),
    }


def trial_values(search_id: str, trial: Trial) -> dict[str, Any]:
    """Column values of a trial, without its attempts and its order."""
    return {"search_id": search_id, **trial_json(trial)}


def attempt_values(search_id: str, attempt: Attempt) -> dict[str, Any]:
    return {"search_id": search_id, **attempt_json(attempt)}


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
        pilots={name: decode(PilotUsage, usage) for name, usage in row.pilots.items()},
        driver_jobs={job_id: decode(DriverJobUsage, usage) for job_id, usage in (row.driver_jobs or {}).items()},
        fabric_check=_check_of(row.fabric_check),
    )


def _check_json(check: FabricCheck | None) -> dict[str, Any] | None:
    return None if check is None else {**asdict(check), "attempt": attempt_json(check.attempt)}


def _check_of(data: Mapping[str, Any] | None) -> FabricCheck | None:
    if data is None:
        return None
    lists = {name: tuple(data[name]) for name in ("slow_nodes", "findings")}
    return FabricCheck(attempt_of(data["attempt"]), **lists, num_available=data["num_available"], links=data["links"])


def trial_record(row: TrialRow | Row[Any], attempts: Iterable[AttemptRow | Row[Any]]) -> Trial:
    return trial_of({name: getattr(row, name) for name in TRIAL_FIELDS}, map(attempt_record, attempts))


def attempt_record(row: AttemptRow | Row[Any]) -> Attempt:
    return attempt_of({name: getattr(row, name) for name in ATTEMPT_FIELDS})
