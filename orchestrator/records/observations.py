"""What the ended trials of a search say of their layouts, as rows of a measured table. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from orchestrator.config.spec import SearchSpec
from search_spaces.hardware.cluster import Cluster
from search_spaces.model_shape import ModelShape
from search_spaces.schema import presets
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from search_spaces.tables.measured_table import Observation, render_table
from trials.analysis.ranking import runs_that_count
from trials.files.folders import SearchFolder, write_text
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason, Trial, TrialState

SOURCE = "parlay"
IN_FLIGHT, SUSPECT, INVALID = "in_flight", "suspect", "invalid"
"""Why a trial is no row, where that is no reason of its own: it has not ended; it ran on a suspect node, or with other
software, while another run of its layout did not; its numbers cannot be."""

_MIN_VALUE, _MAX_VALUE = 1e-9, 1e12
"""Seconds or GiB that nothing has; a table has digits for less and for more."""


@dataclass(frozen=True)
class ObservedTrials:
    """Rows in the order in which the trials were proposed; and how many trials are none, by the reason why."""

    rows: tuple[Observation, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def observed_trials(search: SearchRecord, spec: SearchSpec) -> ObservedTrials:
    """What the search has seen of its layouts so far, a row for each trial that says something of its own.

    A pruned trial is a row that ran: it ended itself because the median of its steps, which is the row's time, lies
    below the best by more than runs differ; `failure_reason` says so. Of one that was tried again the last attempt
    counts.
    """
    rows: list[Observation] = []
    left_out: Counter[str] = Counter()
    outvoted = _superseded(search)
    for trial in search.trials:
        found = SUSPECT if trial.trial in outvoted else _row_or_exclusion(search, spec, trial)
        if isinstance(found, Observation):
            rows.append(found)
        else:
            left_out[found] += 1
    return ObservedTrials(tuple(rows), dict(sorted(left_out.items())))


def measured_table(observed: ObservedTrials, search: SearchRecord) -> str:
    """measured.csv of a search."""
    left_out = ", ".join(f"{count} {why}" for why, count in observed.left_out.items())
    comments = [f"search {search.search_id}, {search.state}: {len(observed.rows)} of {len(search.trials)} trials"]
    return render_table(observed.rows, [*comments, *([f"left out: {left_out}"] if left_out else [])])


def write_measured_table(
    folder: SearchFolder, spec: SearchSpec, search: SearchRecord, note: Callable[[str], None]
) -> None:
    """Write the ended search's measured.csv, where it has rows; a folder that cannot take it ends no search."""
    observed = observed_trials(search, spec)
    try:
        if observed.rows:
            write_text(folder.measured, measured_table(observed, search))
    except OSError as error:
        again = f"`parlay export {folder.cli_name}` tries again"
        note(f"{folder.measured.name} is not written: {error}; {again}")


def _superseded(search: SearchRecord) -> frozenset[str]:
    """The trials whose run is suspect where another run of the same layout is not."""
    by_layout: dict[str, list[Trial]] = {}
    for trial in search.trials:
        if trial.state is TrialState.MEASURED:
            by_layout.setdefault(trial.layout.key, []).append(trial)
    counted = {run.trial for runs in by_layout.values() for run in runs_that_count(runs)}
    return frozenset(run.trial for runs in by_layout.values() for run in runs) - counted


def _row_or_exclusion(search: SearchRecord, spec: SearchSpec, trial: Trial) -> Observation | str:
    attempt = trial.last_attempt
    if not trial.state.is_ended:
        return IN_FLIGHT
    ran = trial.state is TrialState.MEASURED or _is_measured_in_part(trial)
    if attempt is None or not (ran or (trial.reason is not None and trial.reason.may_be_layout_fault)):
        return str(trial.reason)
    measured = attempt.outcome.measured if ran and attempt.outcome else {}
    numbers = {
        "step_time_s": measured.get("step_time_s"),
        "step_time_p95_s": measured.get("step_time_p95_s"),
        "peak_memory_gib": measured.get("peak_memory_gib"),
        "recorded_duration_s": seconds_between(attempt.started_at, attempt.ended_at),
        "queue_wait_s": seconds_between(attempt.submitted_at, attempt.started_at),
    }
    if not _are_possible(numbers, ran) or not _fills_nodes(spec, trial):
        return INVALID
    return _row(search, spec, trial, "ok" if ran else _outcome(spec, trial), numbers)


def _is_measured_in_part(trial: Trial) -> bool:
    """Whether it is a pruned trial that left the time of its steps."""
    outcome = trial.last_attempt.outcome if trial.last_attempt else None
    return trial.reason is FailureReason.PRUNED and outcome is not None and "step_time_s" in outcome.measured


def seconds_between(begin: float | None, end: float | None) -> float | None:
    """None where one of the two is not known; clocks of several machines may differ by a moment."""
    return None if begin is None or end is None else max(0.0, end - begin)


def _are_possible(numbers: Mapping[str, Any], ran: bool) -> bool:
    known = [value for value in numbers.values() if value is not None]
    if not all(type(value) in (int, float) and (value == 0 or _MIN_VALUE <= value < _MAX_VALUE) for value in known):
        return False
    return numbers["step_time_s"] is None if not ran else bool(numbers["step_time_s"])


def _fills_nodes(spec: SearchSpec, trial: Trial) -> bool:
    return trial.layout.num_gpus == trial.layout.num_nodes * spec.cluster.gpus_per_node


def _outcome(spec: SearchSpec, trial: Trial) -> str:
    """Where ranks compute on the host its memory is theirs; elsewhere a full host says nothing of the device."""
    on_host = spec.cluster.accelerator.name == "cpu" and trial.reason is FailureReason.HOST_OOM
    return "oom" if trial.reason is FailureReason.GPU_OOM or on_host else "failed"


def _row(search: SearchRecord, spec: SearchSpec, trial: Trial, outcome: str, numbers: Mapping[str, Any]) -> Observation:
    accelerator, name = spec.cluster.accelerator, model_name(spec.model)
    batch, layout = trial.layout.global_batch_size, trial.layout.canonical()
    return Observation(
        problem=f"{name}-{layout.num_gpus}x{accelerator.name}-gbs{batch}",
        source=SOURCE,
        model_name=name,
        model=spec.model,
        cluster=Cluster(accelerator, spec.cluster.gpus_per_node, layout.num_nodes),
        global_batch_size=batch,
        layout=layout,
        outcome=outcome,
        failure_reason=None if trial.reason is None else str(trial.reason),
        search_id=search.search_id,
        trial=trial.trial,
        kind=str(trial.kind),
        **numbers,
    )


def model_name(model: ModelShape) -> str:
    """Of a ready-made model its name, of another its layers, width and a hash: the same in every search."""
    if model in _ready_made():
        return _ready_made()[model]
    sizes = json.dumps(model.to_json(), sort_keys=True)
    return f"gpt-{model.num_layers}x{model.hidden_size}-{hashlib.sha256(sizes.encode()).hexdigest()[:6]}"


@cache
def _ready_made() -> dict[ModelShape, str]:
    names = presets.preset_names(presets.MODELS)
    return {validate(ModelSection, presets.preset(presets.MODELS, name)).shape(): name for name in names}
