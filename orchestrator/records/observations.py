"""Rows of a measured table: the ended trials of a search, and results that were read from elsewhere. Pure."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

from orchestrator.config.spec import SearchSpec
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.schema import presets
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from search_spaces.tables.measured_table import Observation, render_table
from trials.analysis.ranked_layout import runs_that_count
from trials.analysis.verdict import has_stopped_early
from trials.failure_policy import policy_of
from trials.files.folders import SearchFolder, write_text
from trials.ledger.events import SearchRecord
from trials.trial import Trial, TrialState

_log = logging.getLogger(__name__)


SOURCE = "parlay"
IN_FLIGHT, SUSPECT, INVALID = "in_flight", "suspect", "invalid"
"""Reasons to leave a trial out, besides its failure reason: not ended; on a suspect node or with other software, while
another run of its layout was not; with impossible numbers."""
OTHER_SOFTWARE = "other_software"
"""Another such reason: with the other software of an experiment."""

_MIN_VALUE, _MAX_VALUE = 1e-9, 1e12
"""Limits of plausible seconds and GiB."""


@dataclass(frozen=True)
class TableRows:
    """Rows of a measured table, and the numbers of trials or results left out, by reason."""

    rows: tuple[Observation, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Iterable[Observation | str]) -> Self:
        """The rows among these results; any other is the reason for leaving it out."""
        found = list(results)
        left_out = Counter(result for result in found if isinstance(result, str))
        return cls(tuple(row for row in found if isinstance(row, Observation)), dict(sorted(left_out.items())))

    def text(self, source: str) -> str:
        """The measured table, with comments on where its rows are from."""
        left_out = [f"left out: {counted(self.left_out)}"] if self.left_out else []
        return render_table(self.rows, [source, *left_out])


def counted(numbers: Mapping[str, int]) -> str:
    """`2 oom, 1 batch`."""
    return ", ".join(f"{count} {why}" for why, count in numbers.items())


def observed_trials(search: SearchRecord, spec: SearchSpec) -> TableRows:
    """Observations of a search so far, one row a trial, in the order of proposals.

    A pruned trial is a row that ran: the median of its measured steps, the row's time, was below the best by more than
    runs differ, and `failure_reason` says so. For a retried trial the last attempt counts.
    """
    superseded = _superseded(search)
    return TableRows.of(
        SUSPECT if trial.trial in superseded else _row_or_exclusion(search, spec, trial) for trial in search.trials
    )


def measured_table(observed: TableRows, search: SearchRecord) -> str:
    """Content of measured.csv."""
    return observed.text(
        f"search {search.search_id}, {search.state}: {len(observed.rows)} of {len(search.trials)} trials"
    )


def write_measured_table(folder: SearchFolder, spec: SearchSpec, search: SearchRecord) -> None:
    """Write measured.csv of an ended search that has rows. A folder that cannot be written is only noted."""
    observed = observed_trials(search, spec)
    try:
        if observed.rows:
            write_text(folder.measured, measured_table(observed, search))
    except OSError as error:
        again = f"retry with `parlay export {folder.cli_name}`"
        _log.warning(f"{folder.measured.name} was not written: {error}; {again}")


def _superseded(search: SearchRecord) -> frozenset[str]:
    """Trials whose run is suspect while another run of the same layout is not."""
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
    if trial.layout.of_trial.software:
        return OTHER_SOFTWARE
    ran = trial.state is TrialState.MEASURED or _is_measured_in_part(trial)
    if attempt is None or not (ran or policy_of(trial.reason).may_be_layout_fault):
        return str(trial.reason)
    metrics = attempt.outcome.metrics if ran and attempt.outcome else None
    numbers: dict[str, Any] = {
        **{name: getattr(metrics, name, None) for name in ("step_time_s", "step_time_p95_s", "peak_memory_gib")},
        "recorded_duration_s": seconds_between(attempt.started_at, attempt.ended_at),
        "queue_wait_s": seconds_between(attempt.submitted_at, attempt.started_at),
    }
    if not _are_plausible(numbers, ran) or not _fills_nodes(spec, trial):
        return INVALID
    return observation_of(
        spec,
        SOURCE,
        trial.layout.canonical(),
        "ok" if ran else _outcome(spec, trial),
        failure_reason=None if trial.reason is None else str(trial.reason),
        search_id=search.search_id,
        trial=trial.trial,
        kind=str(trial.kind),
        **numbers,
    )


def _is_measured_in_part(trial: Trial) -> bool:
    """True for a pruned trial with a step time."""
    outcome = trial.last_attempt.outcome if trial.last_attempt else None
    return has_stopped_early(trial) and outcome is not None and outcome.metrics is not None


def seconds_between(begin: float | None, end: float | None) -> float | None:
    """Seconds from `begin` to `end`, at least 0 (clocks of several machines differ); None if either is unknown."""
    return None if begin is None or end is None else max(0.0, end - begin)


def _are_plausible(numbers: Mapping[str, Any], ran: bool) -> bool:
    known = [value for value in numbers.values() if value is not None]
    if not all(type(value) in (int, float) and (value == 0 or _MIN_VALUE <= value < _MAX_VALUE) for value in known):
        return False
    return numbers["step_time_s"] is None if not ran else bool(numbers["step_time_s"])


def _fills_nodes(spec: SearchSpec, trial: Trial) -> bool:
    return trial.layout.num_gpus == trial.layout.num_nodes * spec.cluster.gpus_per_node


def _outcome(spec: SearchSpec, trial: Trial) -> str:
    """Outcome of a failed trial. Out of host memory is `oom` only for ranks that compute on the host."""
    return "oom" if policy_of(trial.reason).exceeds_rank_memory(spec.cluster.accelerator.name) else "failed"


def observation_of(
    spec: SearchSpec, source: str, layout: Layout, outcome: str, gpus_per_node: int | None = None, **fields: Any
) -> Observation:
    """A row with the search's model on its kind of nodes; `fields` are further ones of Observation."""
    name, accelerator = model_name(spec.model), spec.cluster.accelerator
    batch = layout.global_batch_size
    return Observation(
        problem=f"{name}-{layout.num_gpus}x{accelerator.name}-gbs{batch}",
        source=source,
        model_name=name,
        model=spec.model,
        cluster=Cluster(accelerator, gpus_per_node or spec.cluster.gpus_per_node, layout.num_nodes),
        global_batch_size=batch,
        layout=layout,
        outcome=outcome,
        **fields,
    )


def model_name(model: ModelShape) -> str:
    """Name of a ready-made model; for any other its layers, width and a hash, equal in every search."""
    if model in _preset_names():
        return _preset_names()[model]
    sizes = json.dumps(model.to_json(), sort_keys=True)
    return f"gpt-{model.num_layers}x{model.hidden_size}-{hashlib.sha256(sizes.encode()).hexdigest()[:6]}"


@cache
def _preset_names() -> dict[ModelShape, str]:
    names = presets.preset_names(presets.MODELS)
    return {validate(ModelSection, presets.preset(presets.MODELS, name)).shape(): name for name in names}
