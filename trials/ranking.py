"""Which layout is the best, and which cannot be told from it: pure, over measured trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trials.trial import Trial, TrialState, Word

SUSPECT_FLAGS = frozenset({"suspect_node", "fingerprint_changed", "lone_outlier"})
"""Flags of a measurement that has to be repeated before it may be the best."""

_TOKENS_PER_BILLION = 1e9
_SECONDS_PER_HOUR = 3600


class Objective(Word):
    """What is optimised; the last is minimised, the others are maximised."""

    TOKENS_PER_SEC = "tokens_per_sec"
    TOKENS_PER_SEC_PER_GPU = "tokens_per_sec_per_gpu"
    NODE_HOURS_PER_BILLION_TOKENS = "node_hours_per_billion_tokens"


@dataclass(frozen=True)
class Ranking:
    """Measured trials of one global batch, best first; suspect measurements come last and are never the best.

    `ties` are the other layouts whose 95 % interval overlaps that of the best.
    """

    objective: Objective
    ordered: tuple[Trial, ...] = ()
    best: Trial | None = None
    ties: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class Speedup:
    """How many times faster one layout is than another, with the widest interval their own intervals allow.

    The interval is None where either of theirs is unknown.
    """

    ratio: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class _Speed:
    """A throughput, larger is better, with its 95 % interval where one is known."""

    value: float
    interval: tuple[float, float] | None

    def overlaps(self, other: _Speed) -> bool:
        """Whether the intervals meet; an unknown one is taken as the point itself."""
        low, high = self.interval or (self.value, self.value)
        other_low, other_high = other.interval or (other.value, other.value)
        return low <= other_high and other_low <= high


def rank(trials: Sequence[Trial], objective: Objective, global_batch_size: int) -> Ranking:
    """Order the measured trials of this global batch (sequences per step) by their point estimates."""
    counted = [t for t in trials if _is_measured(t) and t.layout.global_batch_size == global_batch_size]
    ordered = sorted(counted, key=lambda t: (_is_suspect(t), -_speed(t, objective).value))
    if not ordered or _is_suspect(ordered[0]):
        return Ranking(objective, tuple(ordered))
    best = ordered[0]
    ties = tuple(t for t in ordered[1:] if _is_tie(t, best, objective))
    return Ranking(objective, tuple(ordered), best, ties)


def value_of(trial: Trial, objective: Objective) -> float:
    """The objective of a measured trial turned so that larger is better; ValueError for any other trial.

    Node-hours per token are minimised, so their place takes tokens per second and node.
    """
    if not _is_measured(trial):
        raise ValueError(f"trial {trial.trial} is {trial.state} and has no value")
    return _speed(trial, objective).value


def speedup_over(baseline: Trial, trial: Trial, objective: Objective) -> Speedup | None:
    """How many times faster `trial` is than `baseline`; None unless both were measured at one global batch."""
    if not (_is_measured(trial) and _is_measured(baseline)):
        return None
    if trial.layout.global_batch_size != baseline.layout.global_batch_size:
        return None
    new, old = _speed(trial, objective), _speed(baseline, objective)
    if new.interval is None or old.interval is None:
        return Speedup(new.value / old.value)
    return Speedup(new.value / old.value, new.interval[0] / old.interval[1], new.interval[1] / old.interval[0])


def best_json(ranking: Ranking) -> dict[str, Any] | None:
    """The contract's `best` object; None where nothing counts as best. `value` is the objective in its own unit."""
    best = ranking.best
    if best is None or best.measured is None:
        return None
    return {
        "trial": best.trial,
        "layout": best.layout.to_json(),
        "objective": ranking.objective.value,
        "value": _own_unit(value_of(best, ranking.objective), ranking.objective),
        "tokens_per_sec": best.measured["tokens_per_sec"],
        "tokens_per_sec_low": best.measured.get("tokens_per_sec_low"),
        "tokens_per_sec_high": best.measured.get("tokens_per_sec_high"),
        "ties": [tie.trial for tie in ranking.ties],
    }


def _is_measured(trial: Trial) -> bool:
    return trial.state is TrialState.MEASURED


def _is_suspect(trial: Trial) -> bool:
    return not SUSPECT_FLAGS.isdisjoint(trial.flags)


def _is_tie(trial: Trial, best: Trial, objective: Objective) -> bool:
    if _is_suspect(trial) or trial.layout.key == best.layout.key:
        return False
    return _speed(trial, objective).overlaps(_speed(best, objective))


def _speed(trial: Trial, objective: Objective) -> _Speed:
    measured, sharers = trial.measured or {}, _sharers(trial, objective)
    low, high = measured.get("tokens_per_sec_low"), measured.get("tokens_per_sec_high")
    interval = None if low is None or high is None else (low / sharers, high / sharers)
    return _Speed(measured["tokens_per_sec"] / sharers, interval)


def _sharers(trial: Trial, objective: Objective) -> int:
    """What the tokens per second are divided by: nothing, GPUs or nodes."""
    if objective is Objective.TOKENS_PER_SEC:
        return 1
    per_gpu = objective is Objective.TOKENS_PER_SEC_PER_GPU
    return trial.layout.num_gpus if per_gpu else trial.layout.num_nodes


def _own_unit(speed: float, objective: Objective) -> float:
    """Back from tokens per second and node to node-hours per billion tokens; the other objectives are speeds."""
    if objective is not Objective.NODE_HOURS_PER_BILLION_TOKENS:
        return speed
    return _TOKENS_PER_BILLION / _SECONDS_PER_HOUR / speed
