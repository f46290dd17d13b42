"""Events of a search: every change of state is a line of the journal and a transaction of the ledger.

The driver records an event in the journal first and then applies it to the database. A search is the fold of its events
(fold.py), so the ledger can be rebuilt from the journal anywhere, and a database that missed the last lines catches up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from search_spaces.decoding import Amount, Count, JsonObject, encode_fields
from trials.trial import Attempt, LowerStrEnum, Trial, TrialKind, UtcSeconds


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
    PROGRAM_CHANGED = "program_changed"
    """The training script, or a Python file of its checkout, changed between two trials."""
    CANCELLED_BY_USER = "cancelled_by_user"
    """The user cancelled it."""
    SUBMISSION_REJECTED = "submission_rejected"
    """The cluster rejects its jobs."""


class EventKind(LowerStrEnum):
    """Kinds of events. `EVENT_FIELDS` has the names in the data of each, whose types are those of the record's fields.

    `trial_ended` follows the last `attempt_ended` of a trial that is not tried again. So a trial between two attempts
    is one whose last attempt has ended and which itself has not.
    """

    SEARCH_CREATED = "search_created"
    """`spec` is search.json with `folder`, the search folder's absolute path."""
    SEARCH_STATE = "search_state"
    TRIAL_PROPOSED = "trial_proposed"
    ATTEMPT_SUBMITTED = "attempt_submitted"
    """The intent to launch."""
    ATTEMPT_LAUNCHED = "attempt_launched"
    """The launcher accepted it."""
    ATTEMPT_REQUEUED = "attempt_requeued"
    """Back in the queue. `node_hours` are those of its runs so far."""
    ATTEMPT_RUNNING = "attempt_running"
    ATTEMPT_UNKNOWN = "attempt_unknown"
    """`unknown_since` null: known again."""
    ATTEMPT_WAITS = "attempt_waits"
    """`waits_for` null: it continues, or waits in the queue."""
    ATTEMPT_ENDED = "attempt_ended"
    """Lists that are unknown are empty. `billed_hours` are those of its own Slurm job, null where it has none."""
    TRIAL_ENDED = "trial_ended"
    PILOT_SUBMITTED = "pilot_submitted"
    """The intent to submit a pilot, whose nodes may be held for `reserved_s` at most."""
    PILOT_ENDED = "pilot_ended"
    """`node_hours` are what it is charged, and `billed_hours` what its job was billed, with its steps; `job_id` null:
    it was never submitted, or its end is unknown."""
    FABRIC_CHECK = "fabric_check"
    """What follows from the fabric check that was measured; its trial has the events of any trial."""
    BEST_CHANGED = "best_changed"
    """`trial` null: none."""
    DRIVER_TOOK_OVER = "driver_took_over"
    """The first event under a new lease, which fences the old one."""


_ATTEMPT = ("trial", "attempt")
_ENDED = ("state", "reason", "outcome", "excerpt", "nodes", "leaves", "started_at", "ended_at")
_USED = ("node_hours", "billed_hours")
EVENT_FIELDS: Mapping[EventKind, tuple[str, ...]] = {
    EventKind.SEARCH_CREATED: ("spec", "code_hash"),
    EventKind.SEARCH_STATE: ("state", "end_reason", "detail"),
    EventKind.TRIAL_PROPOSED: ("trial", "layout", "kind", "prediction"),
    EventKind.ATTEMPT_SUBMITTED: (*_ATTEMPT, "nonce", "num_nodes", "time_limit_s", "reserved_s", "is_step", "exclude"),
    EventKind.ATTEMPT_LAUNCHED: (*_ATTEMPT, "job_id"),
    EventKind.ATTEMPT_REQUEUED: (*_ATTEMPT, "restart", "node_hours"),
    EventKind.ATTEMPT_RUNNING: (*_ATTEMPT, "started_at", "nodes"),
    EventKind.ATTEMPT_UNKNOWN: (*_ATTEMPT, "unknown_since"),
    EventKind.ATTEMPT_WAITS: (*_ATTEMPT, "waits_for"),
    EventKind.ATTEMPT_ENDED: (*_ATTEMPT, *_ENDED, *_USED),
    EventKind.TRIAL_ENDED: ("trial", "state", "reason"),
    EventKind.PILOT_SUBMITTED: ("pilot", "num_nodes", "reserved_s"),
    EventKind.PILOT_ENDED: ("pilot", "job_id", *_USED),
    EventKind.FABRIC_CHECK: ("slow_nodes", "num_available", "findings", "links"),
    EventKind.BEST_CHANGED: ("trial",),
    EventKind.DRIVER_TOOK_OVER: ("host", "pid"),
}
"""Names in the data of every event of a kind."""


class FencedError(ValueError):
    """Raised when another driver has taken over this writer's lease: the writer must stop."""


@dataclass(frozen=True)
class Event(JsonObject):
    """One event. `seq` counts from 1 without gaps; `fencing` is the lease's number.

    Times are kept to the microsecond and `data` as plain JSON (ValueError for a number that is not finite, TypeError
    for what JSON cannot express), so that an event read back equals the one written.
    """

    SCHEMA = "parlay.event/1"

    seq: Count
    fencing: Count
    at: UtcSeconds
    kind: EventKind
    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", round(self.at, 6))
        plain = json.dumps(encode_fields(Attempt, self.data), allow_nan=False)
        object.__setattr__(self, "data", json.loads(plain))


@dataclass(frozen=True)
class PilotUsage:
    """A pilot's part of the budget: reserved as a whole before its submission, charged once its end is known.

    Each of its nodes may be held for `reserved_s` at most. `node_hours` are what it was charged, None until then;
    `billed_hours` are those of its job with all steps, None where Slurm did not tell. `job_id` is known with its end.
    """

    num_nodes: Count
    reserved_s: Amount
    submitted_at: UtcSeconds
    node_hours: float | None = None
    billed_hours: float | None = None
    job_id: str | None = None

    @property
    def reserved_node_hours(self) -> float:
        return self.num_nodes * self.reserved_s / 3600


FABRIC_CHECK = "t0000"
"""Name of the fabric check's trial, which is not among those of the search."""


@dataclass(frozen=True)
class FabricCheck:
    """Fabric check of a search: its trial and, once they are drawn from its times, the consequences: nodes that trials
    avoid as long as enough are left of the `num_available` that they may get, sentences about what was found (None:
    nothing is drawn yet), and the measured links (None: none), as `Links` has them in JSON."""

    trial: Trial
    slow_nodes: tuple[str, ...] = ()
    num_available: Count = 0
    findings: tuple[str, ...] | None = None
    links: Mapping[str, Any] | None = None

    @property
    def node_hours(self) -> float:
        """Node-hours of its attempts so far."""
        return fsum(attempt.node_hours or 0.0 for attempt in self.trial.attempts)


@dataclass(frozen=True)
class SearchRecord:
    """State of a search after its events. `trials` are in the order of their proposals, `pilots` in that of their
    submissions, by name."""

    search_id: str
    spec: Mapping[str, Any]
    code_hash: str
    created_at: UtcSeconds
    state: SearchState = SearchState.CREATED
    end_reason: EndReason | None = None
    detail: str | None = None
    best_trial: str | None = None
    ended_at: UtcSeconds | None = None
    last_seq: Count = 0
    fencing: Count = 0
    trials: tuple[Trial, ...] = ()
    pilots: Mapping[str, PilotUsage] = field(default_factory=dict)
    fabric_check: FabricCheck | None = None

    def trial(self, name: str) -> Trial:
        """The trial of this name, or the fabric check's; KeyError if there is none."""
        if name == FABRIC_CHECK and self.fabric_check is not None:
            return self.fabric_check.trial
        return self.trials[self.index_of(name)]

    def index_of(self, name: str) -> int:
        """Index of the trial of this name; KeyError without one. Drivers name trials by their indices."""
        usual = int(name[1:]) - 1 if name[1:].isdecimal() else -1
        if 0 <= usual < len(self.trials) and self.trials[usual].trial == name:
            return usual
        for place, trial in enumerate(self.trials):
            if trial.trial == name:
                return place
        raise KeyError(name)

    @property
    def num_layouts(self) -> int:
        """Number of layouts proposed, without repeats."""
        return sum(trial.kind is TrialKind.SEARCH for trial in self.trials)

    @property
    def folder(self) -> str | None:
        """The search folder's absolute path, where the spec has it."""
        return self.spec.get("folder")

    @property
    def replayed_table(self) -> str | None:
        """The measured table that answers in place of trials; None for a search that runs them."""
        return replayed_table(self.spec.get("launcher"))

    @property
    def in_flight(self) -> tuple[Attempt, ...]:
        """Attempts submitted and not ended, the fabric check's first."""
        return tuple(attempt for attempt in self.attempts if not attempt.state.is_ended)

    @property
    def node_hours_used(self) -> float:
        """Node-hours of ended jobs: attempts, unless they were steps, and pilots."""
        jobs = (a.node_hours or 0.0 for a in self.attempts if not a.is_step)
        return fsum([*jobs, *(pilot.node_hours or 0.0 for pilot in self.pilots.values())])

    @property
    def open_pilots(self) -> dict[str, PilotUsage]:
        """Pilots that are reserved and not charged yet, by name."""
        return {name: pilot for name, pilot in self.pilots.items() if pilot.node_hours is None}

    @property
    def billed_hours(self) -> float | None:
        """Slurm's billing hours of the jobs that have ended; None without any, and where Slurm did not tell those of
        all."""
        attempts = [attempt for attempt in self.attempts if not attempt.is_step]
        return sum_of_billed_hours([*attempts, *self.pilots.values()])

    @property
    def node_hours_reserved(self) -> float:
        """Upper bound of what attempts in flight and open pilots will be charged."""
        attempts = (attempt.reserved_node_hours for attempt in self.in_flight)
        return fsum([*attempts, *(pilot.reserved_node_hours for pilot in self.open_pilots.values())])

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts, the fabric check's first."""
        check = () if self.fabric_check is None else (self.fabric_check.trial,)
        return tuple(attempt for trial in (*check, *self.trials) for attempt in trial.attempts)


def sum_of_billed_hours(jobs: Iterable[Attempt | PilotUsage]) -> float | None:
    """Billing hours of the jobs that were charged; None without any, and where Slurm did not tell those of all."""
    told = [job.billed_hours for job in jobs if job.node_hours]
    known = [hours for hours in told if hours is not None]
    return fsum(known) if known and len(known) == len(told) else None


def replayed_table(launcher: Mapping[str, Any] | None) -> str | None:
    """Path of the measured table that a launcher section names to be replayed; None where trials run."""
    if launcher is None or launcher.get("kind") != "simulated":
        return None
    return str(launcher.get("table") or "a table")
