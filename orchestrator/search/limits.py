"""When a search may go on, and why it ends: pure functions of its record and its limits."""

from __future__ import annotations

from dataclasses import dataclass

from trials.classify import RETRIES
from trials.ledger.events import EndReason, SearchRecord
from trials.text import last_line
from trials.trial import Attempt, FailureReason, Trial, TrialKind, TrialState

ALIKE_FAILURES_THAT_STOP = 3
_NOT_THE_LAYOUTS_FAULT = (FailureReason.SCRIPT_ERROR, FailureReason.LAUNCH_FAILURE)


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


def layouts_left(search: SearchRecord, limits: Limits) -> int:
    """How many more layouts may be proposed."""
    return limits.max_trials - sum(trial.kind is TrialKind.SEARCH for trial in search.trials)


def fits_budget(search: SearchRecord, limits: Limits, num_nodes: int, time_limit_s: float) -> bool:
    """Whether one more attempt fits, with all that is in flight reserved to its time limit."""
    if limits.budget_node_hours is None:
        return True
    spoken_for = search.node_hours_used + search.node_hours_reserved
    return spoken_for + num_nodes * time_limit_s / 3600 <= limits.budget_node_hours


def cut_short(search: SearchRecord) -> bool:
    """Whether a trial of a search that goes on ended with something left to try: only the budget does that."""
    return any(t.state.is_ended and (t.last_attempt is None or may_retry(t, t.last_attempt)) for t in search.trials)


def wall_time_is_over(search: SearchRecord, limits: Limits, now: float) -> bool:
    """Whether the search, counted from its creation, has used its wall time."""
    return limits.max_wall_time_s is not None and now - search.created_at >= limits.max_wall_time_s


def is_idle(search: SearchRecord, limits: Limits, now: float) -> bool:
    """Whether nothing has started or ended for as long as the search may wait for its queue."""
    if limits.idle_limit_s is None:
        return False
    moments = (m for t in search.trials for a in t.attempts for m in (a.started_at, a.ended_at) if m is not None)
    runs = any(attempt.state is TrialState.RUNNING for attempt in search.in_flight)
    return not runs and now - max(search.created_at, *moments, search.created_at) >= limits.idle_limit_s


def waiting_over_budget(search: SearchRecord, limits: Limits) -> list[Attempt]:
    """The attempts to give up, of those that still wait for their nodes, so that the rest keeps within the budget."""
    if limits.budget_node_hours is None:
        return []
    over = search.node_hours_used + search.node_hours_reserved - limits.budget_node_hours
    given_up = []
    for attempt in reversed([a for a in search.in_flight if a.state is not TrialState.RUNNING]):
        if over <= 1e-9:
            break
        over -= attempt.reserved_node_hours - attempt.earlier_node_hours
        given_up.append(attempt)
    return given_up


def may_retry(trial: Trial, attempt: Attempt) -> bool:
    """Whether a trial whose last attempt ended like this is tried again."""
    if attempt.reason is None:
        return False
    alike = sum(a.reason is attempt.reason for a in trial.attempts)
    return alike <= RETRIES.get(attempt.reason, 0)


def broken_script(search: SearchRecord) -> str | None:
    """The excerpt when the last trials all failed alike for a reason no layout can cure, else None."""
    ended = [t for t in search.trials if t.state.is_ended and t.last_attempt is not None]
    ended.sort(key=lambda t: t.last_attempt.ended_at or 0.0)  # type: ignore[union-attr]
    last = ended[-ALIKE_FAILURES_THAT_STOP:]
    if len(last) < ALIKE_FAILURES_THAT_STOP or any(t.reason not in _NOT_THE_LAYOUTS_FAULT for t in last):
        return None
    excerpts = [t.last_attempt.excerpt or "" for t in last]  # type: ignore[union-attr]
    return excerpts[-1] if len({last_line(text) for text in excerpts}) == 1 else None


def end_reason_without_value(reason: EndReason) -> EndReason:
    """The end reason of a search that measured nothing: trying everything it could means nothing is feasible."""
    exhausted = (EndReason.MAX_TRIALS, EndReason.SPACE_EXHAUSTED)
    return EndReason.NO_FEASIBLE_LAYOUT if reason in exhausted else reason
