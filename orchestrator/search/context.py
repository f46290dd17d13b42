"""A search as its driver sees and changes it: its record and what follows from it, and who is told of a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.event_store import EventStore
from orchestrator.search.index import SearchIndex
from orchestrator.search.stopping import Limits, fits_budget, time_limit_s
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import Objective
from trials.ledger.events import EndReason, Event, EventKind, SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Trial


@dataclass(frozen=True)
class SearchObjective:
    """What the search is after: the objective, the batch whose layouts compete, what is measured first, how much memory
    has to stay free, and what else matters beside the objective."""

    objective: Objective
    global_batch_size: int
    first: Sequence[Layout] = ()
    headroom: MemoryHeadroom | None = None
    others: tuple[Objective, ...] = ()

    @property
    def baseline_keys(self) -> set[str]:
        return {layout.key for layout in self.first}


@dataclass(frozen=True)
class DriverCallbacks:
    """What the loop calls besides its work: after every event; for the user's wish to cancel; to keep the lease; to
    say what the user should know; for what is predicted of a layout, None where that is nothing; in every turn, with
    the trials that have not ended and how many more it would begin, for how many of these it may begin now."""

    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    cancel_requested: Callable[[], bool] = lambda: False
    renew_lease: Callable[[], None] = lambda: None
    note: Callable[[str], None] = lambda text: None
    predict: Callable[[Layout], Mapping[str, Any] | None] = lambda layout: None
    grant_slots: Callable[[int, int], int] = lambda held, more: more


NO_CALLBACKS = DriverCallbacks()
"""Nobody is told, and nobody is asked."""


class SearchContext:
    """What the steps of a driver's turn share. The search goes on by events alone: each is written down, and then told
    to the hooks. One thread; `is_interrupted` may be set from a signal handler."""

    def __init__(
        self,
        history: EventStore,
        factory: AttemptFactory,
        launcher: Launcher,
        goal: SearchObjective,
        limits: Limits,
        callbacks: DriverCallbacks,
    ):
        self.event_store = history
        self.factory = factory
        self.launcher = launcher
        self.goal = goal
        self.limits = limits
        self.callbacks = callbacks
        self.is_interrupted = False
        """Whether nothing more is to be proposed or tried again."""
        self._index = SearchIndex(history.search, goal.objective, goal.global_batch_size, goal.headroom, goal.others)
        self._said: set[str] = set()

    @property
    def search(self) -> SearchRecord:
        return self.event_store.search

    @property
    def index(self) -> SearchIndex:
        """How the search stands, after the last event."""
        self._index.update(self.search)
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
        return self.factory.request(self.trial(attempt), attempt)

    def has_budget(self, num_nodes: int = 1) -> bool:
        return self.fits_budget(self.index, num_nodes)

    def can_afford(self, layout: Layout) -> bool:
        return self.has_budget(layout.num_nodes)

    def fits_budget(self, index: SearchIndex, num_nodes: int = 1) -> bool:
        """Whether an attempt on so many nodes may still begin, the search standing like that."""
        if (budget_node_hours := self.limits.budget_node_hours) is None:
            return True
        limit_s = time_limit_s(index, self.factory.time_limit_s, num_nodes)
        return fits_budget(index, budget_node_hours, num_nodes, self.launcher.longest_s(limit_s, num_nodes))

    def stop(self, reason: EndReason, detail: str | None = None) -> None:
        """Begin to end the search."""
        self.set_state(SearchState.STOPPING, reason, detail)

    def set_state(self, state: SearchState, reason: EndReason | None = None, detail: str | None = None) -> None:
        self.event(EventKind.SEARCH_STATE, state=state.value, end_reason=reason, detail=detail)

    def record(self, kind: EventKind, attempt: Attempt, /, **data: Any) -> None:
        """An event of this attempt."""
        self.event(kind, trial=attempt.trial, attempt=attempt.attempt, **data)

    def event(self, kind: EventKind, /, **data: Any) -> None:
        event = self.event_store.record(kind, **data)
        self.callbacks.on_event(self.search, event)

    def flush_ledger(self) -> None:
        """What a ledger without room was not told, and whoever is told of events after it."""
        refused = self.event_store.pending
        self.event_store.flush_ledger()
        for event in refused:
            self.callbacks.on_event(self.search, event)

    def say_once(self, words: str) -> None:
        """A remark for the user, each of them once."""
        if words not in self._said:
            self._said.add(words)
            self.callbacks.note(words)
