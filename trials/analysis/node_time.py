"""Node-hours by what they were spent on: measured steps, parts of starts, failures, the fabric check and the like.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum
from typing import Any

from trials.analysis.verdict import has_stopped_early
from trials.failure_policy import Ending, policy_of
from trials.ledger.events import SearchRecord
from trials.ranks.startup import StartupPart
from trials.trial import Attempt, Outcome, Trial, TrialState

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class NodeTime:
    """Node-hours that ended attempts, the fabric check and pilots were charged, and what they were spent on. What is
    left of `total` went to what no rank tells: the launch, the pauses between steps, a profile, the end.

    `measured` are those of measured steps, `startup` those before them as far as they are known, both of attempts that
    measured something. `preempted` are those of attempts that were preempted, and of runs before a requeue, whose work
    is lost, since a trial has no checkpoint; `unmeasured` are all those of other attempts,
    `fabric_check` those of the check with its retry, `idle` those of pilots that no attempt paid for, `drivers` those
    of the Slurm jobs that drivers ran in.
    """

    total: float
    measured: float
    startup: Mapping[StartupPart, float]
    unmeasured: float
    idle: float
    drivers: float = 0.0
    preempted: float = 0.0
    fabric_check: float = 0.0

    @property
    def measured_share(self) -> float | None:
        """Fraction of the node-hours that measured something; None where none were charged."""
        return min(1.0, self.measured / self.total) if self.total > 0 else None

    def to_json(self) -> dict[str, Any]:
        """The contract's `node_time` object."""
        return {
            "measured_share": self.measured_share,
            "measured_node_hours": self.measured,
            "startup_node_hours": {part.value: hours for part, hours in self.startup.items()},
            "unmeasured_node_hours": self.unmeasured,
            "preempted_node_hours": self.preempted,
            "fabric_check_node_hours": self.fabric_check,
            "idle_node_hours": self.idle,
            "driver_node_hours": self.drivers,
        }


def search_node_time(search: SearchRecord) -> NodeTime:
    """Node-hours of a search, its pilots and the jobs of its drivers included."""
    pilots = [pilot.node_hours for pilot in search.pilots.values()]
    return node_time(search.trials, pilots, search.driver_node_hours, search.fabric_check_node_hours)


def node_time(
    trials: Iterable[Trial],
    idle_node_hours: Iterable[float] = (),
    driver_node_hours: float = 0.0,
    fabric_check_node_hours: float = 0.0,
) -> NodeTime:
    """Node-hours of these trials' ended attempts, of pilots that no attempt paid for (below 0 where attempts were
    charged more than their pilot held), of drivers, and of the fabric check."""
    ended = [attempt for trial in trials for attempt in trial.attempts if attempt.state.is_ended]
    told = [(attempt, outcome) for attempt in ended if (outcome := _measurement_of(attempt)) is not None]
    idle = fsum(idle_node_hours)
    startup = [(part, hours) for attempt, outcome in told for part, hours in _startup_node_hours(attempt, outcome)]
    known = {part for part, _ in startup}
    earlier = fsum(attempt.earlier_node_hours for attempt in ended)
    return NodeTime(
        total=max(0.0, _charged(ended) + fabric_check_node_hours + idle) + driver_node_hours,
        measured=fsum(attempt.num_nodes * _measured_s(outcome) / _SECONDS_PER_HOUR for attempt, outcome in told),
        startup={part: fsum(hours for p, hours in startup if p is part) for part in StartupPart if part in known},
        unmeasured=fsum(_last_run(a) for a in ended if _measurement_of(a) is None and not _was_preempted(a)),
        preempted=fsum(_last_run(a) if _was_preempted(a) else 0.0 for a in ended) + earlier,
        fabric_check=fabric_check_node_hours,
        idle=max(0.0, idle),
        drivers=driver_node_hours,
    )


def _charged(attempts: Iterable[Attempt]) -> float:
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
