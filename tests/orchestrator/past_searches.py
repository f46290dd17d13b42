"""Synthetic finished searches for tests: specs, and trials that end as given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.config.spec import SearchSpec
from search_spaces.layouts.layout import Layout
from tests.kit import ABSENT, TINY_SEARCH, loaded, metrics, search_text
from trials.ledger.database import open_to_write
from trials.ledger.events import SearchRecord, SearchState
from trials.ledger.projection import store
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialKind, TrialState

SEARCH = search_text(
    TINY_SEARCH,
    name="past",
    space={"micro_batch_size": [1, 2, 4, 8]},
    tracking={"enabled": False},
    **dict.fromkeys(("baseline", "search", "measure"), ABSENT),
)
NOON = 1_780_000_000.0
MEASURED = metrics(256.0, 0.5, step_time_p95_s=0.6, tokens_per_sec_high=260.0, peak_memory_gib=0.25)


def spec_in(folder: Path, *overrides: str, **changes: Any) -> SearchSpec:
    return loaded(folder, SEARCH, *overrides, **changes)


def layouts() -> list[Layout]:
    """Layouts that the search allows."""
    return [
        Layout(tensor_parallel=tensor, data_parallel=2 // tensor, micro_batch_size=micro, grad_accum_steps=steps)
        for tensor, micro, steps in ((1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 8), (2, 2, 4), (2, 4, 2), (2, 8, 1))
    ]


def measured(
    name: str, layout: Layout, device: str | None = "a CPU", flags: tuple[str, ...] = (), **changes: Any
) -> Trial:
    """A trial of 30 s after 12 s in the queue."""
    return _ended(name, layout, device=device, flags=flags, measured=replace(MEASURED, **changes))


def failed(name: str, layout: Layout, reason: FailureReason) -> Trial:
    return _ended(name, layout, reason)


def pruned(name: str, layout: Layout, **seen: float) -> Trial:
    return _ended(name, layout, FailureReason.PRUNED, measured=replace(MEASURED, **seen) if seen else None)


def past(spec: SearchSpec, *trials: Trial, search_id: str = "past-aaaaaa", at: float = NOON) -> SearchRecord:
    return SearchRecord(search_id, spec.to_json(), "c0de", at, SearchState.COMPLETED, trials=trials)


def write_ledger(url: str, *searches: SearchRecord) -> str:
    """Create a ledger with these searches and return its URL."""
    engine = open_to_write(url)
    with engine.begin() as connection:
        for search in searches:
            store(connection, search)
    engine.dispose()
    return url


def _ended(
    name: str, layout: Layout, reason: FailureReason | None = None, device: str | None = "a CPU", **of_outcome: Any
) -> Trial:
    state = TrialState.CANCELLED if "cancelled" in (reason or "") else TrialState.FAILED
    state, status = (state, OutcomeStatus.FAILED) if reason else (TrialState.MEASURED, OutcomeStatus.MEASURED)
    told = {"fingerprint": {} if device is None else {"device": device}, "reason": reason, **of_outcome}
    outcome = Outcome("past-aaaaaa", name, "a1", "0" * 32, status, **told)
    times = {"submitted_at": NOON, "started_at": NOON + 12, "ended_at": NOON + 42, "node_hours": 30 / 3600}
    ending = {"state": state, "reason": reason, "outcome": outcome}
    attempt = Attempt(name, "a1", "0" * 32, layout.num_nodes, 600.0, **times, **ending)
    return Trial(name, layout, TrialKind.SEARCH, state, reason, attempts=(attempt,), proposed_at=NOON)
