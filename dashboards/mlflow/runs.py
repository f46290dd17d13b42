"""Views of a search as MLflow runs: one parent run, one child per trial. Pure; names are the contract's.

All values and times come from the search's record and folder, so that a search sent twice, or long after its end, gives
the same runs and the same points.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from dashboards.report.setup import setup_rows
from dashboards.terminal.progress import is_simulated
from dashboards.trial_text import layout_name
from search_spaces.layouts.short_name import varying_axes
from search_spaces.plain_file import read_plain
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.node_time import node_time, search_node_time
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, in_objective_unit, known_value_of, objectives_of
from trials.analysis.search_cost import SearchCost, trial_billed_hours
from trials.analysis.verdict import (
    DisplayState,
    baseline_key_of,
    counts_of,
    display_state,
    ranking_of,
    verdict_of,
)
from trials.failure_policy import Ending, policy_of
from trials.files.folders import SearchFolder
from trials.files.text import tail
from trials.json_types import is_finite_number
from trials.ledger.events import SearchRecord
from trials.measurement.node_metrics import MAX_NODES, read_samples
from trials.measurement.step_log import StepRecord, read_metrics
from trials.trial import Attempt, LowerStrEnum, Trial, TrialKind, TrialState, utc_seconds
from trials.trial_json import attempt_json, trial_json, with_times

NOTE = "mlflow.note.content"
"""Tag of the description, which people edit too."""
NOTE_MARK = "parlay.note"
"""Tag with the checksum of the description that we wrote."""
REPORT = "parlay.report"
"""Tag with the time at which the report among the artifacts was written."""
SEARCH_KIND = "search"
"""Tag `parlay.kind` of a search's run, by which `tags.parlay.kind = 'search'` finds the searches."""
TRIAL_KINDS = {TrialKind.SEARCH: "trial", TrialKind.REPEAT: "repeat", TrialKind.REPLAY: "replay"}
"""The same of a trial's run."""
MARKS = (NOTE_MARK, REPORT)
"""Tags about sent artifacts, kept until these are sent again."""

_LONGEST_PARAM = 500  # older servers take no more; the whole configuration is an artifact
_LONGEST_TAG = 5000
_LONGEST_KEY = 250
_CUT = " [truncated]"
_LOG_LINES = 500
_HIGHEST_STEP = 2**63 - 1

_UNREADABLE = (OSError, ValueError, TypeError, RecursionError)
"""Errors of reading a file that a trial wrote."""


class RunStatus(LowerStrEnum):
    """Run status in MLflow's spelling."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def is_ended(self) -> bool:
        return self is not RunStatus.RUNNING


@dataclass(frozen=True)
class Point:
    """Value of a metric. `time_ms` is UTC milliseconds since the epoch."""

    key: str
    value: float
    time_ms: int
    step: int = 0


@dataclass(frozen=True)
class RunView:
    """Content of a run. `trial` is None for the parent; `end_time_ms` is None while it runs."""

    trial: str | None
    status: RunStatus
    start_time_ms: int
    end_time_ms: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]


def parent_view(search: SearchRecord) -> RunView:
    """Run of the search itself."""
    return RunView(
        trial=None,
        status=_search_status(display_state(search.state, search.end_reason)),
        start_time_ms=_ms(search.created_at),
        end_time_ms=None if search.ended_at is None else _past_ms(search, search.ended_at),
        params={_key(name): _param(value) for name, value in _flat(search.spec)},
        tags=_tags(
            {
                "parlay.search_id": search.search_id,
                "parlay.kind": SEARCH_KIND,
                "parlay.simulated": "true" if is_simulated(search) else None,
                "parlay.model": _model(search.spec),
                "parlay.state": search.state.value,
                "parlay.reason": search.end_reason and search.end_reason.value,
                "parlay.finals": None if (finals := finals_end_of(search)) is None else finals.ending.value,
                "parlay.best_layout": _best_layout(search),
            }
        ),
    )


def child_view(search: SearchRecord, trial: Trial) -> RunView:
    """Run of one trial, from its last attempt; `attempts.json` has the earlier ones."""
    return RunView(
        trial=trial.trial,
        status=_trial_status(trial),
        start_time_ms=_past_ms(search, trial.proposed_at or search.created_at),
        end_time_ms=_past_ms(search, trial.ended_at or search.created_at) if trial.state.is_ended else None,
        params=_child_params(trial),
        tags=_child_tags(search, trial),
    )


def _best_layout(search: SearchRecord) -> str | None:
    """Short name of the best layout, with the axes that vary."""
    if search.best_trial is None:
        return None
    varying = varying_axes([trial.layout for trial in search.trials])
    return layout_name(search.trial(search.best_trial).layout, varying)


@dataclass(frozen=True)
class Dataset:
    """Data behind a search's numbers, as MLflow's datasets are described."""

    name: str
    digest: str
    source_type: str
    source: str
    context: str = "training"


def dataset_of(search: SearchRecord) -> Dataset:
    """The search's data: a token file, synthetic tokens, those of another trainer's own arguments; of a simulated
    search, which trains on nothing, the measured table."""
    if is_simulated(search):
        return _dataset({"path": str((search.spec.get("launcher") or {}).get("table", ""))}, "table", "measured table")
    trainer = search.spec.get("trainer") or {}
    data = trainer.get("data") or {"kind": "the trainer's own"}
    return _dataset(data, f"{data.get('kind', 'tokens')} tokens", "training")


def _dataset(data: Mapping[str, Any], name: str, context: str) -> Dataset:
    """Dataset named by its file where it has one."""
    path, source = data.get("path"), json.dumps(data, sort_keys=True)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    if path:
        name = PurePath(str(path)).name
    return Dataset(name[:_LONGEST_KEY], digest, "local" if path else "code", source, context)


def note_tags(note: str) -> dict[str, str]:
    """Tags of the description and its checksum, by which later edits are noticed; {} for an empty text."""
    text = _cut(note, _LONGEST_TAG)
    return {NOTE: text, NOTE_MARK: hashlib.sha256(text.encode()).hexdigest()[:16]} if text else {}


def may_describe(tags: Mapping[str, str]) -> bool:
    """True if the description is ours and unchanged, or was never set; a deleted one is not restored."""
    return tags.get(NOTE_MARK) == note_tags(tags.get(NOTE, "")).get(NOTE_MARK)


def altered_names(search: SearchRecord) -> list[str]:
    """Keys of the search file that MLflow does not accept and that are altered."""
    return [name for name, _ in _flat(search.spec) if _key(name) != name]


def _search_status(state: DisplayState) -> RunStatus:
    ended = {
        DisplayState.COMPLETED: RunStatus.FINISHED,
        DisplayState.FAILED: RunStatus.FAILED,
        DisplayState.REFUSED: RunStatus.FAILED,
        DisplayState.CANCELLED: RunStatus.KILLED,
    }
    return ended.get(state, RunStatus.RUNNING)


def _trial_status(trial: Trial) -> RunStatus:
    if not trial.state.is_ended:
        return RunStatus.RUNNING
    if trial.state is TrialState.MEASURED:
        return RunStatus.FINISHED
    if trial.state is TrialState.CANCELLED or policy_of(trial.reason).ending is not Ending.FAILED:
        return RunStatus.KILLED
    return RunStatus.FAILED


def _child_params(trial: Trial) -> dict[str, str]:
    layout = trial.layout
    derived = {
        "global_batch_size": layout.global_batch_size,
        "num_gpus": layout.num_gpus,
        "layout_key": layout.key,
    }
    return {name: _param(value) for name, value in (layout.axis_values | derived).items() if value is not None}


def _child_tags(search: SearchRecord, trial: Trial) -> dict[str, str]:
    last = trial.last_attempt
    note = _excerpt(last) if last and trial.state.is_ended else ""
    tags = _tags(
        {
            "parlay.search_id": search.search_id,
            **{f"parlay.{name}": word for name, word in trial_json(trial, "trial", "state", "reason").items()},
            "parlay.kind": TRIAL_KINDS[trial.kind],
            "parlay.attempt": last.attempt if last else None,
            "parlay.flags": ",".join(trial.flags),
            "parlay.job_id": last.job_id if last else None,
            "parlay.nodes": ",".join(last.nodes) if last else None,
            "parlay.slowest_node": last.outcome.slowest_rank.get("host") if last and last.outcome else None,
            "parlay.best": "true" if trial.trial == search.best_trial else None,
        }
    )
    return tags | note_tags(note)


def _excerpt(attempt: Attempt) -> str:
    """Excerpt of a failure, indented as a Markdown code block."""
    return "\n".join("    " + line for line in (attempt.excerpt or "").splitlines())


@dataclass(frozen=True)
class EndedTrial:
    """Points, artifacts by name, and read errors of an ended trial."""

    points: list[Point]
    texts: Mapping[str, str]
    unread: list[Exception]


def ended_trial(search: SearchRecord, trial: Trial, folder: SearchFolder) -> EndedTrial:
    """Read the files of an ended trial; an unreadable file does not affect the others."""
    found = EndedTrial(trial_points(search, trial), {}, [])
    for read in (series_points, system_points):
        try:
            found.points.extend(_require_valid(read(trial, folder)))
        except _UNREADABLE as error:
            found.unread.append(error)
    try:
        return replace(found, texts=trial_texts(trial, folder))
    except OSError as error:
        found.unread.append(error)
    return found


def _require_valid(points: list[Point]) -> list[Point]:
    """Return the points; ValueError where MLflow would reject one, and with it the whole batch."""
    for point in points:
        if not isinstance(point.step, int) or not 0 <= point.step <= _HIGHEST_STEP or point.time_ms < 0:
            raise ValueError(f"{point.key} has an invalid step {point.step!r:.40} or time {point.time_ms} ms")
    return points


def trial_points(search: SearchRecord, trial: Trial) -> list[Point]:
    """Measurements, objectives, speed-up over the baseline's first run, and cost of an ended trial, one point each."""
    last = trial.last_attempt
    if last is None:
        return []
    time_ms = _past_ms(search, last.ended_at or last.submitted_at or 0.0)
    values: dict[str, Any] = (
        dict(_flat(last.outcome.measured.to_json())) if last.outcome and last.outcome.measured else {}
    )
    if last.outcome is not None:
        values |= _flat({"slowest_rank": last.outcome.slowest_rank, "fullest_rank": last.outcome.fullest_rank})
    if trial.measured is not None:
        values |= _objective_values(search, trial) | {"speedup": _speedup(search, trial)}
    values["node_hours"] = sum(a.node_hours or 0.0 for a in trial.attempts)
    values["billed_hours"] = trial_billed_hours(trial)
    values["num_leaves"] = len(set(last.leaves)) or None
    values["measured_share"] = node_time([trial]).measured_share
    values["queue_wait_s"] = last.queue_wait_s
    for name in ("step_time_s", "peak_memory_gib"):
        values[f"predicted_{name}"] = (trial.prediction or {}).get(name)
    return [Point(_key(name), float(value), time_ms) for name, value in values.items() if is_finite_number(value)]


def _objective_values(search: SearchRecord, measured: TrialOrLayout) -> dict[str, float]:
    """Values of the search's objectives, each in its own unit; unknown ones are absent."""
    objectives = objectives_of(search.spec.get("objective") or Objective.TOKENS_PER_SEC)
    known = ((objective, known_value_of(measured, objective)) for objective in objectives)
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
    records = read_metrics(folder.attempt(trial.trial, last.attempt).metrics(_restart(last)))
    return [point for record in records for point in _step_points(record)]


def _step_points(record: StepRecord) -> Iterator[Point]:
    time_ms = _ms(utc_seconds(record.time))
    for field in fields(StepRecord):
        value = getattr(record, field.name)
        if field.name != "step" and is_finite_number(value):
            yield Point(f"steps/{field.name}", float(value), time_ms, record.step)


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
        for step, sample in enumerate(read_samples(attempt_folder.system(node, _restart(last)))):
            time_ms = _ms(utc_seconds(sample.time))
            points += [Point(prefix + name, value, time_ms, step) for name, value in sample.values.items()]
    return points


def search_points(search: SearchRecord, after_step: int = 0) -> list[Point]:
    """Series of the parent run: totals after 1, 2, 3 ... ended trials, beyond `after_step`; at the search's end those
    with the node-hours that no trial was charged for."""
    ended = sorted((t for t in search.trials if t.state.is_ended), key=lambda t: (t.ended_at or 0.0, t.trial))
    shares = _measured_shares(ended)
    points: list[Point] = []
    best: RankedLayout | None = None
    for step in range(after_step + 1, len(ended) + 1):
        time_ms = _past_ms(search, ended[step - 1].ended_at or search.created_at)
        if best is None or _may_change_the_best(ended[step - 1]):
            best = ranking_of(search, ended[:step]).best
        totals = _totals(ended[:step], best) | {"measured_share": shares[step - 1]}
        totals |= {} if best is None else _best_values(search, best)
        points += [Point(name, value, time_ms, step) for name, value in totals.items() if value is not None]
    if after_step <= len(ended):
        points += _end_points(search, len(ended) + 1)
    return points


def _end_points(search: SearchRecord, step: int) -> list[Point]:
    """Node-hours of an ended search with those of idle pilots and of drivers, which belong to no trial, where there
    were some; its billing hours, and the hours of training that pay it back."""
    if search.ended_at is None:
        return []
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    cost, speedup = SearchCost.of(search, verdict), verdict.speedup
    pay_back_hours = None if cost.pay_back is None else cost.pay_back.hours
    values = {"billed_hours": cost.billed_hours, "pay_back_training_hours": pay_back_hours}
    if speedup is not None:
        values |= {"speedup": speedup.ratio, "speedup_low": speedup.low, "speedup_high": speedup.high}
    if search.pilots or search.driver_jobs:
        share = search_node_time(search).measured_share
        totals = {"node_hours_used": search.node_hours_used, "driver_node_hours": search.driver_node_hours or None}
        values |= totals | {"measured_share": share}
    time_ms = _past_ms(search, search.ended_at)
    return [Point(key, value, time_ms, step) for key, value in values.items() if value is not None]


def _best_values(search: SearchRecord, best: RankedLayout) -> dict[str, float | None]:
    """Values of the search's objectives of the best layout."""
    return {f"best_{name}": value for name, value in _objective_values(search, best).items()}


def _measured_shares(ended: list[Trial]) -> list[float | None]:
    """Fraction of the node-hours of the first 1, 2, 3 ... trials that measured something; None before any were used."""
    spent = [node_time([trial]) for trial in ended]
    measured, totals = accumulate(one.measured for one in spent), accumulate(one.total for one in spent)
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


def trial_texts(trial: Trial, folder: SearchFolder) -> dict[str, str]:
    """Artifacts of an ended trial: file name -> text."""
    last = trial.last_attempt
    if last is None:
        return {}
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    attempts = [with_times(attempt_json(attempt, *_ATTEMPT_FIELDS)) for attempt in trial.attempts]
    texts = {"attempts.json": _json(attempts)}
    if last.outcome is not None:
        texts[f"outcome.r{last.outcome.restart}.json"] = _json(last.outcome.to_json())
    with suppress(OSError, ValueError):
        texts["spec.json"] = read_plain(attempt_folder.spec).decode(errors="replace")
    with suppress(OSError):
        texts["rank-00000.tail.log"] = tail(attempt_folder.rank_log(0), _LOG_LINES) + "\n"
    return texts


_ATTEMPT_FIELDS = (
    *("attempt", "state", "reason", "job_id", "nodes", "leaves", "node_hours", "billed_hours", "excerpt"),
    *("submitted_at", "started_at", "ended_at"),
)


def _restart(attempt: Attempt) -> int:
    return attempt.outcome.restart if attempt.outcome else 0


def _ms(epoch_s: float) -> int:
    return round(epoch_s * 1000)


def _past_ms(search: SearchRecord, epoch_s: float) -> int:
    """Moment of a search that is not in the future: the clock of a simulated one runs ahead, so there it is at most the
    search's creation."""
    return _ms(min(epoch_s, search.created_at) if is_simulated(search) else epoch_s)


def _model(spec: Mapping[str, Any]) -> str | None:
    """Size and shape of the model."""
    return next((row.text for row in setup_rows(spec, ()) if row.name == "Model"), None)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings, with keys joined by dots; None is omitted."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _key(name: str) -> str:
    """Name restricted to the characters that every MLflow version allows, and that is not a path."""
    allowed = "".join(c if (c.isalnum() and c.isascii()) or c in "_-. " else "_" for c in name)
    return ("_" + allowed[1:] if allowed.startswith(".") else allowed)[:_LONGEST_KEY]


def _param(value: Any) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value), _LONGEST_PARAM)


def _tags(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: _cut(value, _LONGEST_TAG) for name, value in values.items() if value}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
