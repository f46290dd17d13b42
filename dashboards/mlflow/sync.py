"""From a search's record to MLflow, as often as one likes: the only file that imports mlflow.

MLflow forgets nothing and its replies get lost, so every write asks first what is there: runs are found again by
their tags, parameters and tags are sent only where they differ, and points carry recorded times, which makes a
repeated one the same row in MLflow's store. A run ends only after all that belongs to it was sent: one that has ended
is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from dashboards.mlflow import runs
from dashboards.mlflow.artifacts import SentPages, pending_pages
from dashboards.mlflow.backend_store import SQLITE_FILE, is_database, require_usable_store, tracking_uri
from dashboards.mlflow.runs import Point, RunStatus, RunView
from dashboards.text import masked, one_line
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.trial import Trial

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

# MLflow's own retries repeat a request whose reply was lost, and a repeated creation is a second run: ours look first.
# The timeout bounds what one call can cost the thread that makes it. What the user has set stays.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "GIT_PYTHON_REFRESH": "quiet",
}
_PARAMS_OR_TAGS_PER_BATCH = 100
_POINTS_PER_BATCH = 1000
_RUNS_PER_PAGE = 1000
_OTHER_VERSION = "out-of-date database schema"
_LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_REFUSALS = {
    "UNAUTHENTICATED": _LOG_IN,
    "CUSTOMER_UNAUTHORIZED": _LOG_IN,
    "PERMISSION_DENIED": "ask for leave to edit it",
    "INVALID_PARAMETER_VALUE": "ask for leave to edit it",
}
"""MLflow's words for no, and what helps."""

T = TypeVar("T")


@dataclass(frozen=True)
class SyncReport:
    """What MLflow holds now: `run_id` is the parent's, `num_runs` counts it and the children.

    `altered_names` are keys that MLflow does not take and that were changed; `unread` says which files of the search
    could not be read and are missing.
    """

    uri: str
    run_id: str
    num_runs: int
    altered_names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class MlflowSync:
    """Writes searches into one experiment. Used by one thread at a time; several objects may share a store.

    Only whoever drives a search may sync it: two at once could both miss a run and both create it.
    Without a tracking server (a database address) artifacts lie in `home`, never in the working directory.
    """

    def __init__(self, uri: str | None, experiment: str, home: Path):
        self.uri = tracking_uri(uri, home)
        self._store = _Store(self.uri, experiment, home)
        self._sent: dict[str, dict[str | None, _Sent]] = {}

    def check(self) -> str | None:
        """Ask for the experiment, and for leave to write into it, before the first trial.

        Raises InputError for what the user has to change: a database that can never work, an experiment out of bounds.
        A store that cannot be reached now does not hinder a search: that is a sentence to show; None when all is well.
        """
        try:
            require_usable_store(self.uri)
            self._store.ask_to_write()
        except InputError as error:
            raise error.at(key="tracking.mlflow_uri") from error.__cause__
        except Exception as error:
            return (
                f"MLflow at {masked(self.uri)} cannot be reached now; the search goes on without it ({one_line(error)})"
            )
        return None

    def sync(self, search: SearchRecord, folder: SearchFolder) -> SyncReport:
        """Bring MLflow up to this record. Raises what MLflow raises; calling again sends what is missing."""
        try:
            return self._sync(search, folder)
        except Exception:
            # A reply may have been lost, so what MLflow holds is no longer known.
            self._sent.pop(search.search_id, None)
            raise

    def unsent(self, search: SearchRecord) -> list[str]:
        """The runs, by name, that MLflow does not show as they are in this record."""
        sent = self._sent.get(search.search_id, {})
        views = [runs.parent_view(search), *(runs.child_view(search, trial) for trial in search.trials)]
        return [view.name for view in views if not _shows(sent.get(view.trial), view)]

    def _sync(self, search: SearchRecord, folder: SearchFolder) -> SyncReport:
        if search.search_id not in self._sent:
            self._sent[search.search_id] = self._store.find(search.search_id)
        sent = self._sent[search.search_id]
        parent = self._begin_parent(search, folder, sent)
        unread = [words for trial in search.trials for words in self._send_child(search, trial, folder, sent)]
        unread += self._complete_parent(search, folder, sent)
        return SyncReport(self.uri, parent.run_id, len(sent), tuple(runs.altered_names(search)), tuple(unread))

    def _begin_parent(self, search: SearchRecord, folder: SearchFolder, sent: dict[str | None, _Sent]) -> _Sent:
        view = runs.parent_view(search)
        parent = sent.get(None) or sent.setdefault(None, self._store.create(view))
        if not parent.params:
            self._store.put_files(parent, [folder.yaml, folder.json])
        self._store.put_params(parent, view.params)
        return parent

    def _send_child(
        self, search: SearchRecord, trial: Trial, folder: SearchFolder, sent: dict[str | None, _Sent]
    ) -> list[str]:
        """Send one trial; returns what of its files could not be read."""
        view = runs.child_view(search, trial)
        tags = {**view.tags, "mlflow.parentRunId": sent[None].run_id}
        child = sent.get(trial.trial) or sent.setdefault(trial.trial, self._store.create(view, tags))
        self._store.put_params(child, view.params)
        self._store.put_tags(child, tags)
        return self._end_child(trial, view, folder, child) if view.status.is_ended and not child.is_ended else []

    def _end_child(self, trial: Trial, view: RunView, folder: SearchFolder, child: _Sent) -> list[str]:
        ended = runs.ended_trial(trial, folder)
        self._store.put_points(child, ended.points)
        self._store.put_texts(child, ended.texts)
        self._store.end(child, view)
        return [f"{trial.trial}: {one_line(error)}" for error in ended.unread]

    def _complete_parent(
        self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _Sent]
    ) -> list[str]:
        """Send what follows from all trials, and end the run with the search; returns what could not be read."""
        view, parent = runs.parent_view(search), sent[None]
        tags = dict(view.tags)
        if search.best_trial is not None:
            tags["parlay.best_run_id"] = sent[search.best_trial].run_id
        if (folder.recipe / "recipe.yaml").is_file():
            tags["parlay.recipe"] = str(folder.recipe)
            if "parlay.recipe" not in parent.tags:
                self._store.put_files(parent, sorted(folder.recipe.iterdir()), "recipe")
        self._store.put_points(parent, runs.search_points(search, parent.last_step))
        pages, unread = self._send_pages(search, folder, sent)
        self._store.put_tags(parent, {**tags, **pages})
        if view.status.is_ended and not parent.is_ended:
            self._store.end(parent, view)
        return unread

    def _send_pages(
        self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _Sent]
    ) -> tuple[Mapping[str, str], list[str]]:
        """Send the report and its figures where they are due; the tags that go with them, and what is missing."""
        parent = sent[None]
        is_last = search.state.is_ended and not parent.is_ended
        held, tags = SentPages(parent.tags.get(runs.REPORT), parent.described_at), dict[str, str]()
        try:
            pages = pending_pages(search, folder, held, is_last, lambda trial: self._store.place(sent[trial]))
            parent.described_at, tags = pages.described_at, dict(pages.tags)
            self._store.put_texts(parent, pages.texts)
        except Exception as error:
            # A picture that cannot be drawn, or is larger than what the server or its proxy takes, must not keep the
            # runs from being sent; a server that has gone refuses what follows as well.
            return {key: text for key, text in tags.items() if key != runs.REPORT}, [f"report.html: {one_line(error)}"]
        return tags, []


@dataclass
class _Sent:
    """What is known to be in MLflow of one run. Of the parent: `last_step` is the highest one of its series,
    `described_at` when the report was written whose search the description tells of, where this process wrote it."""

    run_id: str
    is_ended: bool = False
    params: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    last_step: int = 0
    described_at: str | None = None


def _shows(sent: _Sent | None, view: RunView) -> bool:
    """Whether MLflow has what the view says; a description may be a person's own."""
    if sent is None or sent.is_ended != view.status.is_ended:
        return False
    told = {key: value for key, value in view.tags.items() if key not in (runs.NOTE, runs.NOTE_MARK)}
    return all(sent.tags.get(key) == value for key, value in told.items())


class _Store:
    """One experiment of an MLflow store: its calls in the batches MLflow allows, what is there already left out."""

    def __init__(self, uri: str, experiment: str, home: Path):
        self._uri = uri
        self._experiment = experiment
        self._home = home

    def ask_to_write(self) -> None:
        """InputError where MLflow refuses; what else MLflow raises means that it is not to be had."""
        try:
            self._client.set_experiment_tag(self._experiment_id, "parlay", "search")
        except Exception as error:
            if _OTHER_VERSION in str(error):
                raise self._bad_version(error) from error
            fix = _REFUSALS.get(getattr(error, "error_code", ""))
            if fix is None:
                raise
            fix = f"{fix}, choose another tracking.experiment, or set tracking.enabled: false"
            raise self._bad(f"is refused by MLflow: {one_line(error)}", fix) from error

    def find(self, search_id: str) -> dict[str | None, _Sent]:
        """The runs of this search by trial, None for the parent; of one created twice the elder stays."""
        found: dict[str | None, _Sent] = {}
        for run in sorted(self._search(search_id), key=lambda run: (run.info.start_time, run.info.run_id)):
            trial = run.data.tags.get("parlay.trial")
            if trial in found:
                self._client.delete_run(run.info.run_id)
            else:
                found[trial] = self._known(run)
        return found

    def create(self, view: RunView, tags: Mapping[str, str] | None = None) -> _Sent:
        tags = dict(tags or view.tags)
        run = self._client.create_run(self._experiment_id, view.start_time_ms, tags, view.name)
        return _Sent(run.info.run_id, tags=tags)

    def put_params(self, sent: _Sent, params: Mapping[str, str]) -> None:
        """Parameters can be written once: one that is there stays as it is."""
        from mlflow.entities import Param

        missing = [Param(key, value) for key, value in params.items() if key not in sent.params]
        for batch in _batches(missing, _PARAMS_OR_TAGS_PER_BATCH):
            self._client.log_batch(sent.run_id, params=batch)
            sent.params |= {param.key for param in batch}

    def put_tags(self, sent: _Sent, tags: Mapping[str, str]) -> None:
        """Make our tags these; a description that we did not write, or not so, is somebody's own and stays."""
        from mlflow.entities import RunTag

        changed = {key: value for key, value in tags.items() if sent.tags.get(key) != value}
        if runs.NOTE in changed and not self._may_describe(sent):
            changed = {key: value for key, value in changed.items() if key not in (runs.NOTE, runs.NOTE_MARK)}
        for batch in _batches([RunTag(key, value) for key, value in changed.items()], _PARAMS_OR_TAGS_PER_BATCH):
            self._client.log_batch(sent.run_id, tags=batch)
        for key in [k for k in sent.tags if k.startswith("parlay.") and k not in tags and k not in runs.MARKS]:
            self._client.delete_tag(sent.run_id, key)
            del sent.tags[key]
        sent.tags |= changed

    def _may_describe(self, sent: _Sent) -> bool:
        """Asks MLflow again, unless it is known already that somebody else has written there."""
        if not runs.may_describe(sent.tags):
            return False
        tags = self._client.get_run(sent.run_id).data.tags
        sent.tags = {key: value for key, value in sent.tags.items() if key != runs.NOTE}
        sent.tags |= {key: tags[key] for key in (runs.NOTE, runs.NOTE_MARK) if key in tags}
        return runs.may_describe(sent.tags)

    def put_points(self, sent: _Sent, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        for batch in _batches(points, _POINTS_PER_BATCH):
            self._client.log_batch(sent.run_id, [Metric(p.key, p.value, p.time_ms, p.step) for p in batch])
        sent.last_step = max([sent.last_step, *(point.step for point in points)])

    def put_texts(self, sent: _Sent, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._client.log_text(sent.run_id, text, name)

    def put_files(self, sent: _Sent, files: Iterable[Path], folder: str | None = None) -> None:
        for file in files:
            if file.is_file():
                self._client.log_artifact(sent.run_id, str(file), folder)

    def place(self, sent: _Sent) -> str:
        """Where MLflow's pages show a run, as a link among them."""
        return f"#/experiments/{self._experiment_id}/runs/{sent.run_id}"

    def end(self, sent: _Sent, view: RunView) -> None:
        self._client.set_terminated(sent.run_id, view.status.value, view.end_time_ms)
        sent.is_ended = True

    @cached_property
    def _client(self) -> MlflowClient:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        # An SQLite file gets its tables here, on first use, and of several processes at once all but one would fail.
        with _alone(self._home / "mlflow.lock") if self._uri.startswith(SQLITE_FILE) else nullcontext():
            return MlflowClient(self._uri)

    @cached_property
    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment) or self._create_experiment()
        if found.lifecycle_stage == "deleted":
            raise self._bad(
                "has been deleted",
                f"mlflow experiments restore --experiment-id {found.experiment_id}, or choose another one",
            )
        return found.experiment_id

    def _create_experiment(self) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_experiment(self._experiment, self._artifact_location)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self._client.get_experiment_by_name(self._experiment)

    @property
    def _artifact_location(self) -> str | None:
        """A tracking server has its own place; for a bare database MLflow would take the working directory."""
        return (self._home.resolve() / "mlflow-artifacts").as_uri() if is_database(self._uri) else None

    def _search(self, search_id: str) -> Iterator[Run]:
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment_id],
                f"tags.`parlay.search_id` = '{search_id}'",
                max_results=_RUNS_PER_PAGE,
                page_token=token,
            )
            yield from page
            token = page.token
            if not token:
                return

    def _known(self, run: Run) -> _Sent:
        ended = RunStatus(run.info.status).is_ended
        steps = []
        if "parlay.trial" not in run.data.tags:
            steps = [m.step for m in self._client.get_metric_history(run.info.run_id, "trials_measured")]
        return _Sent(run.info.run_id, ended, set(run.data.params), dict(run.data.tags), max(steps, default=0))

    def _bad_version(self, error: Exception) -> InputError:
        uri = masked(self._uri)
        return InputError.of(
            "mlflow_store",
            f"MLflow's store {uri} was made by another version of MLflow: {one_line(error)}",
            value=uri,
            fix=f"save a copy of it, then: mlflow db upgrade {uri}",
        )

    def _bad(self, what: str, fix: str) -> InputError:
        return InputError.of(
            "mlflow_experiment",
            f"the experiment {self._experiment!r} at {masked(self._uri)} {what}",
            key="tracking.experiment",
            value=self._experiment,
            rule="Parlay records every search in an MLflow experiment it can write into",
            fix=fix,
        )


def _alone(lock: Path) -> FileLock:
    """Excludes other processes of this user while it is entered."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(lock, mode=0o600, fallback_to_soft=False)


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
