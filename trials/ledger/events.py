"""Events of a search: every change of state is a line of the journal and a transaction of the ledger.

The driver records an event in the journal first and then applies it to the database. A search is the fold of its events
(fold.py), so the ledger can be rebuilt from the journal anywhere, and a database that missed the last lines catches up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from trials.failure_policy import policy_of
from trials.ledger.event_data import is_whole, require_data_types
from trials.trial import (
    Attempt,
    LowerStrEnum,
    Trial,
    TrialKind,
    require_schema,
    utc_seconds,
    utc_text,
)
from trials.trial_json import with_times

EVENT_SCHEMA = "parlay.event/1"

PROPOSAL = ("trial", "layout", "kind", "prediction")
"""Fields of a trial in its `trial_proposed`."""
INTENT = ("trial", "attempt", "nonce", "num_nodes", "time_limit_s", "reserved_s", "exclude")
"""Fields of an attempt in its `attempt_submitted`."""


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
    """trial, attempt, state, reason, outcome, excerpt, nodes, leaves (of the nodes; [] unknown), started_at, ended_at,
    node_hours, billed_hours (of its own Slurm job; null where it has none, or Slurm did not tell)."""
    TRIAL_ENDED = "trial_ended"
    """trial, state, reason."""
    PILOT_ENDED = "pilot_ended"
    """pilot, job_id, node_hours (held and booked by no attempt; below 0 where attempts booked more), billed_hours
    (of the whole job, its steps included; null where Slurm did not tell)."""
    DRIVER_JOB_USED = "driver_job_used"
    """job_id, node_share, node_hours, billed_hours (so far; null where Slurm did not tell): a Slurm job that the driver
    runs in, or ran in. The last event of a job counts."""
    FABRIC_CHECK = "fabric_check"
    """attempt, state (of the check's job); submitted: nonce, num_nodes, time_limit_s, reserved_s; later job_id,
    started_at, nodes; at its end ended_at, node_hours, billed_hours, reason, excerpt, slow_nodes, num_available,
    findings, links (null: none)."""
    BEST_CHANGED = "best_changed"
    """trial (null: none)."""
    DRIVER_TOOK_OVER = "driver_took_over"
    """host, pid: the first event under a new lease, which fences the old one."""


class FencedError(ValueError):
    """Raised when another driver has taken over this writer's lease: the writer must stop."""


@dataclass(frozen=True)
class Event:
    """One event. `seq` counts from 1 without gaps; `fencing` is the lease's number; `at` is UTC seconds since the
    epoch.

    Times are kept to the microsecond and `data` as plain JSON (ValueError for a number that is not finite, TypeError
    for what JSON cannot express), so that an event read back equals the one written.
    """

    seq: int
    fencing: int
    at: float
    kind: EventKind
    data: Mapping[str, Any]

    def __post_init__(self) -> None:
        plain = json.loads(json.dumps(self.data, allow_nan=False))
        object.__setattr__(self, "at", round(self.at, 6))
        object.__setattr__(self, "data", with_times(plain, lambda seconds: round(seconds, 6)))

    def to_json(self) -> dict[str, Any]:
        """The journal's form: times as RFC 3339 text."""
        return {
            "schema": EVENT_SCHEMA,
            "seq": self.seq,
            "fencing": self.fencing,
            "at": utc_text(self.at),
            "kind": self.kind.value,
            "data": with_times(self.data),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Event:
        """The inverse of `to_json`. ValueError for another schema, an unknown kind or a value of another type, KeyError
        for a missing field."""
        require_schema(data, EVENT_SCHEMA)
        require_data_types(data["data"])
        if not (is_whole(data["seq"]) and is_whole(data["fencing"])):
            raise ValueError(f"its seq {data['seq']!r:.80} or fencing {data['fencing']!r:.80} is not a whole number")
        kind, at = EventKind(data["kind"]), utc_seconds(data["at"])
        return cls(data["seq"], data["fencing"], at, kind, with_times(data["data"], utc_seconds))


@dataclass(frozen=True)
class DriverJobUsage:
    """Node-hours that a Slurm job of the search's driver has held so far: `node_share` of one node while it ran; and
    its billing hours, None where Slurm did not tell."""

    node_share: float
    node_hours: float
    billed_hours: float | None = None


@dataclass(frozen=True)
class PilotUsage:
    """Node-hours that an ended pilot held and no attempt was charged for; and the billing hours of the whole job, None
    where Slurm did not tell."""

    node_hours: float
    billed_hours: float | None = None


FABRIC_CHECK = "t0000"
"""Name of the fabric check's job, where a trial has its own."""


@dataclass(frozen=True)
class FabricCheck:
    """Fabric check of a search: its job and, after its end, the nodes that trials avoid as long as enough are left of
    the `num_available` that they may get, sentences about what was found, and the measured links (None: none), as
    `Links.to_json` writes them."""

    attempt: Attempt
    slow_nodes: tuple[str, ...] = ()
    num_available: int = 0
    findings: tuple[str, ...] = ()
    links: Mapping[str, Any] | None = None

    @property
    def is_in_flight(self) -> bool:
        return not self.attempt.state.is_ended

    @property
    def is_over(self) -> bool:
        """True if nothing more follows: it has ended, and was not stopped by the machine at its first attempt."""
        if self.is_in_flight:
            return False
        reason = self.attempt.reason
        return reason is None or self.attempt.attempt != "a1" or not policy_of(reason).retries


@dataclass(frozen=True)
class SearchRecord:
    """State of a search after its events. `trials` are in the order of their proposals; `pilots` are those that ended,
    by name; `driver_jobs` are the Slurm jobs of its drivers, by id."""

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
    pilots: Mapping[str, PilotUsage] = field(default_factory=dict)
    driver_jobs: Mapping[str, DriverJobUsage] = field(default_factory=dict)
    fabric_check: FabricCheck | None = None

    def trial(self, name: str) -> Trial:
        """The trial of this name; KeyError if there is none."""
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
        """Attempts submitted and not ended."""
        return tuple(a for t in self.trials for a in t.attempts if not a.state.is_ended)

    @property
    def node_hours_used(self) -> float:
        booked = (a.node_hours or 0.0 for t in self.trials for a in t.attempts)
        drivers = (job.node_hours for job in self.driver_jobs.values())
        pilots = (pilot.node_hours for pilot in self.pilots.values())
        return fsum([*booked, *pilots, *drivers, self.fabric_check_node_hours])

    @property
    def fabric_check_node_hours(self) -> float:
        """Node-hours of the fabric check so far; 0 without one."""
        return 0.0 if self.fabric_check is None else self.fabric_check.attempt.node_hours or 0.0

    @property
    def billed_hours(self) -> float | None:
        """Slurm's billing hours of the jobs that have ended, and of the driver's so far; None without any, and where
        Slurm did not tell those of all."""
        checks = [] if self.fabric_check is None else [self.fabric_check.attempt]
        attempts = (*checks, *(a for t in self.trials for a in t.attempts))
        jobs = [attempt.billed_hours for attempt in attempts if attempt.node_hours and not attempt.is_step]
        jobs += [pilot.billed_hours for pilot in self.pilots.values()]
        jobs += [job.billed_hours for job in self.driver_jobs.values()]
        known = [hours for hours in jobs if hours is not None]
        return fsum(known) if known and len(known) == len(jobs) else None

    @property
    def driver_node_hours(self) -> float:
        """Node-hours of the Slurm jobs that the search's drivers run in."""
        return fsum(job.node_hours for job in self.driver_jobs.values())

    @property
    def node_hours_reserved(self) -> float:
        check = self.fabric_check
        checking = 0.0 if check is None or not check.is_in_flight else check.attempt.reserved_node_hours
        return checking + sum(a.reserved_node_hours for a in self.in_flight)


def replayed_table(launcher: Mapping[str, Any] | None) -> str | None:
    """Path of the measured table that a launcher section names to be replayed; None where trials run."""
    if launcher is None or launcher.get("kind") != "simulated":
        return None
    return str(launcher.get("table") or "a table")
