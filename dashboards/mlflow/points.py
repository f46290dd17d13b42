"""Points of a search's metrics in MLflow: of a trial, its steps and its nodes, and of the search. Pure.

All values and times come from the search's record and folder, so that a search sent twice, or long after its end, gives
the same points.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

from dashboards.mlflow.naming import flat_items, mlflow_key
from trials.analysis.node_time import node_time, search_node_time
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import in_objective_unit, known_value_of, objectives_of_record
from trials.analysis.search_cost import SearchCost
from trials.analysis.verdict import baseline_key_of, counts_of, ranking_of, verdict_of
from trials.files.folders import SearchFolder, read_lines
from trials.ledger.events import SearchRecord, sum_of_billed_hours
from trials.measurement.node_metrics import MAX_BYTES, MAX_NODES, NodeSample
from trials.measurement.step_log import StepRecord
from trials.trial import Attempt, Trial, TrialKind, TrialState, utc_seconds

_HIGHEST_STEP = 2**63 - 1
_DIGITS = 5
_LONGEST_SERIES = 12
"""Points of a trial's series: most of the time of sending a trial goes into its points."""

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """Value of a metric. `time_ms` is UTC milliseconds since the epoch."""

    key: str
    value: float
    time_ms: int
    step: int = 0


def require_loggable(points: list[Point]) -> list[Point]:
    """Return the points; ValueError where MLflow would reject one, and with it the whole batch."""
    for point in points:
        if not isinstance(point.step, int) or not 0 <= point.step <= _HIGHEST_STEP or point.time_ms < 0:
            raise ValueError(f"{point.key} has an invalid step {point.step!r:.40} or time {point.time_ms} ms")
    return points


def _points(values: Mapping[str, Any], time_ms: int, step: int = 0) -> list[Point]:
    """Points of the known values, rounded to as many digits as MLflow's tables show."""
    known = {name: float(value) for name, value in values.items() if _is_number(value)}
    return [Point(name, float(f"{value:.{_DIGITS}g}"), time_ms, step) for name, value in known.items()]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def trial_points(search: SearchRecord, trial: Trial) -> list[Point]:
    """Measurements, objectives, speed-up over the baseline's first run, and cost of an ended trial, one point each."""
    last = trial.last_attempt
    if last is None:
        return []
    time_ms = past_ms(search, last.ended_at or last.submitted_at or 0.0)
    values: dict[str, Any] = (
        dict(flat_items(last.outcome.measured.to_json())) if last.outcome and last.outcome.measured else {}
    )
    if last.outcome is not None:
        ranks = {name: getattr(last.outcome, name) or {} for name in ("slowest_rank", "fullest_rank")}
        values |= flat_items(ranks)
    if trial.measured is not None:
        values |= _objective_values(search, trial) | {"speedup": _speedup(search, trial)}
    values["node_hours"] = sum(a.node_hours or 0.0 for a in trial.attempts)
    values["billed_hours"] = sum_of_billed_hours(trial.attempts)
    values["num_leaves"] = len(set(last.leaves)) or None
    values["measured_share"] = node_time([trial]).measured_share
    values["queue_wait_s"] = last.queue_wait_s
    for name in ("step_time_s", "peak_memory_gib"):
        values[f"predicted_{name}"] = (trial.prediction or {}).get(name)
    return _points({mlflow_key(name): value for name, value in values.items()}, time_ms)


def _objective_values(search: SearchRecord, measured: TrialOrLayout) -> dict[str, float]:
    """Values of the search's objectives, each in its own unit; unknown ones are absent."""
    known = ((objective, known_value_of(measured, objective)) for objective in objectives_of_record(search.spec))
    return {objective.value: in_objective_unit(value, objective) for objective, value in known if value is not None}


def _speedup(search: SearchRecord, trial: Trial) -> float | None:
    """Throughput over that of the baseline's first run, so that it is the same whenever it is sent; None where that had
    not ended before."""
    key, ended_at = baseline_key_of(search), trial.ended_at or 0.0
    first = next((t for t in search.trials if t.measured is not None and t.layout.key == key), None)
    if first is None or first.measured is None or trial.measured is None or (first.ended_at or 0.0) > ended_at:
        return None
    return trial.measured.tokens_per_sec / first.measured.tokens_per_sec


def series_points(trial: Trial, folder: SearchFolder) -> list[Point]:
    """Points of the last attempt's steps, from its metrics file; ValueError for an invalid line."""
    last = trial.last_attempt
    if last is None:
        return []
    records = read_lines(StepRecord, folder.attempt(trial.trial, last.attempt).metrics(_restart(last)))
    return [point for record in _thinned(records) for point in _step_points(record)]


def _step_points(record: StepRecord) -> list[Point]:
    values = {f"steps/{name}": getattr(record, name) for name in _STEP_FIELDS}
    return _points(values, epoch_ms(utc_seconds(record.time)), record.step)


_STEP_FIELDS = (
    *("step_time_s", "loss", "grad_norm", "data_wait_s", "gpu_utilization"),
    *("memory_allocated_gib", "memory_device_gib", "host_memory_gib"),
)


def _thinned(rows: Sequence[T]) -> Sequence[T]:
    """Rows evenly spread, with the first and the last: the files, which are artifacts, have all."""
    if len(rows) <= _LONGEST_SERIES:
        return rows
    last = _LONGEST_SERIES - 1
    return [rows[place * (len(rows) - 1) // last] for place in range(_LONGEST_SERIES)]


def system_points(trial: Trial, folder: SearchFolder) -> list[Point]:
    """System metrics of the last attempt's nodes; ValueError for an invalid file.

    Named as by MLflow, so that its page of system metrics shows them. Several nodes are numbered in the order of the
    ranks, in place of MLflow's `node_id`.
    """
    last = trial.last_attempt
    if last is None:
        return []
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    points: list[Point] = []
    for node in range(min(last.num_nodes, MAX_NODES)):
        prefix = f"system/node_{node}/" if last.num_nodes > 1 else "system/"
        samples = read_lines(NodeSample, attempt_folder.system(node, _restart(last)), MAX_BYTES)
        for step, sample in _thinned([*enumerate(samples)]):
            time_ms = epoch_ms(sample.time)
            points += _points({prefix + name: value for name, value in sample.values.items()}, time_ms, step)
    return points


def search_points(search: SearchRecord, after_step: int = 0) -> list[Point]:
    """Series of the parent run: totals after 1, 2, 3 ... ended trials, beyond `after_step`; at the search's end those
    with the node-hours that no trial was charged for."""
    ended = sorted((t for t in search.trials if t.state.is_ended), key=lambda t: (t.ended_at or 0.0, t.trial))
    if after_step == len(ended) and not search.state.is_ended:
        return []
    shares = _measured_shares(ended)
    points: list[Point] = []
    best: RankedLayout | None = None
    for step in range(after_step + 1, len(ended) + 1):
        time_ms = past_ms(search, ended[step - 1].ended_at or search.created_at)
        if best is None or _may_change_the_best(ended[step - 1]):
            best = ranking_of(search, ended[:step]).best
        totals = _totals(ended[:step], best) | {"measured_share": shares[step - 1]}
        totals |= {} if best is None else _best_values(search, best)
        points += _points(totals, time_ms, step)
    if after_step <= len(ended):
        points += _end_points(search, len(ended) + 1)
    return points


def _end_points(search: SearchRecord, step: int) -> list[Point]:
    """Node-hours of an ended search with those of idle pilots and of the fabric check, which belong to no
    trial, where there were some; its billing hours, and the hours of training that pay it back."""
    if search.ended_at is None:
        return []
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    cost, speedup = SearchCost.of(search, verdict), verdict.speedup
    pay_back_hours = None if cost.pay_back is None else cost.pay_back.hours
    values = {"billed_hours": cost.billed_hours, "pay_back_training_hours": pay_back_hours}
    if speedup is not None:
        values |= {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}
    if search.pilots or search.fabric_check:
        share = search_node_time(search).measured_share
        values |= {"node_hours_used": search.node_hours_used, "measured_share": share}
    return _points(values, past_ms(search, search.ended_at), step)


def _best_values(search: SearchRecord, best: RankedLayout) -> dict[str, float | None]:
    """Values of the search's objectives of the best layout."""
    return {f"best_{name}": value for name, value in _objective_values(search, best).items()}


def _measured_shares(ended: list[Trial]) -> list[float | None]:
    """Fraction of the node-hours of the first 1, 2, 3 ... trials that measured something; None before any were used."""
    spent = [node_time([trial]) for trial in ended]
    measured, totals = accumulate(one.measured_node_hours for one in spent), accumulate(one.node_hours for one in spent)
    return [done / total if total else None for done, total in zip(measured, totals, strict=True)]


def _may_change_the_best(trial: Trial) -> bool:
    return trial.state is TrialState.MEASURED or trial.kind is TrialKind.REPEAT


def _totals(ended: list[Trial], best: RankedLayout | None) -> dict[str, float | None]:
    """Totals of these ended trials; `best` is the best layout at that time, over all its runs so far."""
    counts = counts_of(ended)
    return {
        "best_tokens_per_sec": best.measured.tokens_per_sec if best else None,
        "node_hours_used": sum(a.node_hours or 0.0 for trial in ended for a in trial.attempts),
        "trials_measured": float(counts.measured),
        "trials_stopped_early": float(counts.stopped_early),
        "trials_failed": float(counts.failed),
    }


def _restart(attempt: Attempt) -> int:
    return attempt.outcome.restart if attempt.outcome else 0


def epoch_ms(epoch_s: float) -> int:
    return round(epoch_s * 1000)


def past_ms(search: SearchRecord, epoch_s: float) -> int:
    """Moment of a search that is not in the future: the clock of a simulated one runs ahead, so there it is at most the
    search's creation."""
    return epoch_ms(min(epoch_s, search.created_at) if search.replayed_table else epoch_s)
