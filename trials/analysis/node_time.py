"""Node-hours by what they were spent on: measured steps, parts of starts, failures, the fabric check and the like.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum

from trials.analysis.verdict import has_stopped_early
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import SearchRecord
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
    told = [(attempt, outcome) for attempt in ended if (outcome := _measurement_of(attempt)) is not None]
    startup = [(part, hours) for attempt, outcome in told for part, hours in _startup_node_hours(attempt, outcome)]
    known = {part for part, _ in startup}
    earlier = fsum(attempt.earlier_node_hours for attempt in ended)
    total = _node_hours(ended) + fabric_check_node_hours + idle_node_hours
    measured = fsum(attempt.num_nodes * _measured_s(outcome) / _SECONDS_PER_HOUR for attempt, outcome in told)
    return NodeTime(
        node_hours=total,
        measured_share=min(1.0, measured / total) if total > 0 else None,
        measured_node_hours=measured,
        startup_node_hours={part: fsum(h for p, h in startup if p is part) for part in StartupPart if part in known},
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


def _measurement_of(attempt: Attempt) -> Outcome | None:
    """The outcome of an attempt that measured something: one that was measured, or stopped early."""
    has_measured = attempt.state is TrialState.MEASURED or has_stopped_early(attempt)
    outcome = attempt.outcome
    return outcome if has_measured and outcome is not None and outcome.metrics is not None else None


def _measured_s(outcome: Outcome) -> float:
    """Time of the measured steps as they ran, which may be shorter than full steps."""
    metrics = outcome.metrics
    assert metrics is not None
    start = metrics.warmup_steps or 0
    times_s = outcome.step_times_s[start : start + metrics.measured_steps]
    return fsum(times_s) if times_s else metrics.measured_steps * metrics.step_time_s


def _startup_node_hours(attempt: Attempt, outcome: Outcome) -> Iterator[tuple[StartupPart, float]]:
    """The known parts of a start, which all ranks wait for."""
    metrics = outcome.metrics
    assert metrics is not None
    for part in StartupPart:
        seconds = (metrics.startup_parts_s or {}).get(part)
        if seconds is not None:
            yield part, attempt.num_nodes * seconds / _SECONDS_PER_HOUR
