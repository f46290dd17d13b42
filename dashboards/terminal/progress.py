"""Progress of a search and its attempts in flight, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from search_spaces.schema.durations import parse_duration_s
from trials.analysis.node_time import NodeTime, held_node_hours
from trials.analysis.verdict import num_layouts_tried
from trials.ledger.events import SearchRecord, SearchState
from trials.ranks.startup import StartupPart
from trials.trial import Attempt, TrialKind, TrialState

NODE_HOURS = "node-hours"
"""Name of the limit `search.budget_node_hours`."""
_MIN_TRIALS_FOR_ESTIMATE = 3


@dataclass(frozen=True)
class LimitUsage:
    """Used part of one limit of the search file; `text` is the same with units."""

    name: str
    used: float
    limit: float
    text: str


def limit_usages(search: SearchRecord, now: float) -> list[LimitUsage]:
    """Usage of every limit that the search has. `now` is UTC seconds since the epoch."""
    return list(_limit_usages(search, search.ended_at or now))


def _limit_usages(search: SearchRecord, now: float) -> Iterator[LimitUsage]:
    limits = search.spec.get("search") or {}
    if (most := limits.get("max_trials")) is not None:
        tried = num_layouts_tried(search)
        yield LimitUsage("layouts", tried, most, f"{tried} of up to {most}")
    if (budget := limits.get("budget_node_hours")) is not None:
        held = held_node_hours(search, now)
        used, reserved = search.node_hours_used + held, search.node_hours_reserved - held
        more = f", {reserved:.3g} reserved" if reserved else ""
        yield LimitUsage(NODE_HOURS, used, budget, f"{used:.3f} of {budget:g}{more}")
    if (wall := limits.get("max_wall_time")) is not None and search.replayed_table is None:
        passed, most_s = now - search.created_at, parse_duration_s(wall)
        yield LimitUsage("time", passed, most_s, f"{format_clock(passed)} of {format_clock(most_s)}")


def describe_time(search: SearchRecord, now: float) -> str | None:
    """Time since the search began, and an upper bound of what remains; None on a simulated clock."""
    if search.replayed_table is not None:
        return None
    remaining = describe_time_remaining(search, now)
    elapsed = f"{format_clock((search.ended_at or now) - search.created_at)} elapsed"
    return elapsed if remaining is None else f"{elapsed}, {remaining}"


def describe_time_remaining(search: SearchRecord, now: float) -> str | None:
    """Upper bound of the remaining time: all allowed layouts are tried at the mean pace so far.

    None where too few trials have ended for an estimate, and once finalists are repeated. A search that converges ends
    sooner.
    """
    limit = (search.spec.get("search") or {}).get("max_trials")
    ended = [t for t in search.trials if t.kind is TrialKind.SEARCH and t.state.is_ended]
    if limit is None or search.state is not SearchState.RUNNING or search.replayed_table is not None:
        return None
    left = limit - len(ended)
    if len(ended) < _MIN_TRIALS_FOR_ESTIMATE or left <= 0 or any(t.kind is TrialKind.REPEAT for t in search.trials):
        return None
    seconds = _busy_s(search, now) / len(ended) * left
    return f"up to {format_clock(seconds)} remaining"


def describe_in_flight(attempt: Attempt, now: float, is_simulated: bool = False) -> str:
    """Attempt in flight in one line: state, duration, nodes."""
    parts = flight_parts(attempt, now, is_simulated)
    words = "".join(part if isinstance(part, str) else format_clock(part) for part in parts)
    return f"{attempt.trial}.{attempt.attempt} {words}"


def flight_parts(attempt: Attempt, now: float, is_simulated: bool = False) -> Iterator[str | float]:
    """State of an attempt in flight and what it waits for, its place, and since when both are so: words, and durations
    in seconds. A simulated clock has none."""
    yield f"{attempt.state}" + ("" if attempt.waits_for is None else f" ({attempt.waits_for})")
    since = attempt.started_at if attempt.state is TrialState.RUNNING else attempt.submitted_at
    if since is not None and not is_simulated:
        yield " for "
        yield max(0.0, now - since)
    yield _flight_place(attempt)
    if attempt.unknown_since is not None and not is_simulated:
        yield ", unreachable for "
        yield max(0.0, now - attempt.unknown_since)


def _flight_place(attempt: Attempt) -> str:
    """Nodes, or else the job."""
    if attempt.nodes:
        return " on " + _join_nodes(attempt.nodes)
    return "" if attempt.job_id is None else f" as {attempt.job_id}"


def format_node_hours(search: SearchRecord) -> str:
    """Node-hours used of the budget, plus those reserved for what is in flight; simulated ones of a replayed table."""
    limit = (search.spec.get("search") or {}).get("budget_node_hours")
    of_limit = "" if limit is None else f" of {limit:g}"
    reserved_hours = search.node_hours_reserved
    reserved = f", {reserved_hours:.3g} reserved" if reserved_hours else ""
    simulated = "" if search.replayed_table is None else " simulated"
    return f"{search.node_hours_used:.3f}{of_limit}{simulated} node-hours used{reserved}"


def describe_node_time(found: NodeTime) -> str | None:
    """Share of the node-hours that measured something, and what else they were spent on, without what took less than
    half a percent. None before any were used."""
    if found.measured_share is None:
        return None
    others = {words: hours / found.node_hours for words, hours in _other_node_hours(found)}
    shown = [f"{100 * share:.0f} % {words}" for words, share in others.items() if share >= _SMALLEST_SHARE]
    words = f"{100 * found.measured_share:.0f} % of {found.node_hours:.3f} node-hours measured steps"
    return f"{words}; {', '.join(shown)}" if shown else words


_SMALLEST_SHARE = 0.005
_STARTUP_GROUPS = {
    "imports": (StartupPart.IMPORT,),
    "rendezvous and build": (StartupPart.RENDEZVOUS, StartupPart.BUILD),
    "compilation": (StartupPart.COMPILE,),
    "warm-up": (StartupPart.FIRST_STEP, StartupPart.WARMUP),
}


def _other_node_hours(found: NodeTime) -> Iterator[tuple[str, float]]:
    for words, parts in _STARTUP_GROUPS.items():
        yield words, sum(found.startup_node_hours.get(part, 0.0) for part in parts)
    yield "the fabric check", found.fabric_check_node_hours
    yield "preempted or requeued runs", found.preempted_node_hours
    yield "attempts that measured nothing", found.unmeasured_node_hours
    yield "idle pilots", found.idle_node_hours


def format_clock(seconds: float) -> str:
    """`0:07`, `12:30`, `3:05:00`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _busy_s(search: SearchRecord, now: float) -> float:
    """Seconds during which any attempt was in flight; excludes the time without a driver."""
    attempts = [a for trial in search.trials for a in trial.attempts if a.submitted_at is not None]
    busy_s = until = 0.0
    for begin, end in sorted((a.submitted_at or 0.0, a.ended_at or now) for a in attempts):
        busy_s += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy_s


_MAX_NODES_NAMED = 4


def _join_nodes(nodes: Sequence[str]) -> str:
    more = len(nodes) - _MAX_NODES_NAMED
    return " ".join(nodes[:_MAX_NODES_NAMED]) + (f" and {more} more" if more > 0 else "")
