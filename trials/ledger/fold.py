"""Fold of a search's events into its record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trials.ledger.events import (
    FABRIC_CHECK,
    INTENT,
    PROPOSAL,
    DriverJobUsage,
    EndReason,
    Event,
    EventKind,
    FabricCheck,
    FencedError,
    PilotUsage,
    SearchRecord,
    SearchState,
)
from trials.trial import Attempt, FailureReason, Outcome, Trial, TrialState
from trials.trial_json import attempt_json, attempt_of, trial_of


def apply_event(search: SearchRecord | None, search_id: str, event: Event) -> SearchRecord:
    """The search after `event`.

    ValueError for an event out of order or one that contradicts the state, KeyError for one that lacks a field of its
    kind, FencedError for one of an old lease.
    """
    _require_next(search, event)
    if search is None:
        data = event.data
        record = SearchRecord(search_id, data["spec"], data["code_hash"], event.at)
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


def _search_state(search: SearchRecord, event: Event) -> SearchRecord:
    state, reason = SearchState(event.data["state"]), event.data["end_reason"]
    return replace(
        search,
        state=state,
        end_reason=None if reason is None else EndReason(reason),
        detail=event.data["detail"],
        ended_at=event.at if state.is_ended else None,
    )


def _trial_proposed(search: SearchRecord, event: Event) -> SearchRecord:
    data = event.data
    if any(t.trial == data["trial"] for t in search.trials):
        raise ValueError(f"trial {data['trial']} was proposed twice")
    _require_name(data["trial"], "t")
    trial = trial_of({name: data[name] for name in PROPOSAL} | {"proposed_at": event.at})
    return replace(search, trials=(*search.trials, trial))


def _attempt_submitted(search: SearchRecord, event: Event) -> SearchRecord:
    data = event.data
    trial = _open_trial(search, data["trial"])
    if any(a.attempt == data["attempt"] or not a.state.is_ended for a in trial.attempts):
        raise ValueError(f"{data['trial']}.{data['attempt']} was submitted while another attempt is there")
    _require_name(data["attempt"], "a")
    attempt = attempt_of({name: data[name] for name in INTENT} | {"submitted_at": event.at})
    return _with_trial(search, replace(trial.with_attempt(attempt), state=TrialState.SUBMITTED))


def _attempt_launched(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    if attempt.state is TrialState.RUNNING:
        raise ValueError(f"{attempt.trial}.{attempt.attempt} already runs and cannot be launched again")
    changed = replace(attempt, state=TrialState.QUEUED, job_id=event.data["job_id"])
    return _with_trial(search, replace(trial.with_attempt(changed), state=TrialState.QUEUED))


def _attempt_requeued(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    restart, node_hours = event.data["restart"], event.data["node_hours"]
    if restart <= attempt.restart or node_hours < attempt.earlier_node_hours:
        raise ValueError(
            f"{attempt.trial}.{attempt.attempt} cannot go back to restart {restart}, {node_hours} node-hours"
        )
    changed = replace(
        attempt,
        state=TrialState.QUEUED,
        restart=restart,
        earlier_node_hours=node_hours,
        nodes=(),
        started_at=None,
        unknown_since=None,
    )
    return _with_trial(search, replace(trial.with_attempt(changed), state=TrialState.QUEUED))


def _attempt_running(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    changed = replace(
        attempt,
        state=TrialState.RUNNING,
        started_at=event.data["started_at"],
        nodes=tuple(event.data["nodes"]),
    )
    return _with_trial(search, replace(trial.with_attempt(changed), state=TrialState.RUNNING))


def _attempt_unknown(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    return _with_trial(search, trial.with_attempt(replace(attempt, unknown_since=event.data["unknown_since"])))


def _attempt_waits(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    return _with_trial(search, trial.with_attempt(replace(attempt, waits_for=event.data["waits_for"])))


def _attempt_ended(search: SearchRecord, event: Event) -> SearchRecord:
    trial, attempt = _open_attempt(search, event)
    data = event.data
    state, reason = _ending(event)
    outcome = None if data["outcome"] is None else Outcome.from_json(data["outcome"])
    if state is TrialState.MEASURED and (outcome is None or outcome.metrics is None):
        raise ValueError(f"{attempt.trial}.{attempt.attempt} was measured without a measurement")
    started_at = data["started_at"]
    changed = replace(
        attempt,
        state=state,
        reason=reason,
        outcome=outcome,
        excerpt=data["excerpt"],
        nodes=tuple(data["nodes"] or attempt.nodes),
        leaves=tuple(data["leaves"]),
        started_at=attempt.started_at if started_at is None else started_at,
        ended_at=data["ended_at"],
        node_hours=data["node_hours"],
        billed_hours=data["billed_hours"],
        unknown_since=None,
        waits_for=None,
    )
    return _with_trial(search, trial.with_attempt(changed))


def _trial_ended(search: SearchRecord, event: Event) -> SearchRecord:
    trial = _open_trial(search, event.data["trial"])
    state, reason = _ending(event)
    last = trial.last_attempt
    if last is not None and not last.state.is_ended:
        raise ValueError(f"trial {trial.trial} cannot end before its attempt {last.attempt} has")
    if state is TrialState.MEASURED and (last is None or last.state is not state):
        raise ValueError(f"trial {trial.trial} was not measured by its last attempt")
    return _with_trial(search, replace(trial, state=state, reason=reason))


def _ending(event: Event) -> tuple[TrialState, FailureReason | None]:
    """State and reason of an ended attempt or trial: a measured one has no reason, all others have one."""
    state, word = TrialState(event.data["state"]), event.data["reason"]
    if not state.is_ended:
        raise ValueError(f"{event.kind} with state {state}, which is not an ending")
    if (state is TrialState.MEASURED) != (word is None):
        raise ValueError(f"{event.kind} with state {state} and reason {word}")
    return state, None if word is None else FailureReason(word)


def _pilot_ended(search: SearchRecord, event: Event) -> SearchRecord:
    name = event.data["pilot"]
    if name in search.pilots:
        raise ValueError(f"pilot {name} has ended twice")
    usage = PilotUsage(float(event.data["node_hours"]), event.data["billed_hours"])
    return replace(search, pilots={**search.pilots, name: usage})


def _driver_job_used(search: SearchRecord, event: Event) -> SearchRecord:
    job_id = event.data["job_id"]
    data = event.data
    usage = DriverJobUsage(float(data["node_share"]), float(data["node_hours"]), data["billed_hours"])
    if job_id is None or usage.node_hours < 0:
        raise ValueError(f"{event.kind} of job {job_id} with {usage.node_hours} node-hours")
    return replace(search, driver_jobs={**search.driver_jobs, job_id: usage})


def _fabric_check(search: SearchRecord, event: Event) -> SearchRecord:
    data, known = event.data, search.fabric_check
    state = TrialState(data["state"])
    if (state is TrialState.SUBMITTED) != (known is None or not known.is_in_flight):
        raise ValueError(f"a fabric check is {state} while {'none' if known is None else 'another'} is there")
    if state is TrialState.SUBMITTED or known is None:
        _require_name(data["attempt"], "a")
        intent = {name: data[name] for name in INTENT if name not in ("trial", "exclude")}
        earlier = 0.0 if known is None else known.attempt.node_hours or 0.0
        times = {"submitted_at": event.at, "earlier_node_hours": earlier}
        return replace(search, fabric_check=FabricCheck(attempt_of({"trial": FABRIC_CHECK, **intent, **times})))
    changed = attempt_of({**attempt_json(known.attempt), **{name: data[name] for name in data if name in _OF_CHECK}})
    found = {name: tuple(data.get(name, ())) for name in ("slow_nodes", "findings")}
    check = FabricCheck(changed, **found, num_available=data.get("num_available", 0), links=data.get("links"))
    return replace(search, fabric_check=check)


_OF_CHECK = (
    *("state", "job_id", "started_at", "nodes", "ended_at", "node_hours", "billed_hours", "reason", "excerpt"),
)
"""Fields of the check's attempt that its events change."""


def _best_changed(search: SearchRecord, event: Event) -> SearchRecord:
    name = event.data["trial"]
    if name is not None and _known_trial(search, name).state is not TrialState.MEASURED:
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
    EventKind.ATTEMPT_UNKNOWN: _attempt_unknown,
    EventKind.ATTEMPT_WAITS: _attempt_waits,
    EventKind.ATTEMPT_ENDED: _attempt_ended,
    EventKind.TRIAL_ENDED: _trial_ended,
    EventKind.PILOT_ENDED: _pilot_ended,
    EventKind.DRIVER_JOB_USED: _driver_job_used,
    EventKind.FABRIC_CHECK: _fabric_check,
    EventKind.BEST_CHANGED: _best_changed,
    EventKind.DRIVER_TOOK_OVER: _driver_took_over,
}


def _require_name(name: str, letter: str) -> None:
    """Check the name of a trial or attempt, which is also that of its folder."""
    if not re.fullmatch(f"{letter}[0-9]+", name):
        raise ValueError(f"{name!r} is not a name of a {'trial' if letter == 't' else 'attempt'}")


def _open_trial(search: SearchRecord, name: str) -> Trial:
    trial = _known_trial(search, name)
    if trial.state.is_ended:
        raise ValueError(f"trial {name} has ended and is frozen")
    return trial


def _known_trial(search: SearchRecord, name: str) -> Trial:
    try:
        return search.trial(name)
    except KeyError:
        raise ValueError(f"trial {name} was never proposed") from None


def _open_attempt(search: SearchRecord, event: Event) -> tuple[Trial, Attempt]:
    trial = _open_trial(search, event.data["trial"])
    last = trial.last_attempt
    if last is None or last.attempt != event.data["attempt"] or last.state.is_ended:
        raise ValueError(f"{event.kind} for {event.data['trial']}.{event.data['attempt']}, which is not in flight")
    return trial, last


def _with_trial(search: SearchRecord, trial: Trial) -> SearchRecord:
    place = search.index_of(trial.trial)
    return replace(search, trials=(*search.trials[:place], trial, *search.trials[place + 1 :]))
