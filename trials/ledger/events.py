"""Every change of a search's state as one event: a line of the journal, and one transaction of the ledger.

The driver records an event in the journal first and then applies it to the database. A search is the fold of its
events, so the ledger can be rebuilt from the journal anywhere, and a database that missed the last lines catches up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from typing import Any

from search_spaces.layouts.layout import Layout
from trials.ledger.event_data import is_whole, require_rates, require_types
from trials.trial import (
    Attempt,
    FailureReason,
    LowerStrEnum,
    Outcome,
    Trial,
    TrialKind,
    TrialState,
    require_schema,
    utc_seconds,
    utc_text,
)

EVENT_SCHEMA = "parlay.event/1"


class SearchState(LowerStrEnum):
    CREATED = "created"
    """Recorded; no driver has begun."""
    RUNNING = "running"
    """A driver proposes and launches trials."""
    STOPPING = "stopping"
    """No new trials; those in flight are awaited or cancelled."""
    COMPLETED = "completed"
    """Ended by itself."""
    FAILED = "failed"
    """Ended without a valid measurement."""
    CANCELLED = "cancelled"
    """Ended by the user."""

    @property
    def is_ended(self) -> bool:
        return self in (SearchState.COMPLETED, SearchState.FAILED, SearchState.CANCELLED)


class EndReason(LowerStrEnum):
    MAX_TRIALS = "max_trials"
    """`search.max_trials` layouts were tried."""
    BUDGET = "budget"
    """`search.budget_node_hours` is used up."""
    CONVERGED = "converged"
    """No remaining layout is likely to be faster."""
    SPACE_EXHAUSTED = "space_exhausted"
    """Every layout was tried."""
    WALL_TIME = "wall_time"
    """`search.max_wall_time` has passed."""
    IDLE = "idle"
    """No trial has started or ended for `search.idle_limit`."""
    NO_FEASIBLE_LAYOUT = "no_feasible_layout"
    """Every planned layout was tried, and none gave a valid measurement."""
    SCRIPT_ERROR = "script_error"
    """Three trials in a row crashed or failed to launch with the same last line."""
    CANCELLED_BY_USER = "cancelled_by_user"
    """The user cancelled it."""
    SUBMISSION_REJECTED = "submission_rejected"
    """The cluster rejects its jobs."""


class EventKind(LowerStrEnum):
    """Kinds of events; each is described by the names in its `data`.

    `trial_ended` follows the last `attempt_ended` of a trial that is not tried again. So a trial between two attempts
    is one whose last attempt has ended and which itself has not.
    """

    SEARCH_CREATED = "search_created"
    """spec (search.json, and `folder`: the search folder's absolute path), code_hash."""
    SEARCH_STATE = "search_state"
    """state, end_reason, detail."""
    TRIAL_PROPOSED = "trial_proposed"
    """trial, layout, kind, prediction."""
    ATTEMPT_SUBMITTED = "attempt_submitted"
    """trial, attempt, nonce, num_nodes, time_limit_s, reserved_s, exclude: the intent to launch."""
    ATTEMPT_LAUNCHED = "attempt_launched"
    """trial, attempt, job_id: the launcher accepted it."""
    ATTEMPT_REQUEUED = "attempt_requeued"
    """trial, attempt, restart, node_hours (of its runs so far): back in the queue."""
    ATTEMPT_RUNNING = "attempt_running"
    """trial, attempt, started_at, nodes."""
    ATTEMPT_UNKNOWN = "attempt_unknown"
    """trial, attempt, unknown_since (null: known again)."""
    ATTEMPT_WAITS = "attempt_waits"
    """trial, attempt, waits_for (null: it continues, or waits in the queue)."""
    ATTEMPT_ENDED = "attempt_ended"
    """trial, attempt, state, reason, outcome, excerpt, nodes, started_at, ended_at, node_hours."""
    TRIAL_ENDED = "trial_ended"
    """trial, state, reason."""
    PILOT_ENDED = "pilot_ended"
    """pilot, job_id, node_hours (held and booked by no attempt; below 0 where attempts booked more)."""
    BEST_CHANGED = "best_changed"
    """trial (null: none)."""
    DRIVER_TOOK_OVER = "driver_took_over"
    """host, pid: the first event under a new lease, which fences the old one."""


class FencedError(ValueError):
    """A writer whose lease another driver has taken over: it must stop and write nothing more."""


@dataclass(frozen=True)
class Event:
    """`seq` counts from 1 without gaps; `fencing` is the lease's number; `at` is UTC seconds since the epoch.

    Times are kept to the microsecond and `data` as plain JSON (ValueError for a number that is not finite, TypeError
    for what JSON has no word for), so that an event read back equals the one that was written.
    """

    seq: int
    fencing: int
    at: float
    kind: EventKind
    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        plain = json.loads(json.dumps(self.data, allow_nan=False))
        object.__setattr__(self, "at", round(self.at, 6))
        object.__setattr__(self, "data", _with_times(plain, lambda seconds: round(seconds, 6)))

    def to_json(self) -> dict[str, Any]:
        """The journal's form: times as RFC 3339 text."""
        return {
            "schema": EVENT_SCHEMA,
            "seq": self.seq,
            "fencing": self.fencing,
            "at": utc_text(self.at),
            "kind": self.kind.value,
            "data": _with_times(self.data, utc_text),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The inverse of `to_json`. ValueError for another schema, an unknown kind or a value of another type, KeyError
        for a missing field."""
        require_schema(data, EVENT_SCHEMA)
        require_types(data["data"])
        if not (is_whole(data["seq"]) and is_whole(data["fencing"])):
            raise ValueError(f"its seq {data['seq']!r:.80} or fencing {data['fencing']!r:.80} is no whole number")
        kind, at = EventKind(data["kind"]), utc_seconds(data["at"])
        return cls(data["seq"], data["fencing"], at, kind, _with_times(data["data"], utc_seconds))


_TIMES = ("started_at", "ended_at", "unknown_since")


def _with_times(data: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: change(v) if name in _TIMES and v is not None else v for name, v in data.items()}


@dataclass(frozen=True)
class SearchRecord:
    """A search as the sum of its events. `trials` are in the order they were proposed; `pilots` are those that are
    over, with the node-hours that each held beside what attempts have booked."""

    search_id: str
    spec: Mapping[str, Any]
    code_hash: str
    created_at: float
    state: SearchState = SearchState.CREATED
    end_reason: EndReason | None = None
    detail: str | None = None
    best_trial: str | None = None
    ended_at: float | None = None
    last_seq: int = 0
    fencing: int = 0
    trials: tuple[Trial, ...] = ()
    pilots: Mapping[str, float] = field(default_factory=dict)

    def trial(self, name: str) -> Trial:
        """The trial of this name; KeyError if there is none."""
        return self.trials[self.index_of(name)]

    def index_of(self, name: str) -> int:
        """Where the trial of this name stands; KeyError if there is none. Drivers name trials by their places."""
        usual = int(name[1:]) - 1 if name[1:].isdecimal() else -1
        if 0 <= usual < len(self.trials) and self.trials[usual].trial == name:
            return usual
        for place, trial in enumerate(self.trials):
            if trial.trial == name:
                return place
        raise KeyError(name)

    @property
    def num_layouts(self) -> int:
        """How many layouts were proposed; repeats count no more."""
        return sum(trial.kind is TrialKind.SEARCH for trial in self.trials)

    @property
    def folder(self) -> str | None:
        """The search folder's absolute path, where its maker said it."""
        return self.spec.get("folder")

    @property
    def in_flight(self) -> tuple[Attempt, ...]:
        """Attempts submitted and not ended."""
        return tuple(a for t in self.trials for a in t.attempts if not a.state.is_ended)

    @property
    def node_hours_used(self) -> float:
        booked = (a.node_hours or 0.0 for t in self.trials for a in t.attempts)
        return fsum([*booked, *self.pilots.values()])

    @property
    def node_hours_reserved(self) -> float:
        return sum(a.reserved_node_hours for a in self.in_flight)


def apply(search: SearchRecord | None, search_id: str, event: Event) -> SearchRecord:
    """The search after `event`.

    ValueError for an event out of order or one that contradicts the state, KeyError for one that lacks what is always
    told of its kind, FencedError for one of an old lease.
    """
    _require_next(search, event)
    if search is None:
        data = event.data
        record = SearchRecord(search_id, data["spec"], data["code_hash"], event.at)
    else:
        record = _APPLY[event.kind](search, event)
    return replace(record, last_seq=event.seq, fencing=event.fencing)


def fold(search_id: str, events: Iterable[Event]) -> SearchRecord | None:
    """The search after all of these events; None where there are none. ValueError as `apply`."""
    search = None
    for event in events:
        search = apply(search, search_id, event)
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
    trial = Trial(
        trial=data["trial"],
        layout=Layout.from_json(data["layout"]),
        kind=TrialKind(data["kind"]),
        prediction=data["prediction"],
        proposed_at=event.at,
    )
    return replace(search, trials=(*search.trials, trial))


def _attempt_submitted(search: SearchRecord, event: Event) -> SearchRecord:
    data = event.data
    trial = _open_trial(search, data["trial"])
    if any(a.attempt == data["attempt"] or not a.state.is_ended for a in trial.attempts):
        raise ValueError(f"{data['trial']}.{data['attempt']} was submitted while another attempt is there")
    _require_name(data["attempt"], "a")
    attempt = Attempt(
        trial=data["trial"],
        attempt=data["attempt"],
        nonce=data["nonce"],
        num_nodes=data["num_nodes"],
        time_limit_s=data["time_limit_s"],
        reserved_s=data["reserved_s"],
        exclude=tuple(data["exclude"]),
        submitted_at=event.at,
    )
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
    if state is TrialState.MEASURED and outcome is None:
        raise ValueError(f"{attempt.trial}.{attempt.attempt} was measured without an outcome")
    if state is TrialState.MEASURED and outcome is not None:
        require_rates(outcome.measured)
    started_at = data["started_at"]
    changed = replace(
        attempt,
        state=state,
        reason=reason,
        outcome=outcome,
        excerpt=data["excerpt"],
        nodes=tuple(data["nodes"] or attempt.nodes),
        started_at=attempt.started_at if started_at is None else started_at,
        ended_at=data["ended_at"],
        node_hours=data["node_hours"],
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
    """How an attempt or a trial ended: measured needs no reason, everything else has one."""
    state, word = TrialState(event.data["state"]), event.data["reason"]
    if not state.is_ended:
        raise ValueError(f"{event.kind} with state {state}, which is no ending")
    if (state is TrialState.MEASURED) != (word is None):
        raise ValueError(f"{event.kind} with state {state} and reason {word}")
    return state, None if word is None else FailureReason(word)


def _pilot_ended(search: SearchRecord, event: Event) -> SearchRecord:
    name = event.data["pilot"]
    if name in search.pilots:
        raise ValueError(f"pilot {name} has ended twice")
    return replace(search, pilots={**search.pilots, name: float(event.data["node_hours"])})


def _best_changed(search: SearchRecord, event: Event) -> SearchRecord:
    name = event.data["trial"]
    if name is not None and _known_trial(search, name).state is not TrialState.MEASURED:
        raise ValueError(f"trial {name} was not measured and cannot be the best")
    return replace(search, best_trial=name)


def _driver_took_over(search: SearchRecord, event: Event) -> SearchRecord:
    if event.fencing == search.fencing:
        raise ValueError(f"a driver took the search over under lease {event.fencing}, which is no new one")
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
    EventKind.BEST_CHANGED: _best_changed,
    EventKind.DRIVER_TOOK_OVER: _driver_took_over,
}


def _require_name(name: str, letter: str) -> None:
    """Trials and attempts have folders of their names: what could lead elsewhere is none."""
    if not re.fullmatch(f"{letter}[0-9]+", name):
        raise ValueError(f"{name!r} is no name of a {'trial' if letter == 't' else 'attempt'}")


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
