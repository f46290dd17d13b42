"""Export of a search as DeepHyper's results.csv, by the format of DeepHyper 0.13. Pure.

`p:<name>` are the layout's fields, `objective` is the maximised value or a text that begins with F, `job_id` the
trial's index, `m:<name>` everything else. Timestamps are seconds since the search was created.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

from orchestrator.records.formats.export_result import ExportResult
from orchestrator.records.formats.table_export import COLUMNS, TIMES, objective_of, trial_rows
from orchestrator.records.observations import IN_FLIGHT
from search_spaces.layouts.layout import LAYOUT_FIELDS
from search_spaces.tables.csv_rows import escape_cell
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord
from trials.trial import Trial, TrialState

PARAMETER, METADATA, OBJECTIVE = "p:", "m:", "objective"
FAILED = "F"
_SUBMIT, _START, _END, _GATHER = (f"m:timestamp_{what}" for what in ("submit", "start", "end", "gather"))
_AS_METADATA = tuple(name for name in COLUMNS if name not in (*LAYOUT_FIELDS, *TIMES))


def deephyper_results(search: SearchRecord, objectives: Sequence[Objective]) -> ExportResult:
    """One row per finished trial, in the order of proposal.

    A single objective is the column `objective`; several are `objective_0`, `objective_1`, ..., as in DeepHyper. A
    minimised objective is negated, since DeepHyper maximises.
    """
    rows = []
    left_out: Counter[str] = Counter()
    for place, (trial, flat) in enumerate(zip(search.trials, trial_rows(search), strict=True)):
        if trial.state.is_ended:
            rows.append(_row(search, place, trial, flat, objectives))
        else:
            left_out[IN_FLIGHT] += 1
    return ExportResult(_text(rows).encode() if rows else b"", len(rows), dict(left_out))


def _row(
    search: SearchRecord, place: int, trial: Trial, flat: dict[str, Any], objectives: Sequence[Objective]
) -> dict[str, Any]:
    first, last = (trial.attempts[0], trial.attempts[-1]) if trial.attempts else (None, None)
    proposed_at = search.created_at if trial.proposed_at is None else trial.proposed_at
    submitted_at = proposed_at if first is None or first.submitted_at is None else first.submitted_at
    started_at, ended_at = (None, None) if last is None else (last.started_at, last.ended_at)
    times = {_SUBMIT: submitted_at, _START: started_at, _END: ended_at, _GATHER: ended_at or submitted_at}
    names = (OBJECTIVE,) if len(objectives) == 1 else tuple(f"{OBJECTIVE}_{n}" for n in range(len(objectives)))
    return {
        **{PARAMETER + name: value for name, value in trial.layout.to_json().items()},
        **{name: _objective(trial, objective) for name, objective in zip(names, objectives, strict=True)},
        "job_id": place,
        "job_status": "CANCELLED" if trial.state is TrialState.CANCELLED else "DONE",
        **{name: None if at is None else at - search.created_at for name, at in times.items()},
        **{METADATA + name: flat[name] for name in _AS_METADATA},
    }


def _objective(trial: Trial, objective: Objective) -> float | str:
    value = objective_of(trial, objective)
    if value is None:
        return FAILED if trial.reason is None else f"{FAILED}_{trial.reason}"
    return -value if objective.is_minimised else value


def _text(rows: Sequence[dict[str, Any]]) -> str:
    """Render the table, without metadata columns that are empty for all trials."""
    always = (PARAMETER, OBJECTIVE, "job_", _SUBMIT, _GATHER)
    names = [name for name in rows[0] if name.startswith(always) or any(row[name] is not None for row in rows)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row[name]) for name in names] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> str:
    """Format a cell as DeepHyper does, with Python's True and False."""
    if value is None:
        return ""
    return escape_cell(value) if isinstance(value, str) else repr(value)
