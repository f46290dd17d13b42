"""Views of a search as MLflow runs: one parent run, one child per trial. Pure; names are those of docs/files.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from dashboards.mlflow.naming import LONGEST_KEY, flat_items, mlflow_key
from dashboards.mlflow.points import (
    Point,
    epoch_ms,
    past_ms,
    require_loggable,
    series_points,
    system_points,
    trial_points,
)
from dashboards.report.log_excerpts import format_excerpt
from dashboards.report.setup import setup_rows
from dashboards.text import escape_markdown
from dashboards.trial_text import failure_cause, layout_name
from search_spaces.decoding import encode
from search_spaces.layouts.short_name import varying_axes
from search_spaces.plain_file import read_plain
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.verdict import DisplayState, baseline_key_of, display_state, ranking_of
from trials.failure_policy import Ending, policy_of
from trials.files.folders import SearchFolder
from trials.files.text import tail
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, LowerStrEnum, Trial, TrialKind, TrialState, utc_text

NOTE = "mlflow.note.content"
"""Tag of the description, which people edit too."""
REPORT = "parlay.report"
"""Tag with the time at which the report among the artifacts was written."""
ROLE = "parlay.role"
"""Tag of a trial's run: best, tie, baseline, repeat, or two of them."""
SEARCH_KIND = "search"
"""Tag `parlay.kind` of a search's run, by which `tags.parlay.kind = 'search'` finds the searches."""
TRIAL_KINDS = {TrialKind.SEARCH: "trial", TrialKind.REPEAT: "repeat", TrialKind.REPLAY: "replay"}
"""The same of a trial's run."""

_LONGEST_PARAM = 500  # older servers take no more; the whole configuration is an artifact
_LONGEST_TAG = 5000
_LONGEST_EXCERPT = 4000
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


@dataclass(frozen=True)
class Dataset:
    """Data behind a search's numbers, as MLflow's datasets are described."""

    name: str
    digest: str
    source_type: str
    source: str
    context: str = "training"


def parent_view(search: SearchRecord) -> RunView:
    """Run of the search itself."""
    return RunView(
        trial=None,
        status=_SEARCH_STATUS.get(display_state(search.state, search.end_reason), RunStatus.RUNNING),
        start_time_ms=epoch_ms(search.created_at),
        end_time_ms=None if search.ended_at is None else past_ms(search, search.ended_at),
        params={mlflow_key(name): _param(value) for name, value in flat_items(search.spec)},
        tags=_tags(
            {
                "parlay.search_id": search.search_id,
                "parlay.kind": SEARCH_KIND,
                "parlay.simulated": "true" if search.replayed_table else None,
                "parlay.model": next((row.text for row in setup_rows(search.spec, ()) if row.name == "Model"), None),
            }
        )
        | state_tags(search),
    )


def state_tags(search: SearchRecord) -> dict[str, str]:
    """Tags of a search's run that change."""
    finals = finals_end_of(search)
    return _tags(
        {
            "parlay.state": search.state.value,
            "parlay.reason": search.end_reason and search.end_reason.value,
            "parlay.finals": None if finals is None else finals.ending.value,
        }
    )


def best_layout(search: SearchRecord) -> str:
    """Short name of the best layout, with the axes that vary; "" without one."""
    if search.best_trial is None:
        return ""
    varying = varying_axes([trial.layout for trial in search.trials])
    return layout_name(search.trial(search.best_trial).layout, varying)


def child_view(search: SearchRecord, trial: Trial) -> RunView:
    """Run of one trial, from its last attempt; `attempts.json` has the earlier ones."""
    layout = trial.layout
    derived = {"global_batch_size": layout.global_batch_size, "num_gpus": layout.num_gpus, "layout_key": layout.key}
    return RunView(
        trial=trial.trial,
        status=_trial_status(trial),
        start_time_ms=past_ms(search, trial.proposed_at or search.created_at),
        end_time_ms=past_ms(search, trial.ended_at or search.created_at) if trial.state.is_ended else None,
        params={name: _param(v) for name, v in (layout.axis_values | derived).items() if v is not None},
        tags=_child_tags(search, trial),
    )


def roles_of(search: SearchRecord) -> dict[str, str]:
    """Roles by trial, of those that have one. Ties are told at the end of the search: every trial changes them."""
    key = baseline_key_of(search)
    baseline = next((trial.trial for trial in search.trials if trial.layout.key == key), None)
    ties = ranking_of(search, search.trials).ties if search.state.is_ended else ()
    told: dict[str, Sequence[str | None]] = {
        "best": [search.best_trial],
        "tie": [tie.trial for tie in ties],
        "baseline": [baseline],
        "repeat": [trial.trial for trial in search.trials if trial.kind is TrialKind.REPEAT],
    }
    roles: dict[str, str] = {}
    for role, trials in told.items():
        for trial in trials:
            if trial is not None:
                roles[trial] = f"{roles[trial]}, {role}" if trial in roles else role
    return roles


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


def first_note(search: SearchRecord) -> str:
    """Description of a search that has begun. It depends on nothing that changes, so at the end of the search another
    text is known to be a person's."""
    return (
        f"Search {escape_markdown(search.search_id)}, begun {utc_text(search.created_at)[:16]} UTC. The verdict stands"
        " here once it has ended, unless you edit this text; report.html among the artifacts has the state so far."
    )


def failure_note(attempt: Attempt) -> str:
    """Description of a failed trial: the cause of its failure, then the excerpt as a code block; "" without one."""
    excerpt = format_excerpt(attempt.excerpt or "", _LONGEST_EXCERPT)
    if not excerpt:
        return ""
    return f"**{escape_markdown(failure_cause(excerpt))}**\n\n" + "\n".join("    " + row for row in excerpt.split("\n"))


def as_note(text: str) -> str:
    """The text, as long as a tag may be."""
    return _cut(text, _LONGEST_TAG)


def altered_names(search: SearchRecord) -> list[str]:
    """Keys of the search file that MLflow does not accept and that are altered."""
    return [name for name, _ in flat_items(search.spec) if mlflow_key(name) != name]


_SEARCH_STATUS = {
    DisplayState.COMPLETED: RunStatus.FINISHED,
    DisplayState.FAILED: RunStatus.FAILED,
    DisplayState.REFUSED: RunStatus.FAILED,
    DisplayState.CANCELLED: RunStatus.KILLED,
}


def _trial_status(trial: Trial) -> RunStatus:
    if not trial.state.is_ended:
        return RunStatus.RUNNING
    if trial.state is TrialState.MEASURED:
        return RunStatus.FINISHED
    if trial.state is TrialState.CANCELLED or policy_of(trial.reason).ending is not Ending.FAILED:
        return RunStatus.KILLED
    return RunStatus.FAILED


def _child_tags(search: SearchRecord, trial: Trial) -> dict[str, str]:
    last = trial.last_attempt
    slowest = last.outcome.slowest_rank if last and last.outcome else None
    return _tags(
        {
            "parlay.search_id": search.search_id,
            **{f"parlay.{name}": word for name, word in encode(trial, "trial", "state", "reason").items()},
            "parlay.kind": TRIAL_KINDS[trial.kind],
            "parlay.attempt": last.attempt if last else None,
            "parlay.flags": ",".join(trial.flags),
            "parlay.job_id": last.job_id if last else None,
            "parlay.nodes": ",".join(last.nodes) if last else None,
            "parlay.slowest_node": slowest["host"] if slowest else None,
        }
    )


@dataclass(frozen=True)
class EndedTrial:
    """Points and artifacts by name of an ended trial, and the errors of its files that cannot be read."""

    points: list[Point]
    texts: Mapping[str, str]
    unread: list[Exception]


def ended_trial(search: SearchRecord, trial: Trial, folder: SearchFolder) -> EndedTrial:
    """Read the files of an ended trial; an unreadable file does not affect the others."""
    points, unread = trial_points(search, trial), list[Exception]()
    for read in (series_points, system_points):
        try:
            points.extend(require_loggable(read(trial, folder)))
        except _UNREADABLE as error:
            unread.append(error)
    return EndedTrial(points, _trial_texts(trial, folder), unread)


def _trial_texts(trial: Trial, folder: SearchFolder) -> dict[str, str]:
    last = trial.last_attempt
    if last is None:
        return {}
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    attempts = [encode(attempt, *_ATTEMPT_FIELDS) for attempt in trial.attempts]
    texts = {"attempts.json": _json(attempts)}
    if last.outcome is not None:
        texts[f"outcome.r{last.outcome.restart}.json"] = _json(last.outcome.to_json())
    restart = last.outcome.restart if last.outcome else 0
    for file in (attempt_folder.spec, attempt_folder.metrics(restart)):
        with suppress(OSError, ValueError):
            texts[file.name] = read_plain(file).decode(errors="replace")
    with suppress(OSError):
        texts["rank-00000.tail.log"] = tail(attempt_folder.rank_log(0), _LOG_LINES) + "\n"
    return texts


_ATTEMPT_FIELDS = (
    *("attempt", "state", "reason", "job_id", "nodes", "leaves", "node_hours", "billed_hours", "excerpt"),
    *("submitted_at", "started_at", "ended_at"),
)


def _param(value: Any) -> str:
    return _cut(value if isinstance(value, str) else json.dumps(value), _LONGEST_PARAM)


def _tags(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: _cut(value, _LONGEST_TAG) for name, value in values.items() if value}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT


def _json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
