"""How far a search is, and what it has in flight, in words for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from search_spaces.schema.durations import parse_duration_s
from trials.ledger.events import SearchRecord, SearchState
from trials.trial import Attempt, TrialKind, TrialState

_LEAST_TRIALS_FOR_A_PACE = 3


@dataclass(frozen=True)
class Share:
    """How much of one limit of the search file is used; `words` say it with its unit."""

    name: str
    used: float
    limit: float
    words: str


def shares(search: SearchRecord, now: float) -> list[Share]:
    """Every limit that the search has, and how much of it is used. `now` is UTC seconds since the epoch."""
    return list(_shares(search, search.ended_at or now))


def _shares(search: SearchRecord, now: float) -> Iterator[Share]:
    limits = search.spec.get("search") or {}
    if (most := limits.get("max_trials")) is not None:
        tried = _layouts_tried(search)
        yield Share("layouts", tried, most, f"{tried} of at most {most}")
    if (budget := limits.get("budget_node_hours")) is not None:
        used, reserved = search.node_hours_used, search.node_hours_reserved
        more = f", {reserved:.3g} reserved" if reserved else ""
        yield Share("node-hours", used, budget, f"{used:.3f} of {budget:g}{more}")
    if (wall := limits.get("max_wall_time")) is not None and not is_simulated(search):
        passed, most_s = now - search.created_at, parse_duration_s(wall)
        yield Share("time", passed, most_s, f"{clock_text(passed)} of {clock_text(most_s)}")


def describe_pace(search: SearchRecord, now: float) -> str | None:
    """When all layouts that may be tried will have been, if they go on as those before.

    None where too few have ended for a pace, and once finalists are measured again. It is no forecast of the end: a
    search that has converged ends sooner.
    """
    limit = (search.spec.get("search") or {}).get("max_trials")
    ended = [t for t in search.trials if t.kind is TrialKind.SEARCH and t.state.is_ended]
    if limit is None or search.state is not SearchState.RUNNING or is_simulated(search):
        return None
    left = limit - len(ended)
    if len(ended) < _LEAST_TRIALS_FOR_A_PACE or left <= 0 or _layouts_tried(search) < len(search.trials):
        return None
    seconds = _busy_s(search, now) / len(ended) * left
    return f"all {limit} layouts would take {clock_text(seconds)} more at this pace; it may end sooner"


def describe_in_flight(attempt: Attempt, now: float, is_simulated: bool = False) -> str:
    """An attempt in flight in one line: what it does, for how long, and where."""
    since = attempt.started_at if attempt.state is TrialState.RUNNING else attempt.submitted_at
    words = f"{attempt.trial}.{attempt.attempt} {attempt.state}"
    if attempt.waits_for is not None:
        words += f" ({attempt.waits_for})"
    if since is not None and not is_simulated:
        words += f" for {clock_text(now - since)}"
    if attempt.nodes:
        words += " on " + _named(attempt.nodes)
    elif attempt.job_id is not None:
        words += f" as {attempt.job_id}"
    if attempt.unknown_since is not None and not is_simulated:
        words += f", not seen for {clock_text(now - attempt.unknown_since)}"
    return words


def clock_text(seconds: float) -> str:
    """`0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def is_simulated(search: SearchRecord) -> bool:
    """Whether its times are those of a measured table, and not of any clock."""
    return (search.spec.get("launcher") or {}).get("kind") == "simulated"


def _busy_s(search: SearchRecord, now: float) -> float:
    """Seconds during which anything was in flight: while nobody drove the search, nothing was."""
    attempts = [a for trial in search.trials for a in trial.attempts if a.submitted_at is not None]
    busy_s = until = 0.0
    for begin, end in sorted((a.submitted_at or 0.0, a.ended_at or now) for a in attempts):
        busy_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy_s


def _layouts_tried(search: SearchRecord) -> int:
    return sum(trial.kind is TrialKind.SEARCH for trial in search.trials)


_MOST_NODES_NAMED = 4


def _named(nodes: Sequence[str]) -> str:
    more = len(nodes) - _MOST_NODES_NAMED
    return " ".join(nodes[:_MOST_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
