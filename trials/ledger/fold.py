"""Fold of a search's events into its record."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Any

from search_spaces.decoding import decode_fields, decode_value
from trials.ledger.events import (
    EVENT_FIELDS,
    FABRIC_CHECK,
    Event,
    EventKind,
    FabricCheck,
    FencedError,
    PilotUsage,
    SearchRecord,
)
from trials.trial import Attempt, Outcome, Trial, TrialKind, TrialState


def apply_event(search: SearchRecord | None, search_id: str, event: Event) -> SearchRecord:
    """The search after `event`.

    ValueError for an event out of order, one that contradicts the state, and one that lacks a field of its kind or has
    a value of another type, by name; FencedError for one of an old lease.
    """
    _require_next(search, event)
    if missing := [name for name in EVENT_FIELDS[event.kind] if name not in event.data]:
        raise ValueError(f"event {event.seq} ({event.kind}) lacks {missing[0]}")
    if search is None:
        record = SearchRecord(search_id, **_data(event, SearchRecord), created_at=event.at)
    else:
        record = _APPLY[event.kind](search, event)
    return replace(record, last_seq=event.seq, fencing=event.fencing)


def fold(search_id: str, events: Iterable[Event]) -> SearchRecord | None:
    """The search after all of these events; None where there are none. ValueError as `apply_event`."""
    search = None
    for event in events:
        search = apply_event(search, search_id, event)
    return search


def _require_next(search: SearchRecord | None, event: Event) -> None:
    expected = 1 if search is None else search.last_seq + 1
    if event.seq != expected:
        raise ValueError(f"event {event.seq} ({event.kind}) where {expected} was expected")
    if (search is None) != (event.kind is EventKind.SEARCH_CREATED):
        raise ValueError(f"a search begins with {EventKind.SEARCH_CREATED}, once; event {event.seq} is {event.kind}")
    if search is not None and event.fencing < search.fencing:
        raise FencedError(f"event {event.seq} carries the old lease {event.fencing}; the search is at {search.fencing}")


def _data(event: Event, kind: type, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The event's values that are fields of this dataclass, decoded; by default those of every event of its kind."""
    known = _names(kind, EVENT_FIELDS[event.kind] if names is None else names)
    return decode_fields(kind, {name: event.data[name] for name in known if name in event.data})


@cache
def _names(kind: type, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name in names)


def _search_state(search: SearchRecord, event: Event) -> SearchRecord:
    changed = replace(search, **_data(event, SearchRecord))
    return replace(changed, ended_at=event.at if changed.state.is_ended else None)


def _trial_proposed(search: SearchRecord, event: Event) -> SearchRecord:
    trial = Trial(**_data(event, Trial), proposed_at=event.at)
    if (trial.kind is TrialKind.CHECK) != (trial.trial == FABRIC_CHECK):
        raise ValueError(f"trial {trial.trial} is of the kind {trial.kind}")
    if trial.kind is TrialKind.CHECK:
        if search.fabric_check is not None:
            raise ValueError("the fabric check was proposed twice")
        return replace(search, fabric_check=FabricCheck(trial))
    if any(t.trial == trial.trial for t in search.trials):
        raise ValueError(f"trial {trial.trial} was proposed twice")
    _require_name(trial.trial, "t")
    return replace(search, trials=(*search.trials, trial))


def _attempt_submitted(search: SearchRecord, event: Event) -> SearchRecord:
    attempt = Attempt(**_data(event, Attempt), submitted_at=event.at)
    trial = _open_trial(search, event)
    if any(a.attempt == attempt.attempt or not a.state.is_ended for a in trial.attempts):
        raise ValueError(f"{attempt.trial}.{attempt.attempt} was submitted while another attempt is there")
    _require_name(attempt.attempt, "a")
    return _with_attempt(search, attempt, TrialState.SUBMITTED)


def _attempt_launched(search: SearchRecord, event: Event) -> SearchRecord:
    attempt = _open_attempt(search, event)
    if attempt.state is TrialState.RUNNING:
        raise ValueError(f"{attempt.trial}.{attempt.attempt} already runs and cannot be launched again")
    return _with_attempt(search, replace(attempt, **_data(event, Attempt)), TrialState.QUEUED)


def _attempt_requeued(search: SearchRecord, event: Event) -> SearchRecord:
    attempt, data = _open_attempt(search, event), _data(event, Attempt)
    restart, node_hours = data["restart"], data["node_hours"]
    if restart <= attempt.restart or node_hours is None or node_hours < attempt.earlier_node_hours:
        raise ValueError(
            f"{attempt.trial}.{attempt.attempt} cannot go back to restart {restart}, {node_hours} node-hours"
        )
    changed = replace(attempt, restart=restart, earlier_node_hours=node_hours)
    return _with_attempt(search, replace(changed, nodes=(), started_at=None, unknown_since=None), TrialState.QUEUED)


def _attempt_running(search: SearchRecord, event: Event) -> SearchRecord:
    changed = replace(_open_attempt(search, event), **_data(event, Attempt))
    return _with_attempt(search, changed, TrialState.RUNNING)


def _attempt_changed(search: SearchRecord, event: Event) -> SearchRecord:
    return _with_attempt(search, replace(_open_attempt(search, event), **_data(event, Attempt)))


def _attempt_ended(search: SearchRecord, event: Event) -> SearchRecord:
    attempt, data = _open_attempt(search, event), _data(event, Attempt)
    _require_ending(event, data)
    outcome = data["outcome"]
    if data["state"] is TrialState.MEASURED and not _has_measurement(attempt, outcome):
        raise ValueError(f"{attempt.trial}.{attempt.attempt} was measured without a measurement")
    data["nodes"] = data["nodes"] or attempt.nodes
    if data["started_at"] is None:
        data["started_at"] = attempt.started_at
    return _with_attempt(search, replace(attempt, **data, unknown_since=None, waits_for=None))


def _has_measurement(attempt: Attempt, outcome: Outcome | None) -> bool:
    if outcome is None:
        return False
    return outcome.fabric is not None if attempt.trial == FABRIC_CHECK else outcome.metrics is not None


def _trial_ended(search: SearchRecord, event: Event) -> SearchRecord:
    trial, data = _open_trial(search, event), _data(event, Trial)
    _require_ending(event, data)
    state, last = data["state"], trial.last_attempt
    if last is not None and not last.state.is_ended:
        raise ValueError(f"trial {trial.trial} cannot end before its attempt {last.attempt} has")
    if state is TrialState.MEASURED and (last is None or last.state is not state):
        raise ValueError(f"trial {trial.trial} was not measured by its last attempt")
    return _with_trial(search, replace(trial, **data))


def _require_ending(event: Event, data: Mapping[str, Any]) -> None:
    """Check state and reason of an ended attempt or trial: a measured one has no reason, all others have one."""
    state, reason = data["state"], data["reason"]
    if not state.is_ended:
        raise ValueError(f"{event.kind} with state {state}, which is not an ending")
    if (state is TrialState.MEASURED) != (reason is None):
        raise ValueError(f"{event.kind} with state {state} and reason {reason}")


def _pilot_submitted(search: SearchRecord, event: Event) -> SearchRecord:
    name = decode_value(str, event.data["pilot"], "pilot")
    if name in search.pilots:
        raise ValueError(f"pilot {name} was submitted twice")
    return _with_pilot(search, name, PilotUsage(**_data(event, PilotUsage), submitted_at=event.at))


def _pilot_ended(search: SearchRecord, event: Event) -> SearchRecord:
    name = decode_value(str, event.data["pilot"], "pilot")
    if name not in search.open_pilots:
        raise ValueError(f"pilot {name} has ended, but no such pilot is open")
    data = _data(event, PilotUsage)
    if data["node_hours"] is None:
        raise ValueError(f"pilot {name} has ended without node_hours")
    return _with_pilot(search, name, replace(search.pilots[name], **data))


def _with_pilot(search: SearchRecord, name: str, pilot: PilotUsage) -> SearchRecord:
    return replace(search, pilots={**search.pilots, name: pilot})


def _fabric_check(search: SearchRecord, event: Event) -> SearchRecord:
    check, found = search.fabric_check, _data(event, FabricCheck)
    if check is None or check.trial.state is not TrialState.MEASURED or check.findings is not None:
        raise ValueError(f"{event.kind} without a measured check, or for the second time")
    if found["findings"] is None:
        raise ValueError(f"{event.kind} without findings")
    last = check.trial.attempts[-1]
    assert last.outcome is not None
    judged = replace(last, outcome=replace(last.outcome, fabric=None))  # thousands of times, in each row of the ledger
    return replace(search, fabric_check=replace(check, trial=check.trial.with_attempt(judged), **found))


def _best_changed(search: SearchRecord, event: Event) -> SearchRecord:
    name = decode_value(str | None, event.data["trial"], "trial")
    if name is not None and _known_trial(search, name).measured is None:
        raise ValueError(f"trial {name} was not measured and cannot be the best")
    return replace(search, best_trial=name)


def _driver_took_over(search: SearchRecord, event: Event) -> SearchRecord:
    if event.fencing == search.fencing:
        raise ValueError(f"a driver took the search over under lease {event.fencing}, which is not a new one")
    return search


_APPLY = {
    EventKind.SEARCH_STATE: _search_state,
    EventKind.TRIAL_PROPOSED: _trial_proposed,
    EventKind.ATTEMPT_SUBMITTED: _attempt_submitted,
    EventKind.ATTEMPT_LAUNCHED: _attempt_launched,
    EventKind.ATTEMPT_REQUEUED: _attempt_requeued,
    EventKind.ATTEMPT_RUNNING: _attempt_running,
    EventKind.ATTEMPT_UNKNOWN: _attempt_changed,
    EventKind.ATTEMPT_WAITS: _attempt_changed,
    EventKind.ATTEMPT_ENDED: _attempt_ended,
    EventKind.TRIAL_ENDED: _trial_ended,
    EventKind.PILOT_SUBMITTED: _pilot_submitted,
    EventKind.PILOT_ENDED: _pilot_ended,
    EventKind.FABRIC_CHECK: _fabric_check,
    EventKind.BEST_CHANGED: _best_changed,
    EventKind.DRIVER_TOOK_OVER: _driver_took_over,
}


def _require_name(name: str, letter: str) -> None:
    """Check the name of a trial or attempt, which is also that of its folder."""
    if not re.fullmatch(f"{letter}[0-9]+", name):
        raise ValueError(f"{name!r} is not a name of a {'trial' if letter == 't' else 'attempt'}")


def _open_trial(search: SearchRecord, event: Event) -> Trial:
    trial = _known_trial(search, decode_value(str, event.data["trial"], "trial"))
    if trial.state.is_ended:
        raise ValueError(f"trial {trial.trial} has ended and is frozen")
    return trial


def _known_trial(search: SearchRecord, name: str) -> Trial:
    try:
        return search.trial(name)
    except KeyError:
        raise ValueError(f"trial {name} was never proposed") from None


def _open_attempt(search: SearchRecord, event: Event) -> Attempt:
    last = _open_trial(search, event).last_attempt
    if last is None or last.attempt != event.data["attempt"] or last.state.is_ended:
        raise ValueError(f"{event.kind} for {event.data['trial']}.{event.data['attempt']}, which is not in flight")
    return last


def _with_attempt(search: SearchRecord, attempt: Attempt, state: TrialState | None = None) -> SearchRecord:
    """The search with this attempt added or changed; `state` is its own and its trial's by now."""
    trial = search.trial(attempt.trial)
    if state is not None:
        trial, attempt = replace(trial, state=state), replace(attempt, state=state)
    return _with_trial(search, trial.with_attempt(attempt))


def _with_trial(search: SearchRecord, trial: Trial) -> SearchRecord:
    if search.fabric_check is not None and trial.trial == FABRIC_CHECK:
        return replace(search, fabric_check=replace(search.fabric_check, trial=trial))
    place = search.index_of(trial.trial)
    return replace(search, trials=(*search.trials[:place], trial, *search.trials[place + 1 :]))
