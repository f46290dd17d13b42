"""Limits of a search, its stop conditions and the time limit of an attempt: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.search.index import NUM_LAST_ENDED, SearchIndex
from trials.analysis.finals import DEFAULT_FINALS, Finals
from trials.failure_policy import policy_of
from trials.files.text import last_line
from trials.ledger.events import EndReason, SearchRecord
from trials.trial import Attempt, TrialState

IDENTICAL_FAILURES_TO_STOP = NUM_LAST_ENDED


TOLERANCE_NODE_HOURS = 1e-9
"""Excess over the budget that is rounding."""

MIN_TRIALS_FOR_LIMIT = 3
"""Measured trials before durations limit the next one."""

TIME_LIMIT_FACTOR = 2.0
"""Factor on the longest of them: layouts differ, and so do nodes and file systems."""

TIME_LIMIT_MARGIN_S = 300.0
"""Seconds on top for every trial.

A first start on other nodes (importing torch from a cold file system, a collective library finding its network) takes
minutes and does not scale with the earlier trials.
"""


@dataclass(frozen=True)
class Limits:
    """Limits of a search; None is no limit.

    `max_trials` counts layouts; retries and repeats count against node-hours only. `finalists` is the number of best
    layouts measured again at the end, `finalist_repeats` how often each is; at most, where `finals` ends them earlier.
    `are_paired`: layouts compete with themselves on the other software of an experiment, not with each other.
    """

    max_trials: int
    parallel_trials: int
    budget_node_hours: float | None = None
    max_wall_time_s: float | None = None
    idle_limit_s: float | None = None
    finalists: int = 0
    finalist_repeats: int = 1
    finals: Finals = DEFAULT_FINALS
    are_paired: bool = False


def limits_of(spec: SearchSpec) -> Limits:
    """The limits of the search file."""
    wanted = spec.search
    return Limits(
        wanted.max_trials,
        wanted.parallel_trials,
        wanted.budget_node_hours,
        wanted.max_wall_time_s,
        wanted.idle_limit_s,
        finalists=wanted.finalists,
        finalist_repeats=wanted.finalist_repeats,
        finals=wanted.finals,
        are_paired=wanted.against is not None,
    )


def remaining_layouts(num_layouts: int, limits: Limits) -> int:
    """Layouts that may still be proposed, after `num_layouts`."""
    return limits.max_trials - num_layouts


def fits_budget(index: SearchIndex, budget_node_hours: float, needed_node_s: float) -> bool:
    """True if one more attempt fits that needs so many node-seconds, with everything in flight reserved up to its time
    limit."""
    committed = index.node_hours_used + index.node_hours_reserved
    return needed_node_s == 0.0 or committed + needed_node_s / 3600 <= budget_node_hours


def wall_time_exceeded(search: SearchRecord, limits: Limits, now: float) -> bool:
    """True if the search has used its wall time, counted from its creation."""
    return limits.max_wall_time_s is not None and now - search.created_at >= limits.max_wall_time_s


def is_idle(index: SearchIndex, limits: Limits, now: float) -> bool:
    """True if nothing has started or ended for the idle limit, and nothing is running."""
    if limits.idle_limit_s is None or any(a.state is TrialState.RUNNING for a in index.in_flight):
        return False
    return now - index.last_change_at >= limits.idle_limit_s


def node_hours_over_budget(index: SearchIndex, budget_node_hours: float) -> float:
    """Node-hours by which those used and reserved exceed the budget; below 0 where they do not."""
    return index.node_hours_used + index.node_hours_reserved - budget_node_hours


def attempts_over_budget(index: SearchIndex, budget_node_hours: float) -> list[Attempt]:
    """Attempts still waiting for nodes that have to be cancelled to keep the rest within the budget."""
    over = node_hours_over_budget(index, budget_node_hours)
    cancelled = []
    for attempt in reversed([a for a in index.in_flight if not (a.is_step or a.state is TrialState.RUNNING)]):
        if over <= TOLERANCE_NODE_HOURS:
            break
        over -= attempt.reserved_node_hours - attempt.earlier_node_hours
        cancelled.append(attempt)
    return cancelled


def repeated_failure_excerpt(index: SearchIndex) -> str | None:
    """Log excerpt of the last trials if they all failed alike for a reason independent of the layout, else None.

    A failing setting does not count, unless those with other settings fail, too, and nothing has run.
    """
    last = index.last_ended
    counts_settings = not index.setting_failures.has_run and len({t.layout.settings for t in last}) > 1
    reasons = [t.last_attempt.reason if counts_settings else t.reason for t in last]  # type: ignore[union-attr]
    if len(last) < IDENTICAL_FAILURES_TO_STOP or not all(policy_of(reason).stops_search for reason in reasons):
        return None
    excerpts = [t.last_attempt.excerpt or "" for t in last]  # type: ignore[union-attr]
    return excerpts[-1] if len({last_line(text) for text in excerpts}) == 1 else None


def unmeasurable_excerpt(index: SearchIndex) -> str | None:
    """Log excerpt of a trial after which every other would end without a measurement, too; None while there is none,
    and once something was measured."""
    if index.first_measured is not None:
        return None
    ended = (t.last_attempt for t in index.last_ended if policy_of(t.reason).stops_search_at_once)
    return next((attempt.excerpt or "" for attempt in ended if attempt is not None), None)


def program_change_detail(index: SearchIndex) -> str | None:
    """Sentence about the program's change between two trials of the search; None without one."""
    change = index.program_change
    return change and f"the program changed: {change}; to measure the changed program, start a new search"


def end_reason_without_value(reason: EndReason) -> EndReason:
    """End reason of a search without a usable measurement: NO_FEASIBLE_LAYOUT if everything worthwhile was tried."""
    exhausted = (EndReason.MAX_TRIALS, EndReason.SPACE_EXHAUSTED, EndReason.CONVERGED)
    return EndReason.NO_FEASIBLE_LAYOUT if reason in exhausted else reason


def time_limit_s(index: SearchIndex, max_s: float, num_nodes: int) -> float:
    """Time limit of the next attempt on `num_nodes` nodes, seconds; at most `max_s`, the search file's limit.

    A shorter limit starts earlier on a full cluster and reserves less of the budget. A layout that needs longer ends as
    `time_limit`: slower than every measured trial by more than the margin, it would not have been the best, nor
    the best on its number of nodes.
    """
    if index.num_measured < MIN_TRIALS_FOR_LIMIT:
        return max_s
    return min(max_s, TIME_LIMIT_FACTOR * index.longest_s(num_nodes) + TIME_LIMIT_MARGIN_S)


def remaining_work(search: SearchRecord, limits: Limits, num_finalists: int, now: float) -> RemainingWork:
    """All that the search may still do, for planning pilots: layouts, attempts in flight, and repeats of up to
    `num_finalists`."""
    repeats = num_finalists * limits.finalist_repeats
    attempts = remaining_layouts(search.num_layouts, limits) + len(search.in_flight) + repeats
    budget, wall_s = limits.budget_node_hours, limits.max_wall_time_s
    return RemainingWork(
        max(1, attempts),
        limits.parallel_trials,
        None if budget is None else max(0.0, budget - search.node_hours_used - search.node_hours_reserved),
        None if wall_s is None else max(0.0, wall_s - (now - search.created_at)),
        search.pilots,
    )
