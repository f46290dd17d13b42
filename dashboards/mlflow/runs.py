"""Views of a search as MLflow runs: one parent run, one child per trial. Pure; names are those of docs/files.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from dashboards.mlflow.naming import LONGEST_KEY, flat_items, mlflow_key
from dashboards.mlflow.points import Point, epoch_ms, past_ms, require_valid, series_points, system_points, trial_points
from dashboards.report.setup import setup_rows
from dashboards.trial_text import layout_name
from search_spaces.decoding import encode
from search_spaces.layouts.short_name import varying_axes
from search_spaces.plain_file import read_plain
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.verdict import (
    DisplayState,
    display_state,
)
from trials.failure_policy import Ending, policy_of
from trials.files.folders import SearchFolder
from trials.files.text import tail
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, LowerStrEnum, Trial, TrialKind, TrialState

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
_CUT = " [truncated]"
_LOG_LINES = 500

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
        start_time_ms=epoch_ms(search.created_at),
        end_time_ms=None if search.ended_at is None else past_ms(search, search.ended_at),
        params={mlflow_key(name): _param(value) for name, value in flat_items(search.spec)},
        tags=_tags(
            {
                "parlay.search_id": search.search_id,
                "parlay.kind": SEARCH_KIND,
                "parlay.simulated": "true" if search.replayed_table else None,
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
        start_time_ms=past_ms(search, trial.proposed_at or search.created_at),
        end_time_ms=past_ms(search, trial.ended_at or search.created_at) if trial.state.is_ended else None,
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
    """The search's data: a dataset, synthetic tokens, those of another trainer's own arguments; of a simulated
    search, which trains on nothing, the measured table."""
    if search.replayed_table is not None:
        return _dataset({"path": search.replayed_table}, "table", "measured table")
    trainer = search.spec.get("trainer") or {}
    data = trainer.get("data") or {"kind": "the trainer's own"}
    return _dataset(data, f"{data.get('kind', 'tokens')} tokens", "training")


def _dataset(data: Mapping[str, Any], name: str, context: str) -> Dataset:
    """Dataset named by its file where it has one."""
    path, source = data.get("path"), json.dumps(data, sort_keys=True)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    if path:
        name = PurePath(str(path)).name
    return Dataset(name[:LONGEST_KEY], digest, "local" if path else "code", source, context)


def note_tags(note: str) -> dict[str, str]:
    """Tags of the description and its checksum, by which later edits are noticed; {} for an empty text."""
    text = _cut(note, _LONGEST_TAG)
    return {NOTE: text, NOTE_MARK: hashlib.sha256(text.encode()).hexdigest()[:16]} if text else {}


def may_describe(tags: Mapping[str, str]) -> bool:
    """True if the description is ours and unchanged, or was never set; a deleted one is not restored."""
    return tags.get(NOTE_MARK) == note_tags(tags.get(NOTE, "")).get(NOTE_MARK)


def altered_names(search: SearchRecord) -> list[str]:
    """Keys of the search file that MLflow does not accept and that are altered."""
    return [name for name, _ in flat_items(search.spec) if mlflow_key(name) != name]


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
    slowest = last.outcome.slowest_rank if last and last.outcome else None
    tags = _tags(
        {
            "parlay.search_id": search.search_id,
            **{f"parlay.{name}": word for name, word in encode(trial, "trial", "state", "reason").items()},
            "parlay.kind": TRIAL_KINDS[trial.kind],
            "parlay.attempt": last.attempt if last else None,
            "parlay.flags": ",".join(trial.flags),
            "parlay.job_id": last.job_id if last else None,
            "parlay.nodes": ",".join(last.nodes) if last else None,
            "parlay.slowest_node": slowest["host"] if slowest else None,
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
            found.points.extend(require_valid(read(trial, folder)))
        except _UNREADABLE as error:
            found.unread.append(error)
    try:
        return replace(found, texts=trial_texts(trial, folder))
    except OSError as error:
        found.unread.append(error)
    return found


def trial_texts(trial: Trial, folder: SearchFolder) -> dict[str, str]:
    """Artifacts of an ended trial: file name -> text."""
    last = trial.last_attempt
    if last is None:
        return {}
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    attempts = [encode(attempt, *_ATTEMPT_FIELDS) for attempt in trial.attempts]
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


def _model(spec: Mapping[str, Any]) -> str | None:
    """Size and shape of the model."""
    return next((row.text for row in setup_rows(spec, ()) if row.name == "Model"), None)


def _param(value: Any) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value), _LONGEST_PARAM)


def _tags(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: _cut(value, _LONGEST_TAG) for name, value in values.items() if value}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
