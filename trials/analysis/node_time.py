"""Node-hours by what they were spent on: measured steps, parts of starts, failures, the fabric check and the like.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import fsum

from trials.analysis.verdict import has_stopped_early
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import SearchRecord
from trials.outcome_types import MeasuredMetrics
from trials.ranks.startup import StartupPart
from trials.trial import Attempt, Outcome, Trial, TrialState

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class NodeTime:
    """Node-hours of ended attempts, of the fabric check, and of idle pilots, and what they were spent on. The rest of
    them went to what no rank tells: launches, pauses between steps, profiles, ends."""

    node_hours: float
    """All of them."""
    measured_share: float | None
    """Fraction of them that measured steps took; null before any were used."""
    measured_node_hours: float
    """Measured steps, also of trials that stopped early."""
    startup_node_hours: Mapping[StartupPart, float]
    """Starts of the same attempts, as far as they are known."""
    unmeasured_node_hours: float
    """Other attempts without a measurement."""
    preempted_node_hours: float
    """Attempts that were preempted, and runs before a requeue, whose work is lost: a trial has no checkpoint."""
    fabric_check_node_hours: float
    """The fabric check, with its retries."""
    idle_node_hours: float
    """What pilots held beyond the time of the steps on their own nodes; 0 until all have ended."""


def search_node_time(search: SearchRecord) -> NodeTime:
    """Node-hours of a search, its pilots included."""
    steps = _node_hours(attempt for attempt in search.attempts if attempt.is_step)
    held = fsum(pilot.node_hours or 0.0 for pilot in search.pilots.values())
    idle = 0.0 if search.open_pilots else max(0.0, held - steps)
    return node_time(search.trials, idle, 0.0 if search.fabric_check is None else search.fabric_check.node_hours)


def held_node_hours(search: SearchRecord, now: float) -> float:
    """Node-hours that open pilots have held so far, each counted from the first start in it to its reservation; `now`
    is UTC seconds since the epoch.

    Pilots start in the order of their submission.
    """
    charged = {pilot.job_id for pilot in search.pilots.values()}
    first_starts: dict[str, float] = {}
    for attempt in (attempt for attempt in search.attempts if attempt.is_step):
        job_id = (attempt.job_id or "").partition(".")[0]
        if attempt.started_at is not None and job_id not in charged:
            first_starts[job_id] = min(attempt.started_at, first_starts.get(job_id, attempt.started_at))
    begun = zip(search.open_pilots.values(), sorted(first_starts.values()), strict=False)
    return fsum(p.num_nodes * min(max(0.0, now - since), p.reserved_s) / _SECONDS_PER_HOUR for p, since in begun)


def node_time(
    trials: Iterable[Trial],
    idle_node_hours: float = 0.0,
    fabric_check_node_hours: float = 0.0,
) -> NodeTime:
    """Node-hours of these trials' ended attempts, of idle pilots, and of the fabric check."""
    ended = [attempt for trial in trials for attempt in trial.attempts if attempt.state.is_ended]
    told = [(attempt.num_nodes, *found) for attempt in ended if (found := _measurement_of(attempt)) is not None]
    startup = {part: fsum(node_s) for part in StartupPart if (node_s := _startup_node_s(told, part))}
    earlier = fsum(attempt.earlier_node_hours for attempt in ended)
    total = _node_hours(ended) + fabric_check_node_hours + idle_node_hours
    measured = fsum(nodes * _measured_s(outcome, metrics) for nodes, outcome, metrics in told) / _SECONDS_PER_HOUR
    return NodeTime(
        node_hours=total,
        measured_share=min(1.0, measured / total) if total > 0 else None,
        measured_node_hours=measured,
        startup_node_hours={part: node_s / _SECONDS_PER_HOUR for part, node_s in startup.items()},
        unmeasured_node_hours=fsum(_last_run(a) for a in ended if _measurement_of(a) is None and not _was_preempted(a)),
        preempted_node_hours=fsum(_last_run(a) if _was_preempted(a) else 0.0 for a in ended) + earlier,
        fabric_check_node_hours=fabric_check_node_hours,
        idle_node_hours=idle_node_hours,
    )


def _node_hours(attempts: Iterable[Attempt]) -> float:
    return fsum(attempt.node_hours or 0.0 for attempt in attempts)


def _last_run(attempt: Attempt) -> float:
    """Node-hours without those of the runs before a requeue."""
    return max(0.0, (attempt.node_hours or 0.0) - attempt.earlier_node_hours)


def _was_preempted(attempt: Attempt) -> bool:
    return policy_of(attempt.reason).ending is Ending.PREEMPTED


def _measurement_of(attempt: Attempt) -> tuple[Outcome, MeasuredMetrics] | None:
    """Outcome and metrics of an attempt that measured something: one that was measured, or stopped early."""
    has_measured = attempt.state is TrialState.MEASURED or has_stopped_early(attempt)
    outcome = attempt.outcome
    metrics = None if outcome is None else outcome.metrics
    return None if outcome is None or metrics is None or not has_measured else (outcome, metrics)


def _measured_s(outcome: Outcome, metrics: MeasuredMetrics) -> float:
    """Time of the measured steps as they ran, which may be shorter than full steps."""
    start = metrics.warmup_steps or 0
    times_s = outcome.step_times_s[start : start + metrics.measured_steps]
    return fsum(times_s) if times_s else metrics.measured_steps * metrics.step_time_s


def _startup_node_s(told: Iterable[tuple[int, Outcome, MeasuredMetrics]], part: StartupPart) -> list[float]:
    """Node-seconds of this part of each start that told it; all ranks wait for it."""
    known = ((nodes, (metrics.startup_parts_s or {}).get(part)) for nodes, _, metrics in told)
    return [nodes * seconds for nodes, seconds in known if seconds is not None]
