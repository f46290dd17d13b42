"""Shared state of a driver's steps: the search's record, its index, and the callbacks that hear of changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboards.log_once import LogOnce
from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.event_store import EventStore
from orchestrator.search.index import SearchIndex
from orchestrator.search.node_hours import CHECK_TIME_LIMIT_S
from orchestrator.search.stopping import Limits, attempts_over_budget, fits_budget, time_limit_s
from search_spaces.decoding import encode
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from slurm.job_state import NEVER_SATISFIED
from trials.analysis.ranking import Objective
from trials.attempt_result import LaunchStatus
from trials.ledger.events import EVENT_FIELDS, EndReason, Event, EventKind, SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

_log = logging.getLogger(__name__)


_NEVER_SATISFIED_DETAIL = (
    f"{NEVER_SATISFIED}: a job of launcher.slurm.dependency has not ended as the search's first jobs require; repeat"
    " it, or name another job"
)


@dataclass(frozen=True)
class SearchObjective:
    """Objective of a search.

    `global_batch_size` is the batch whose layouts compete. `initial_layouts` are measured before the sampler is asked
    (the baseline). `headroom` is the memory that has to stay free, `others` are further objectives.
    """

    objective: Objective
    global_batch_size: int
    initial_layouts: Sequence[Layout] = ()
    headroom: MemoryHeadroom | None = None
    others: tuple[Objective, ...] = ()

    @property
    def baseline_keys(self) -> set[str]:
        return {layout.key for layout in self.initial_layouts}


@dataclass(frozen=True)
class DriverCallbacks:
    """Callbacks of the search loop.

    `on_event` runs after every recorded event, `heartbeat` in every iteration and before every launch. `predict`
    returns the cost model's prediction for a layout, None without one. `grant_slots` is called in every iteration with
    the number of trials that have not ended and of those to start, and returns how many of the latter may start.
    `after_launches` is called at the end of each iteration: what could be launched is.
    """

    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    cancel_requested: Callable[[], bool] = lambda: False
    heartbeat: Callable[[], None] = lambda: None
    predict: Callable[[Layout], Mapping[str, Any] | None] = lambda layout: None
    grant_slots: Callable[[int, int], int] = lambda active, requested: requested
    after_launches: Callable[[], None] = lambda: None


NO_CALLBACKS = DriverCallbacks()
"""Callbacks that do nothing."""


class SearchContext:
    """State shared by the steps of one driver iteration.

    Every change of the search is an event: recorded first, then passed to the callbacks. Single-threaded, except that a
    signal handler may set `is_interrupted`.
    """

    def __init__(
        self,
        event_store: EventStore,
        factory: AttemptFactory,
        launcher: Launcher,
        goal: SearchObjective,
        limits: Limits,
        callbacks: DriverCallbacks,
        is_in_job: bool = False,
    ):
        self.event_store = event_store
        self.factory = factory
        self.launcher = launcher
        self.goal = goal
        self.limits = limits
        self.callbacks = callbacks
        self._is_in_job = is_in_job
        launcher.reserve_pilot = self._reserve_pilot
        self.is_interrupted = False
        """True if nothing more may be proposed or retried."""
        self._index = SearchIndex(
            event_store.search, goal.objective, goal.global_batch_size, goal.headroom, goal.others
        )
        self.log_once = LogOnce(_log)

    @property
    def search(self) -> SearchRecord:
        return self.event_store.search

    @property
    def index(self) -> SearchIndex:
        """Index of the search after its last event."""
        search = self.event_store.search
        if self._index.search is not search:
            self._index.update(search)
        return self._index

    @property
    def is_running(self) -> bool:
        return not self.is_interrupted and self.search.state is SearchState.RUNNING

    @property
    def cancel_reason(self) -> FailureReason:
        by_user = self.search.end_reason is EndReason.CANCELLED_BY_USER
        return FailureReason.CANCELLED_BY_USER if by_user else FailureReason.CANCELLED_BY_SEARCH

    def trial(self, attempt: Attempt) -> Trial:
        return self.search.trial(attempt.trial)

    def key(self, attempt: Attempt) -> str:
        return f"{self.search.search_id}.{attempt.trial}.{attempt.attempt}"

    def request(self, attempt: Attempt) -> LaunchRequest:
        trial = self.trial(attempt)
        request = self.factory.request(trial, attempt)
        return replace(request, is_repeat=self.index.is_repeat(trial), is_first=self.nothing_has_started)

    @property
    def nothing_has_started(self) -> bool:
        """True if no job of the search has started. A driver in a job has waited itself."""
        return not self._is_in_job and all(attempt.started_at is None for attempt in self.search.attempts)

    def stop_if_never_started(self, status: LaunchStatus) -> None:
        """End the search where a job can never start, since one that it depends on did not end as required."""
        is_hopeless = not status.started and NEVER_SATISFIED in (status.detail or "")
        if is_hopeless and self.search.state is not SearchState.STOPPING:
            self.stop(EndReason.SUBMISSION_REJECTED, _NEVER_SATISFIED_DETAIL)

    def has_budget(self) -> bool:
        return self.fits_budget(self.index)

    def has_budget_beside(self, node_s: float) -> bool:
        """True if the budget allows one attempt of the baseline, or on a node, beside these node-seconds."""
        if self.limits.budget_node_hours is None:
            return True
        num_nodes = self.goal.initial_layouts[0].num_nodes if self.goal.initial_layouts else 1
        needed_node_s = self.launcher.reservation_node_s(self.factory.time_limit_s, num_nodes)
        return fits_budget(self.index, self.limits.budget_node_hours, node_s + needed_node_s)

    def can_afford(self, layout: Layout, kind: TrialKind = TrialKind.SEARCH) -> bool:
        """True if the budget allows one more attempt of this layout; of a check, one that leaves room for a trial."""
        if kind is TrialKind.CHECK:
            return self.has_budget_beside(self.launcher.reservation_node_s(CHECK_TIME_LIMIT_S, layout.num_nodes))
        return self.fits_budget(self.index, layout.num_nodes, kind)

    def fits_budget(self, index: SearchIndex, num_nodes: int | None = None, kind: TrialKind = TrialKind.SEARCH) -> bool:
        """True if the budget allows one more attempt on `num_nodes` nodes, given the state in `index`; without them, of
        the size that needs least."""
        if self.limits.budget_node_hours is None:
            return True
        if num_nodes is None:  # a pilot is as large for any attempt, and more nodes have the shorter limit
            num_nodes = (self.launcher.num_choosable_nodes() if self.launcher.runs_steps else None) or 1
        limit_s = self.time_limit_s(index, num_nodes, kind)
        needed_node_s = self.launcher.reservation_node_s(limit_s, num_nodes)
        return fits_budget(index, self.limits.budget_node_hours, needed_node_s)

    def time_limit_s(self, index: SearchIndex, num_nodes: int, kind: TrialKind) -> float:
        """The launcher's limit of the next attempt of a trial of this kind, seconds."""
        if kind is TrialKind.CHECK:
            return CHECK_TIME_LIMIT_S
        return time_limit_s(index, self.factory.time_limit_s, num_nodes)

    def attempts_over_budget(self) -> list[Attempt]:
        """Attempts still waiting for nodes that the budget does not cover any more: too much is reserved, or there is
        neither a pilot for them nor room for another one. Raises LaunchPostponed."""
        budget_node_hours = self.limits.budget_node_hours
        if budget_node_hours is None:
            return []
        over = attempts_over_budget(self.index, budget_node_hours)
        return over + [attempt for attempt in self.index.in_flight if self.is_starved(attempt)]

    def is_starved(self, attempt: Attempt) -> bool:
        """True if it waits for a pilot, while there is none, nor room for one in the budget. Raises LaunchPostponed."""
        budget_node_hours = self.limits.budget_node_hours
        if budget_node_hours is None or self.search.open_pilots:
            return False
        if not attempt.is_step or attempt.state is TrialState.RUNNING:
            return False
        needed_node_s = self.launcher.reservation_node_s(attempt.time_limit_s, attempt.num_nodes)
        return not fits_budget(self.index, budget_node_hours, needed_node_s)

    def stop(self, reason: EndReason, detail: str | None = None) -> None:
        """Start to end the search."""
        self.set_state(SearchState.STOPPING, reason, detail)

    def set_state(self, state: SearchState, reason: EndReason | None = None, detail: str | None = None) -> None:
        self.event(EventKind.SEARCH_STATE, state=state.value, end_reason=reason, detail=detail)

    def propose(self, trial: Trial) -> None:
        self.event(EventKind.TRIAL_PROPOSED, **encode(trial, *EVENT_FIELDS[EventKind.TRIAL_PROPOSED]))

    def end_trial(self, trial: Trial, state: TrialState, reason: FailureReason | None) -> None:
        self.event(EventKind.TRIAL_ENDED, trial=trial.trial, state=state.value, reason=reason)

    def record(self, kind: EventKind, attempt: Attempt, /, **data: Any) -> None:
        """Record an event of this attempt."""
        self.event(kind, trial=attempt.trial, attempt=attempt.attempt, **data)

    def event(self, kind: EventKind, /, **data: Any) -> None:
        event = self.event_store.record(kind, **data)
        self.callbacks.on_event(self.search, event)

    def _reserve_pilot(self, name: str, num_nodes: int, reserved_s: float) -> None:
        """Record a pilot before it is submitted, unless an earlier driver has."""
        if name not in self.search.pilots:
            self.event(EventKind.PILOT_SUBMITTED, pilot=name, num_nodes=num_nodes, reserved_s=reserved_s)

    def flush_ledger(self) -> None:
        """Write the events that the ledger has refused so far, and pass them to the callbacks."""
        refused = self.event_store.pending
        self.event_store.flush_ledger()
        for event in refused:
            self.callbacks.on_event(self.search, event)
