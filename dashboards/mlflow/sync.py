"""Idempotent synchronisation of a search's record to MLflow: the only file that imports mlflow.

Replies may be lost, so every write first checks what exists: runs are found by their tags, parameters and tags are sent
only where they differ, and points have recorded times, so that a repeated point is the same row in MLflow's store. A
run is ended last, so an ended run is complete.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from dashboards.mlflow import runs
from dashboards.mlflow.artifacts import SentPages, pending_pages
from dashboards.mlflow.backend_store import (
    MARK,
    MARK_VALUE,
    SQLITE_FILE,
    is_database,
    is_known_to_be_writable,
    require_usable_store,
    tracking_uri,
)
from dashboards.mlflow.naming import run_names
from dashboards.mlflow.points import Point, search_points
from dashboards.mlflow.runs import Dataset, RunStatus, RunView
from dashboards.mlflow.shared_views import run_path, shared_views, trials_key, view_path
from dashboards.text import mask_credentials, one_line
from search_spaces.errors import InputError
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.trial import Trial

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

# No retries by MLflow: repeating a creation whose reply was lost would make a second run; ours check first. The timeout
# bounds the time of one call. The user's own settings take precedence.
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
_EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tag by which MLflow opens its pages of runs and not those for prompts."""
_OTHER_VERSION = "out-of-date database schema"
_LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_REFUSALS = {
    "UNAUTHENTICATED": _LOG_IN,
    "CUSTOMER_UNAUTHORIZED": _LOG_IN,
    "PERMISSION_DENIED": "ask for permission to edit it",
    "INVALID_PARAMETER_VALUE": "ask for permission to edit it",
}
"""Fixes by MLflow's error codes."""

SOURCE = f"parlay {version('parlay')}"
"""Source of the runs, as MLflow shows it."""

T = TypeVar("T")


@dataclass(frozen=True)
class SyncReport:
    """Result of a synchronisation: `run_id` is the parent's, `num_runs` counts it and the children.

    `altered_names` are keys that MLflow does not accept; `unread` lists files of the search that could not be read.
    """

    uri: str
    run_id: str
    num_runs: int
    altered_names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def import_mlflow(uri: str) -> None:
    """Import MLflow and what it needs for a store at `uri`, which takes a second. Raises ImportError."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow.tracking

    if is_database(uri):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


class MlflowSync:
    """Writes searches into one experiment. For one thread at a time; several objects may share a store.

    Only the driver of a search may sync it: two writers could both create the same run. Without a tracking server
    (a database address) artifacts are in `home`, never in the working directory.
    """

    def __init__(self, uri: str | None, experiment: str, home: Path):
        self.uri = tracking_uri(uri, home)
        self._store = _Store(self.uri, experiment, home)
        self._sent: dict[str, dict[str | None, _RunState]] = {}

    def check(self) -> str | None:
        """Check before the first trial that the experiment can be written.

        Return a warning where the store is unreachable, which does not stop a search, else None. Raises InputError for
        what the user has to change: an unusable database, an experiment without permission. MLflow is imported only
        where its answer is not known without it.
        """
        try:
            require_usable_store(self.uri)
            if not is_known_to_be_writable(self.uri, self._store.experiment):
                self._store.check_access()
        except InputError as error:
            raise error.at(key="tracking.mlflow_uri") from error.__cause__
        except Exception as error:
            uri = mask_credentials(self.uri)
            return f"MLflow at {uri} is unreachable; the search continues without it ({one_line(error)})"
        return None

    def sync(self, search: SearchRecord, folder: SearchFolder) -> SyncReport:
        """Send everything that MLflow lacks of this record. Raises MLflow's errors; a repeated call sends the rest."""
        try:
            return self._sync(search, folder)
        except Exception:
            # A reply may have been lost, so the state of MLflow is unknown.
            self._sent.pop(search.search_id, None)
            raise

    def unsent(self, search: SearchRecord) -> list[str]:
        """Names of the runs that differ in MLflow from this record."""
        sent = self._sent.get(search.search_id, {})
        views = [runs.parent_view(search), *(runs.child_view(search, trial) for trial in search.trials)]
        return [view.trial or search.search_id for view in views if not _is_current(sent.get(view.trial), view)]

    def _sync(self, search: SearchRecord, folder: SearchFolder) -> SyncReport:
        if search.search_id not in self._sent:
            self._sent[search.search_id] = self._store.find(search.search_id)
        sent = self._sent[search.search_id]
        parent = self._begin_parent(search, folder, sent)
        names = run_names(search.trials) if any(trial.trial not in sent for trial in search.trials) else {}
        unread = [text for trial in search.trials for text in self._send_child(search, trial, folder, sent, names)]
        unread += self._complete_parent(search, folder, sent)
        return SyncReport(self.uri, parent.run_id, len(sent), tuple(runs.altered_names(search)), tuple(unread))

    def _begin_parent(self, search: SearchRecord, folder: SearchFolder, sent: dict[str | None, _RunState]) -> _RunState:
        view = runs.parent_view(search)
        parent = sent.get(None) or sent.setdefault(None, self._store.create(view, search.search_id, view.tags))
        if not parent.params:
            self._store.put_views(search.search_id)
            self._store.put_files(parent, [folder.yaml, folder.json])
            self._store.put_dataset(parent, runs.dataset_of(search))
        self._store.put_params(parent, view.params)
        return parent

    def _send_child(
        self,
        search: SearchRecord,
        trial: Trial,
        folder: SearchFolder,
        sent: dict[str | None, _RunState],
        names: Mapping[str, str],
    ) -> list[str]:
        """Send one trial; return the read errors of its files. `names` are those of runs to be created."""
        view = runs.child_view(search, trial)
        tags = {**view.tags, "mlflow.parentRunId": sent[None].run_id}
        if trial.trial not in sent:
            sent[trial.trial] = self._store.create(view, names[trial.trial], tags)
        child = sent[trial.trial]
        if not child.params:
            self._store.put_dataset(child, runs.dataset_of(search))
        self._store.put_params(child, view.params)
        self._store.put_tags(child, tags)
        is_due = view.status.is_ended and not child.is_ended
        return self._end_child(search, trial, view, folder, child) if is_due else []

    def _end_child(
        self, search: SearchRecord, trial: Trial, view: RunView, folder: SearchFolder, child: _RunState
    ) -> list[str]:
        ended = runs.ended_trial(search, trial, folder)
        self._store.put_points(child, ended.points)
        self._store.put_texts(child, ended.texts)
        self._store.end(child, view)
        return [f"{trial.trial}: {one_line(error)}" for error in ended.unread]

    def _complete_parent(
        self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _RunState]
    ) -> list[str]:
        """Send what depends on all trials, and end the run with the search; return the read errors."""
        view, parent = runs.parent_view(search), sent[None]
        tags = dict(view.tags)
        if search.best_trial is not None:
            tags["parlay.best_run_id"] = sent[search.best_trial].run_id
        if (folder.recipe / "recipe.yaml").is_file():
            tags["parlay.recipe"] = str(folder.recipe)
            if "parlay.recipe" not in parent.tags:
                self._store.put_files(parent, sorted(folder.recipe.iterdir()), "recipe")
        self._store.put_points(parent, search_points(search, parent.last_step))
        pages, unread = self._send_pages(search, folder, sent)
        self._store.put_tags(parent, {**tags, **pages})
        if view.status.is_ended and not parent.is_ended:
            self._store.end(parent, view)
        return unread

    def _send_pages(
        self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _RunState]
    ) -> tuple[Mapping[str, str], list[str]]:
        """Send the report and its figures where due; return the tags for them, and the errors."""
        parent = sent[None]
        is_last = search.state.is_ended and not parent.is_ended
        sent_pages, tags = SentPages(parent.tags.get(runs.REPORT), parent.described_at), dict[str, str]()
        try:
            link, trials = lambda trial: self._store.link_to(sent[trial]), self._store.link_to_trials(search.search_id)
            pages = pending_pages(search, folder, sent_pages, is_last, link, trials)
            parent.described_at, tags = pages.described_at, dict(pages.tags)
            self._store.put_texts(parent, pages.texts)
        except Exception as error:
            # A figure that cannot be drawn, or exceeds the size limit of the server or its proxy, must not stop the
            # runs from being sent; with an unreachable server the next call fails as well.
            return {key: text for key, text in tags.items() if key != runs.REPORT}, [f"report.html: {one_line(error)}"]
        return tags, []


@dataclass
class _RunState:
    """Known state of one run in MLflow.

    For the parent: `last_step` is the highest step of its series, `described_at` the time of the report that the
    description belongs to, where this process wrote it.
    """

    run_id: str
    is_ended: bool = False
    params: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    last_step: int = 0
    described_at: str | None = None


def _is_current(sent: _RunState | None, view: RunView) -> bool:
    """True if MLflow has the view, whatever the description, which people may edit."""
    if sent is None or sent.is_ended != view.status.is_ended:
        return False
    expected = {key: value for key, value in view.tags.items() if key not in (runs.NOTE, runs.NOTE_MARK)}
    return all(sent.tags.get(key) == value for key, value in expected.items())


class _Store:
    """Experiment of an MLflow store, written in the batches that MLflow allows, without what is already there."""

    def __init__(self, uri: str, experiment: str, home: Path):
        self._uri = uri
        self.experiment = experiment
        self._home = home

    def check_access(self) -> None:
        """InputError where MLflow denies access; its other errors mean that it is unreachable."""
        try:
            self._client.set_experiment_tag(self._experiment_id, MARK, MARK_VALUE)
        except Exception as error:
            if _OTHER_VERSION in str(error):
                raise self._bad_version(error) from error
            fix = _REFUSALS.get(getattr(error, "error_code", ""))
            if fix is None:
                raise
            fix = f"{fix}, choose another tracking.experiment, or set tracking.enabled: false"
            raise self._bad(f"is refused by MLflow: {one_line(error)}", fix) from error

    def find(self, search_id: str) -> dict[str | None, _RunState]:
        """Runs of this search by trial, None for the parent; of a run created twice the later one is deleted."""
        found: dict[str | None, _RunState] = {}
        for run in sorted(self._search(search_id), key=lambda run: (run.info.start_time, run.info.run_id)):
            trial = run.data.tags.get("parlay.trial")
            if trial in found:
                self._client.delete_run(run.info.run_id)
            else:
                found[trial] = self._run_state(run)
        return found

    def create(self, view: RunView, name: str, tags: Mapping[str, str]) -> _RunState:
        origin = {"mlflow.source.name": SOURCE, "mlflow.source.type": "JOB"}
        with suppress(OSError, KeyError):  # a user without a name, as in some containers
            origin["mlflow.user"] = getpass.getuser()
        run = self._client.create_run(self._experiment_id, view.start_time_ms, origin | {**tags}, name)
        return _RunState(run.info.run_id, tags={**tags})

    def put_views(self, search_id: str) -> None:
        """Set the shared views and the kind that the experiment lacks; people edit the others."""
        known = self._client.get_experiment(self._experiment_id).tags
        for name, value in (shared_views(search_id) | _EXPERIMENT_KIND).items():
            if name not in known:
                self._client.set_experiment_tag(self._experiment_id, name, value)

    def put_dataset(self, sent: _RunState, dataset: Dataset) -> None:
        from mlflow.entities import Dataset as MlflowDataset
        from mlflow.entities import DatasetInput, InputTag

        entity = MlflowDataset(dataset.name, dataset.digest, dataset.source_type, dataset.source)
        context = [InputTag("mlflow.data.context", dataset.context)]
        self._client.log_inputs(sent.run_id, [DatasetInput(entity, context)])

    def put_params(self, sent: _RunState, params: Mapping[str, str]) -> None:
        """Write the parameters that are missing; MLflow does not allow changes."""
        from mlflow.entities import Param

        missing = [Param(key, value) for key, value in params.items() if key not in sent.params]
        for batch in _batches(missing, _PARAMS_OR_TAGS_PER_BATCH):
            self._client.log_batch(sent.run_id, params=batch)
            sent.params |= {param.key for param in batch}

    def put_tags(self, sent: _RunState, tags: Mapping[str, str]) -> None:
        """Set our tags to these; a description that somebody edited is left alone."""
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

    def _may_describe(self, sent: _RunState) -> bool:
        """Ask MLflow again whether the description is unedited, unless it is known to be edited."""
        if not runs.may_describe(sent.tags):
            return False
        tags = self._client.get_run(sent.run_id).data.tags
        sent.tags = {key: value for key, value in sent.tags.items() if key != runs.NOTE}
        sent.tags |= {key: tags[key] for key in (runs.NOTE, runs.NOTE_MARK) if key in tags}
        return runs.may_describe(sent.tags)

    def put_points(self, sent: _RunState, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        for batch in _batches(points, _POINTS_PER_BATCH):
            self._client.log_batch(sent.run_id, [Metric(p.key, p.value, p.time_ms, p.step) for p in batch])
        sent.last_step = max([sent.last_step, *(point.step for point in points)])

    def put_texts(self, sent: _RunState, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            self._client.log_text(sent.run_id, text, name)

    def put_files(self, sent: _RunState, files: Iterable[Path], folder: str | None = None) -> None:
        for file in files:
            if file.is_file():
                self._client.log_artifact(sent.run_id, str(file), folder)

    def link_to_trials(self, search_id: str) -> str:
        """Link to the view of a search's trials within MLflow's pages."""
        return view_path(self._experiment_id, trials_key(search_id)).removeprefix("/")

    def link_to(self, sent: _RunState) -> str:
        """Link to a run within MLflow's pages."""
        return run_path(self._experiment_id, sent.run_id).removeprefix("/")

    def end(self, sent: _RunState, view: RunView) -> None:
        self._client.set_terminated(sent.run_id, view.status.value, view.end_time_ms)
        sent.is_ended = True

    @cached_property
    def _client(self) -> MlflowClient:
        import_mlflow(self._uri)
        from mlflow.tracking import MlflowClient

        # An SQLite file gets its tables here, on first use; concurrent processes would fail without the lock.
        with _exclusive_lock(self._home / "mlflow.lock") if self._uri.startswith(SQLITE_FILE) else nullcontext():
            return MlflowClient(self._uri)

    @cached_property
    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment) or self._create_experiment()
        if found.lifecycle_stage == "deleted":
            raise self._bad(
                "has been deleted",
                f"mlflow experiments restore --experiment-id {found.experiment_id}, or choose another one",
            )
        return found.experiment_id

    def _create_experiment(self) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            self._client.create_experiment(self.experiment, self._artifact_location)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self._client.get_experiment_by_name(self.experiment)

    @property
    def _artifact_location(self) -> str | None:
        """Location for a bare database, where MLflow would take the working directory; None for a tracking server."""
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

    def _run_state(self, run: Run) -> _RunState:
        ended = RunStatus(run.info.status).is_ended
        steps = []
        if "parlay.trial" not in run.data.tags:
            steps = [m.step for m in self._client.get_metric_history(run.info.run_id, "trials_measured")]
        return _RunState(run.info.run_id, ended, set(run.data.params), dict(run.data.tags), max(steps, default=0))

    def _bad_version(self, error: Exception) -> InputError:
        uri = mask_credentials(self._uri)
        return InputError.of(
            "mlflow_store",
            f"MLflow's store {uri} was made by another version of MLflow: {one_line(error)}",
            value=uri,
            fix=f"save a copy of it, then: mlflow db upgrade {uri}",
        )

    def _bad(self, what: str, fix: str) -> InputError:
        return InputError.of(
            "mlflow_experiment",
            f"the experiment {self.experiment!r} at {mask_credentials(self._uri)} {what}",
            key="tracking.experiment",
            value=self.experiment,
            rule="the MLflow experiment of a search must be writable",
            fix=fix,
        )


def _exclusive_lock(lock: Path) -> FileLock:
    """Lock against other processes of this user."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(lock, mode=0o600, fallback_to_soft=False)


def _batches(items: Sequence[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
