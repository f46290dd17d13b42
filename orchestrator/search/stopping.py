"""When a search may go on, and why it ends: pure functions of how it stands and of its limits."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.search.index import NUM_LAST_ENDED, SearchIndex
from trials.files.text import last_line
from trials.ledger.events import EndReason, SearchRecord
from trials.trial import Attempt, FailureReason, TrialState

IDENTICAL_FAILURES_TO_STOP = NUM_LAST_ENDED
_LAYOUT_INDEPENDENT = (FailureReason.SCRIPT_ERROR, FailureReason.LAUNCH_FAILURE)


MIN_TRIALS_FOR_LIMIT = 3
"""Measured trials after which their durations say something about the next one's."""

TIME_LIMIT_FACTOR = 2.0
"""How much longer than the longest of them a trial may take: layouts differ, and so do nodes and file systems."""

TIME_LIMIT_MARGIN_S = 300.0
"""What every trial may take on top: a first start on other nodes (importing torch from a cold file system, a collective
library finding its network) takes minutes and does not scale with how long the earlier trials took."""


@dataclass(frozen=True)
class Limits:
    """What a search may use. `max_trials` counts layouts; retries and repeats count against node-hours only. None is
    no limit. `finalists` is how many of the best layouts are measured again at the end, `finalist_repeats` how often.
    """

    max_trials: int
    parallel_trials: int
    budget_node_hours: float | None = None
    max_wall_time_s: float | None = None
    idle_limit_s: float | None = None
    finalists: int = 0
    finalist_repeats: int = 1


def remaining_layouts(num_layouts: int, limits: Limits) -> int:
    """How many more layouts may be proposed, after so many."""
    return limits.max_trials - num_layouts


def fits_budget(index: SearchIndex, budget_node_hours: float, num_nodes: int, time_limit_s: float) -> bool:
    """Whether one more attempt fits, with all that is in flight reserved to its time limit."""
    spoken_for = index.node_hours_used + index.node_hours_reserved
    return spoken_for + num_nodes * time_limit_s / 3600 <= budget_node_hours


def wall_time_exceeded(search: SearchRecord, limits: Limits, now: float) -> bool:
    """Whether the search, counted from its creation, has used its wall time."""
    return limits.max_wall_time_s is not None and now - search.created_at >= limits.max_wall_time_s


def is_idle(index: SearchIndex, limits: Limits, now: float) -> bool:
    """Whether nothing has started or ended for as long as the search may wait for its queue."""
    if limits.idle_limit_s is None or any(a.state is TrialState.RUNNING for a in index.in_flight):
        return False
    return now - index.last_moment >= limits.idle_limit_s


def attempts_over_budget(index: SearchIndex, limits: Limits) -> list[Attempt]:
    """The attempts to give up, of those that still wait for their nodes, so that the rest keeps within the budget."""
    if limits.budget_node_hours is None:
        return []
    over = index.node_hours_used + index.node_hours_reserved - limits.budget_node_hours
    given_up = []
    for attempt in reversed([a for a in index.in_flight if a.state is not TrialState.RUNNING]):
        if over <= 1e-9:
            break
        over -= attempt.reserved_node_hours - attempt.earlier_node_hours
        given_up.append(attempt)
    return given_up


def repeated_failure_excerpt(index: SearchIndex) -> str | None:
    """The excerpt when the last trials all failed alike for a reason no layout can cure, else None."""
    last = index.last_ended
    if len(last) < IDENTICAL_FAILURES_TO_STOP or any(t.reason not in _LAYOUT_INDEPENDENT for t in last):
        return None
    excerpts = [t.last_attempt.excerpt or "" for t in last]  # type: ignore[union-attr]
    return excerpts[-1] if len({last_line(text) for text in excerpts}) == 1 else None


def end_reason_without_value(reason: EndReason) -> EndReason:
    """The end reason of a search that measured nothing that counts: trying everything that promised anything means
    nothing is feasible."""
    exhausted = (EndReason.MAX_TRIALS, EndReason.SPACE_EXHAUSTED, EndReason.CONVERGED)
    return EndReason.NO_FEASIBLE_LAYOUT if reason in exhausted else reason


def time_limit_s(index: SearchIndex, most_s: float, num_nodes: int) -> float:
    """Seconds after which the next attempt on so many nodes is ended: at most `most_s`, the limit the search file sets.

    A shorter limit starts earlier on a full cluster and reserves less of the budget. A layout that needs longer ends
    as `time_limit`: slower than every trial measured before by more than the room, it would not have been the best, nor
    the best on its number of nodes.
    """
    if index.num_measured < MIN_TRIALS_FOR_LIMIT:
        return most_s
    return min(most_s, TIME_LIMIT_FACTOR * index.longest_s(num_nodes) + TIME_LIMIT_MARGIN_S)
