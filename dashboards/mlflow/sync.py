"""Idempotent synchronisation of a search's record to MLflow: the only file that imports mlflow.

A trial's run is written twice: at its launch, running, with its parameters, and at its end with all else. Replies may
be lost, so a run is looked up by its tags before it is created, and points have recorded times, so that a repeated
point is the same row in MLflow's store. A run is ended last, so an ended run is complete; one that is not is completed,
never deleted.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from filelock import FileLock

from dashboards.mlflow import runs
from dashboards.mlflow.backend_store import (
    MARK,
    MARK_VALUE,
    SQLITE_FILE,
    WRITABLE,
    is_database_address,
    is_known_to_be_writable,
    require_usable_store,
    tracking_uri,
    writable_mark,
)
from dashboards.mlflow.links import run_link, trials_link
from dashboards.mlflow.naming import run_names
from dashboards.mlflow.points import Point, search_points
from dashboards.mlflow.runs import NOTE, REPORT, ROLE, Dataset, RunStatus, RunView
from dashboards.text import mask_credentials, one_line
from search_spaces.errors import InputError
from search_spaces.plain_file import open_plain
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.trial import Trial, utc_seconds, utc_text

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
_POINTS_PER_BATCH = 800  # of at most 1000 entries, which parameters and tags count as, too
_RUNS_PER_PAGE = 1000
_EXPERIMENT_KIND = ("mlflow.experimentKind", "custom_model_development")
"""Tag by which MLflow opens its pages of runs and not those for prompts."""
_DUPLICATE = "duplicate"
"""Tag `parlay.kind` of a second run of a trial, whose creation outlasted its timeout."""
_OTHER_VERSION = "out-of-date database schema"
_LOG_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_REFUSALS = {
    "UNAUTHENTICATED": _LOG_IN,
    "CUSTOMER_UNAUTHORIZED": _LOG_IN,
    "PERMISSION_DENIED": "ask for permission to edit it",
    "INVALID_PARAMETER_VALUE": "ask for permission to edit it",
}
"""Fixes by MLflow's error codes."""

REPORT_PAUSE_S = 600.0
"""Pause between two reports sent while the search runs; each has 2 MB."""
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

    if is_database_address(uri):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


@dataclass
class _Sent:
    """Known state of a run in MLflow. `last_step` is the highest step of the parent's series."""

    run_id: str
    is_ended: bool = False
    params: set[str] = field(default_factory=set)
    tags: dict[str, str] = field(default_factory=dict)
    last_step: int = 0


class MlflowSync:
    """Writes searches into one experiment. For one thread at a time; several objects may share a store.

    Only the driver of a search may sync it: two writers could both create the same run. Without a tracking server
    (a database address) artifacts are in `home`, never in the working directory.
    """

    def __init__(self, uri: str | None, experiment: str, home: Path):
        self.uri = tracking_uri(uri, home)
        self._store = _Store(self.uri, experiment, home)
        self._sent: dict[str, dict[str | None, _Sent]] = {}

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
        """Names of the runs that are not in MLflow as they are in this record."""
        sent = self._sent.get(search.search_id, {})
        known: dict[str | None, bool] = {None: search.state.is_ended}
        known |= {trial.trial: trial.state.is_ended for trial in search.trials if _has_begun(trial)}
        wrong = [name for name, is_ended in known.items() if name not in sent or sent[name].is_ended != is_ended]
        return [name or search.search_id for name in wrong]

    def _sync(self, search: SearchRecord, folder: SearchFolder) -> SyncReport:
        altered: list[str] = []
        if search.search_id not in self._sent:
            found = self._store.find(search.search_id)
            self._begin_parent(search, folder, found)
            self._sent[search.search_id], altered = found, runs.altered_names(search)
        sent = self._sent[search.search_id]
        begun = [trial for trial in search.trials if _has_begun(trial)]
        roles, unread = runs.roles_of(search), list[str]()
        names = run_names(search.trials) if any(trial.trial not in sent for trial in begun) else {}
        for trial in begun:
            role = roles.get(trial.trial)
            if trial.trial not in sent:
                sent[trial.trial] = self._create_child(search, trial, names[trial.trial], role, sent[None])
            child = sent[trial.trial]
            if not trial.state.is_ended and not child.params:
                self._store.write(child, runs.child_view(search, trial).params)
            elif trial.state.is_ended and not child.is_ended:
                unread += self._complete_child(search, trial, folder, child)
            self._store.put_role(child, role)
        unread += self._continue_parent(search, folder, sent)
        return SyncReport(self.uri, sent[None].run_id, len(sent), tuple(altered), tuple(unread))

    def _begin_parent(self, search: SearchRecord, folder: SearchFolder, sent: dict[str | None, _Sent]) -> None:
        view = runs.parent_view(search)
        if None not in sent:
            note = {NOTE: runs.as_note(runs.first_note(search))}
            sent[None] = self._store.create(view, search.search_id, {**view.tags, **note})
        if not sent[None].params:
            self._store.put_kind()
            self._store.put_files(sent[None], [folder.yaml, folder.json])
            self._store.put_dataset(sent[None], runs.dataset_of(search))
        self._store.write(sent[None], params=view.params)

    def _create_child(self, search: SearchRecord, trial: Trial, name: str, role: str | None, parent: _Sent) -> _Sent:
        view = runs.child_view(search, trial)
        tags = {**view.tags, "mlflow.parentRunId": parent.run_id, **({ROLE: role} if role else {})}
        return self._store.create(view, name, tags)

    def _complete_child(self, search: SearchRecord, trial: Trial, folder: SearchFolder, child: _Sent) -> list[str]:
        """Send the rest of an ended trial; return the read errors of its files."""
        view, ended, tags = runs.child_view(search, trial), runs.ended_trial(search, trial, folder), dict[str, str]()
        note = runs.failure_note(trial.last_attempt) if trial.last_attempt else ""
        if note and self._store.has_note(child, None):
            tags[NOTE] = runs.as_note(note)
        self._store.put_texts(child, ended.texts)
        self._store.write(child, view.params, {**view.tags, **tags}, ended.points)
        self._store.end(child, view)
        return [f"{trial.trial}: {one_line(error)}" for error in ended.unread]

    def _continue_parent(
        self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _Sent]
    ) -> list[str]:
        """Send what depends on all trials, and end the run with the search; return the errors of the report."""
        parent, is_last = sent[None], search.state.is_ended and not sent[None].is_ended
        tags, unread = runs.state_tags(search), list[str]()
        best = "" if search.best_trial is None else sent[search.best_trial].run_id
        if parent.tags.get("parlay.best_run_id", "") != best or (is_last and best):
            tags |= {"parlay.best_run_id": best, "parlay.best_layout": runs.best_layout(search)}
        if (folder.recipe / "recipe.yaml").is_file() and "parlay.recipe" not in parent.tags:
            tags["parlay.recipe"] = str(folder.recipe)
            self._store.put_files(parent, sorted(folder.recipe.iterdir()), "recipe")
        try:
            tags |= self._send_report(search, folder, parent)
            if is_last and self._store.has_note(parent, runs.as_note(runs.first_note(search))):
                tags[NOTE] = self._describe(search, folder, sent)
        except Exception as error:
            # A report that cannot be read, or exceeds the size limit of the server or its proxy, must not stop the runs
            # from being sent; with an unreachable server the next call fails as well.
            unread.append(f"report.html: {one_line(error)}")
        self._store.write(parent, tags=tags, points=search_points(search, parent.last_step))
        if is_last:
            self._store.end(parent, runs.parent_view(search))
        return unread

    def _send_report(self, search: SearchRecord, folder: SearchFolder, parent: _Sent) -> dict[str, str]:
        """Send the report where it is newer than MLflow's, ten minutes while the search runs; return the tag for it."""
        try:
            written_s = os.lstat(folder.report).st_mtime
        except FileNotFoundError:
            return {}
        sent_at = parent.tags.get(REPORT)
        age_s = None if sent_at is None else utc_seconds(utc_text(written_s)) - utc_seconds(sent_at)
        pause_s = 0.0 if search.state.is_ended else REPORT_PAUSE_S
        # An older report than was sent comes from a restored folder.
        if age_s is not None and (age_s == 0 or 0 < age_s < pause_s):
            return {}
        with open_plain(folder.report) as stream:
            text, written_s = stream.read().decode("utf-8"), os.fstat(stream.fileno()).st_mtime
        self._store.put_texts(parent, {"report.html": text})
        return {REPORT: utc_text(written_s)}

    def _describe(self, search: SearchRecord, folder: SearchFolder, sent: Mapping[str | None, _Sent]) -> str:
        # Imported here, since the report's modules would slow every start of the command line.
        from dashboards.mlflow.description import search_description

        experiment = self._store.experiment_id
        links = {trial: run_link(experiment, run.run_id) for trial, run in sent.items() if trial is not None}
        return runs.as_note(search_description(search, folder, links, trials_link(experiment, search.search_id)))


def _has_begun(trial: Trial) -> bool:
    """True once the trial has been launched, or has ended without."""
    return bool(trial.attempts) or trial.state.is_ended


class _Store:
    """Experiment of an MLflow store, written in the batches that MLflow allows, without what is already there."""

    def __init__(self, uri: str, experiment: str, home: Path):
        self._uri = uri
        self.experiment = experiment
        self._home = home

    def check_access(self) -> None:
        """InputError where MLflow denies access; its other errors mean that it is unreachable."""
        try:
            self._client.set_experiment_tag(self.experiment_id, MARK, MARK_VALUE)
            if (mark := writable_mark(self._uri)) is not None:
                self._client.set_experiment_tag(self.experiment_id, WRITABLE, mark)
        except Exception as error:
            if _OTHER_VERSION in str(error):
                raise self._bad_version(error) from error
            fix = _REFUSALS.get(getattr(error, "error_code", ""))
            if fix is None:
                raise
            fix = f"{fix}, choose another tracking.experiment, or set tracking.enabled: false"
            raise self._bad(f"is refused by MLflow: {one_line(error)}", fix) from error

    def find(self, search_id: str) -> dict[str | None, _Sent]:
        """Runs of this search by trial, None for the parent. Of a run created twice the ended one counts, else the
        first, and the other one is ended."""
        found: dict[str | None, _Sent] = {}
        for run in sorted(self._search(search_id), key=_precedence):
            trial = run.data.tags.get("parlay.trial")
            if trial in found:
                self._client.set_tag(run.info.run_id, "parlay.kind", _DUPLICATE)
                self._client.set_terminated(run.info.run_id, RunStatus.KILLED.value)
            else:
                found[trial] = self._sent(run)
        return found

    def create(self, view: RunView, name: str, tags: Mapping[str, str]) -> _Sent:
        origin = {"mlflow.source.name": SOURCE, "mlflow.source.type": "JOB"}
        with suppress(OSError, KeyError):  # a user without a name, as in some containers
            origin["mlflow.user"] = getpass.getuser()
        run = self._client.create_run(self.experiment_id, view.start_time_ms, origin | {**tags}, name)
        return _Sent(run.info.run_id, tags={**tags})

    def put_kind(self) -> None:
        """Say what the experiment is for, unless somebody has."""
        name, value = _EXPERIMENT_KIND
        if name not in self._client.get_experiment(self.experiment_id).tags:
            self._client.set_experiment_tag(self.experiment_id, name, value)

    def put_dataset(self, sent: _Sent, dataset: Dataset) -> None:
        from mlflow.entities import Dataset as MlflowDataset
        from mlflow.entities import DatasetInput, InputTag

        entity = MlflowDataset(dataset.name, dataset.digest, dataset.source_type, dataset.source)
        context = [InputTag("mlflow.data.context", dataset.context)]
        self._client.log_inputs(sent.run_id, [DatasetInput(entity, context)])

    def write(
        self,
        sent: _Sent,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        points: Sequence[Point] = (),
    ) -> None:
        """Write the parameters that the run lacks, the tags that differ, and the points: in one batch, if MLflow takes
        that many."""
        from mlflow.entities import Metric, Param, RunTag

        new = {key: value for key, value in (tags or {}).items() if sent.tags.get(key) != value}
        missing = {key: value for key, value in (params or {}).items() if key not in sent.params}
        batches = zip_longest(
            _batches([Metric(p.key, p.value, p.time_ms, p.step) for p in points], _POINTS_PER_BATCH),
            _batches([Param(*item) for item in missing.items()], _PARAMS_OR_TAGS_PER_BATCH),
            _batches([RunTag(*item) for item in new.items()], _PARAMS_OR_TAGS_PER_BATCH),
            fillvalue=(),
        )
        for batch in batches:
            self._client.log_batch(sent.run_id, *batch)
        sent.params.update(missing)
        sent.tags |= new
        sent.last_step = max([sent.last_step, *(point.step for point in points)])

    def put_role(self, sent: _Sent, role: str | None) -> None:
        if role is not None and sent.tags.get(ROLE) != role:
            self._client.set_tag(sent.run_id, ROLE, role)
            sent.tags[ROLE] = role
        elif role is None and ROLE in sent.tags:
            self._client.delete_tag(sent.run_id, ROLE)
            del sent.tags[ROLE]

    def has_note(self, sent: _Sent, note: str | None) -> bool:
        """True if the run has this description in MLflow, None for none: nobody else has written one."""
        return self._client.get_run(sent.run_id).data.tags.get(NOTE) == note

    def put_texts(self, sent: _Sent, texts: Mapping[str, str]) -> None:
        """Write artifacts: file name -> text."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in texts.items():
                Path(folder, name).write_text(text, encoding="utf-8")
            self._client.log_artifacts(sent.run_id, folder)

    def put_files(self, sent: _Sent, files: Iterable[Path], folder: str | None = None) -> None:
        for file in files:
            if file.is_file():
                self._client.log_artifact(sent.run_id, str(file), folder)

    def end(self, sent: _Sent, view: RunView) -> None:
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
    def experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment) or self._create_experiment()
        if found.lifecycle_stage == "deleted":
            raise self._bad(
                "has been deleted",
                f"mlflow experiments restore --experiment-id {found.experiment_id}, or choose another one",
            )
        return found.experiment_id

    def _create_experiment(self) -> Any:
        from mlflow.exceptions import MlflowException

        # For a bare database MLflow would put artifacts into the working directory.
        artifacts = (self._home.resolve() / "mlflow-artifacts").as_uri() if is_database_address(self._uri) else None
        try:
            self._client.create_experiment(self.experiment, artifacts)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self._client.get_experiment_by_name(self.experiment)

    def _search(self, search_id: str) -> Iterator[Run]:
        token, wanted = None, f"tags.`parlay.search_id` = '{search_id}' AND tags.`parlay.kind` != '{_DUPLICATE}'"
        while True:
            page = self._client.search_runs([self.experiment_id], wanted, max_results=_RUNS_PER_PAGE, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _sent(self, run: Run) -> _Sent:
        steps = []
        if "parlay.trial" not in run.data.tags:
            steps = [m.step for m in self._client.get_metric_history(run.info.run_id, "trials_measured")]
        ended = RunStatus(run.info.status).is_ended
        return _Sent(run.info.run_id, ended, set(run.data.params), dict(run.data.tags), max(steps, default=0))

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


def _precedence(run: Run) -> tuple[bool, int, str]:
    return not RunStatus(run.info.status).is_ended, run.info.start_time, run.info.run_id


def _exclusive_lock(lock: Path) -> FileLock:
    """Lock against other processes of this user."""
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(lock, mode=0o600, fallback_to_soft=False)


def _batches(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
