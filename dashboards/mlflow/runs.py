"""A search as MLflow should show it: one parent run, one child a trial. Pure; the names are the contract's.

Everything follows from the search's record and its folder, with times that were recorded and not taken now, so that
a search sent twice, or long after its end, gives the same runs and the same points.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from search_spaces.plain_file import read_plain
from trials.analysis.verdict import DisplayState, counts_of, display_state, ranking_of
from trials.files.folders import SearchFolder
from trials.files.text import tail
from trials.ledger.events import SearchRecord
from trials.measurement.node_metrics import MOST_NODES, read_samples
from trials.measurement.step_log import StepRecord, read_metrics
from trials.trial import (
    Attempt,
    FailureReason,
    LowerStrEnum,
    Trial,
    TrialKind,
    TrialState,
    is_finite_number,
    utc_seconds,
    utc_text,
)

NOTE = "mlflow.note.content"
"""The tag that people write into as well."""
NOTE_MARK = "parlay.note"
"""By which a description is known as the one that we wrote."""
REPORT = "parlay.report"
"""When the report was written that is among the artifacts."""
MARKS = (NOTE_MARK, REPORT)
"""Tags about what was sent, which stay until it is sent anew."""

_LONGEST_PARAM = 500  # older servers take no more; the whole configuration is an artifact
_LONGEST_TAG = 5000
_LONGEST_KEY = 250
_CUT = " [truncated]"
_LOG_LINES = 500
_HIGHEST_STEP = 2**63 - 1

_UNREADABLE = (OSError, ValueError, TypeError, RecursionError)
"""What reading a file that a trial wrote may raise: a word for a number, an array without an end."""

_KILLED = (FailureReason.PRUNED, FailureReason.PREEMPTED)


class RunStatus(LowerStrEnum):
    """MLflow's words, in MLflow's capitals."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def is_ended(self) -> bool:
        return self is not RunStatus.RUNNING


@dataclass(frozen=True)
class Point:
    """One value of one metric. `time_ms` is UTC milliseconds since the epoch."""

    key: str
    value: float
    time_ms: int
    step: int = 0


@dataclass(frozen=True)
class RunView:
    """What one run holds. `trial` is None for the parent; `end_time_ms` is None while it runs."""

    name: str
    trial: str | None
    status: RunStatus
    start_time_ms: int
    end_time_ms: int | None
    params: Mapping[str, str]
    tags: Mapping[str, str]


def parent_view(search: SearchRecord) -> RunView:
    """The run of the search itself."""
    return RunView(
        name=search.search_id,
        trial=None,
        status=_search_status(display_state(search.state, search.end_reason)),
        start_time_ms=_ms(search.created_at),
        end_time_ms=None if search.ended_at is None else _ms(search.ended_at),
        params={_key(name): _param(value) for name, value in _flat(search.spec)},
        tags=_tags(
            {
                "parlay.search_id": search.search_id,
                "parlay.state": search.state.value,
                "parlay.reason": search.end_reason and search.end_reason.value,
            }
        ),
    )


def child_view(search: SearchRecord, trial: Trial) -> RunView:
    """The run of one trial: its last attempt; the attempts before it are in `attempts.json`."""
    return RunView(
        name=trial.trial,
        trial=trial.trial,
        status=_trial_status(trial),
        start_time_ms=_ms(trial.proposed_at or search.created_at),
        end_time_ms=_ms(trial.ended_at or search.created_at) if trial.state.is_ended else None,
        params=_child_params(trial),
        tags=_child_tags(search, trial),
    )


def note_tags(note: str) -> dict[str, str]:
    """The description with the mark by which it is known again while nobody has changed it; nothing for no text."""
    text = _cut(note, _LONGEST_TAG)
    return {NOTE: text, NOTE_MARK: hashlib.sha256(text.encode()).hexdigest()[:16]} if text else {}


def may_describe(tags: Mapping[str, str]) -> bool:
    """Whether a run with these tags has no description but one that we wrote ourselves; one taken away stays away."""
    return tags.get(NOTE_MARK) == note_tags(tags.get(NOTE, "")).get(NOTE_MARK)


def altered_names(search: SearchRecord) -> list[str]:
    """Keys of the search's file that MLflow does not take as they are, and that appear changed."""
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
    if trial.state is TrialState.CANCELLED or trial.reason in _KILLED:
        return RunStatus.KILLED
    return RunStatus.FAILED


def _child_params(trial: Trial) -> dict[str, str]:
    layout = trial.layout
    derived = {
        "global_batch_size": layout.global_batch_size,
        "num_gpus": layout.num_gpus,
        "layout_key": layout.key,
    }
    return {name: _param(value) for name, value in (layout.to_json() | derived).items() if value is not None}


def _child_tags(search: SearchRecord, trial: Trial) -> dict[str, str]:
    last = trial.last_attempt
    note = _excerpt(last) if last and trial.state.is_ended else ""
    tags = _tags(
        {
            "parlay.search_id": search.search_id,
            "parlay.trial": trial.trial,
            "parlay.attempt": last.attempt if last else None,
            "parlay.kind": trial.kind.value,
            "parlay.state": trial.state.value,
            "parlay.reason": trial.reason and trial.reason.value,
            "parlay.flags": ",".join(trial.flags),
            "parlay.job_id": last.job_id if last else None,
            "parlay.nodes": ",".join(last.nodes) if last else None,
            "parlay.best": "true" if trial.trial == search.best_trial else None,
        }
    )
    return tags | note_tags(note)


def _excerpt(attempt: Attempt) -> str:
    """What a failure left, indented: a note is rendered as Markdown, and this is a block of code."""
    return "\n".join("    " + line for line in (attempt.excerpt or "").splitlines())


@dataclass(frozen=True)
class EndedTrial:
    """All that an ended trial adds to its run: points, artifacts by their names, and why some of them are missing."""

    points: list[Point]
    texts: Mapping[str, str]
    unread: list[Exception]


def ended_trial(trial: Trial, folder: SearchFolder) -> EndedTrial:
    """Reads what the trial wrote; a file that cannot be read takes nothing else with it."""
    found = EndedTrial(trial_points(trial), {}, [])
    for read in (series_points, system_points):
        try:
            found.points.extend(_possible(read(trial, folder)))
        except _UNREADABLE as error:
            found.unread.append(error)
    try:
        return replace(found, texts=trial_texts(trial, folder))
    except OSError as error:
        found.unread.append(error)
    return found


def _possible(points: list[Point]) -> list[Point]:
    """The points, or ValueError where MLflow would refuse one of them, and all that is sent with it."""
    for point in points:
        if not isinstance(point.step, int) or not 0 <= point.step <= _HIGHEST_STEP or point.time_ms < 0:
            raise ValueError(f"{point.key} of step {point.step!r:.40} at {point.time_ms} ms is impossible")
    return points


def trial_points(trial: Trial) -> list[Point]:
    """What an ended trial measured and cost, each once."""
    last = trial.last_attempt
    if last is None:
        return []
    time_ms = _ms(last.ended_at or last.submitted_at or 0.0)
    values = dict(_flat(last.outcome.measured)) if last.outcome else {}
    values["node_hours"] = sum(a.node_hours or 0.0 for a in trial.attempts)
    values["queue_wait_s"] = last.queue_wait_s
    for name in ("step_time_s", "peak_memory_gib"):
        values[f"predicted_{name}"] = (trial.prediction or {}).get(name)
    return [Point(_key(name), float(value), time_ms) for name, value in values.items() if is_finite_number(value)]


def series_points(trial: Trial, folder: SearchFolder) -> list[Point]:
    """The steps of the last attempt, from its metrics file; ValueError when a line of it cannot be read."""
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
    """What the nodes of the last attempt did meanwhile; ValueError when one's file cannot be read.

    Under MLflow's own names, which its page of system metrics looks for; of several nodes each has its number, in the
    order of the ranks, as MLflow's own `node_id` stands there.
    """
    last = trial.last_attempt
    if last is None:
        return []
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    points: list[Point] = []
    for node in range(min(last.num_nodes, MOST_NODES)):
        prefix = f"system/node_{node}/" if last.num_nodes > 1 else "system/"
        for step, sample in enumerate(read_samples(attempt_folder.system(node, _restart(last)))):
            time_ms = _ms(utc_seconds(sample.time))
            points += [Point(prefix + name, value, time_ms, step) for name, value in sample.values.items()]
    return points


def search_points(search: SearchRecord, after_step: int = 0) -> list[Point]:
    """The parent's series: where the search stood when 1, 2, 3 ... trials had ended, from after `after_step` on."""
    ended = sorted((t for t in search.trials if t.state.is_ended), key=lambda t: (t.ended_at or 0.0, t.trial))
    points: list[Point] = []
    best: Trial | None = None
    for step in range(after_step + 1, len(ended) + 1):
        time_ms = _ms(ended[step - 1].ended_at or search.created_at)
        if best is None or _may_change_the_best(ended[step - 1]):
            best = ranking_of(search, ended[:step]).best
        totals = _totals(ended[:step], best)
        points += [Point(name, value, time_ms, step) for name, value in totals.items() if value is not None]
    return points


def _may_change_the_best(trial: Trial) -> bool:
    return trial.state is TrialState.MEASURED or trial.kind is TrialKind.FINALIST


def _totals(ended: list[Trial], best: Trial | None) -> dict[str, float | None]:
    """Of the trials that had ended by then; `best` is the best layout of that moment, over all its runs so far."""
    counts = counts_of(ended)
    return {
        "best_tokens_per_sec": (best.measured or {}).get("tokens_per_sec") if best else None,
        "node_hours_used": sum(a.node_hours or 0.0 for trial in ended for a in trial.attempts),
        "trials_measured": float(counts.measured),
        "trials_stopped_early": float(counts.stopped_early),
        "trials_failed": float(counts.failed),
    }


def trial_texts(trial: Trial, folder: SearchFolder) -> dict[str, str]:
    """The artifacts of an ended trial: file name -> text."""
    last = trial.last_attempt
    if last is None:
        return {}
    attempt_folder = folder.attempt(trial.trial, last.attempt)
    texts = {"attempts.json": _json([_attempt_json(attempt) for attempt in trial.attempts])}
    if last.outcome is not None:
        texts[f"outcome.r{last.outcome.restart}.json"] = _json(last.outcome.to_json())
    with suppress(OSError, ValueError):
        texts["spec.json"] = read_plain(attempt_folder.spec).decode(errors="replace")
    with suppress(OSError):
        texts["rank-00000.tail.log"] = tail(attempt_folder.rank_log(0), _LOG_LINES) + "\n"
    return texts


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    times = {name: getattr(attempt, name) for name in ("submitted_at", "started_at", "ended_at")}
    return {
        "attempt": attempt.attempt,
        "state": attempt.state.value,
        "reason": attempt.reason and attempt.reason.value,
        "job_id": attempt.job_id,
        "nodes": list(attempt.nodes),
        "node_hours": attempt.node_hours,
        "excerpt": attempt.excerpt,
    } | {name: None if time is None else utc_text(time) for name, time in times.items()}


def _restart(attempt: Attempt) -> int:
    return attempt.outcome.restart if attempt.outcome else 0


def _ms(epoch_s: float) -> int:
    return round(epoch_s * 1000)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, their keys joined with dots; what is unknown is left out."""
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _key(name: str) -> str:
    """The name with only what every MLflow allows in one, and nothing that reads as a path."""
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
