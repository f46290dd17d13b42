"""Those that hear of a search while it is driven, and what its end writes: recipe, measured.csv, MLflow, report,
notifications."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from dashboards.background import MlflowWorker, ReportWorker
from dashboards.mlflow.sync import MlflowSync, SyncReport, import_mlflow
from orchestrator.config.schema.notify import NotifyEvent
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.lifecycle.lock import SearchLock
from orchestrator.lifecycle.notify import Notifier, event_message, is_notification_due, send_notification
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.write import write_recipe
from orchestrator.records.observations import write_measured_table
from orchestrator.search import background_imports
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks
from orchestrator.search.lease import LeaseLost
from orchestrator.search.samplers.factory import import_for_sampler
from search_spaces.errors import ExternalError
from trials.analysis.verdict import baseline_of
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import Event, SearchRecord
from trials.ledger.location import home_folder
from trials.ledger.reader import LedgerReader

_log = logging.getLogger(__name__)


MLFLOW_SCHEMA = "parlay.mlflow/1"
MLFLOW_FLUSH_TIMEOUT_S = 30.0
"""Timeout of the last MLflow synchronisation of a search or a turn."""
MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S = 5.0
"""The same for a driver that was interrupted: a resumed search sends the rest."""

REPORT_FLUSH_TIMEOUT_S = 10.0
"""Timeout of the last report: `parlay report` can write it later."""


def open_tracking(spec: SearchSpec) -> MlflowSync | None:
    """Connect to MLflow and look up its experiment; None where the search file disables tracking.

    InputError for a setting the user has to change; an unreachable store is only noted.
    """
    sync = make_tracking(spec)
    if sync is not None and (remark := sync.check()) is not None:
        _log.warning(remark)
    return sync


def make_tracking(spec: SearchSpec) -> MlflowSync | None:
    """Create the MLflow client without contacting MLflow; None where the search file disables tracking."""
    if not spec.tracking.enabled:
        return None
    return MlflowSync(spec.tracking.mlflow_uri, spec.tracking.experiment, home_folder())


class Observers:
    """Observers of a held search, as a context. `host` are the callbacks of the driver's host."""

    def __init__(self, lock: SearchLock, spec: SearchSpec, tracking: MlflowSync | None, host: DriverCallbacks):
        self.host = host
        self._lock = lock
        self._spec = spec
        self._host_is_broken = False
        self._imports = _SlowImports(spec, tracking)
        self._report = ReportWorker(lock.folder)
        self._mlflow = MlflowWorker(tracking, lock.folder, self._imports.wait) if tracking else None
        self._notifier = Notifier(lock.folder, spec)

    def __enter__(self) -> Observers:
        return self

    def __exit__(self, *error: object) -> None:
        self._report.stop()
        self._imports.allow()

    def on_event(self, search: SearchRecord, event: Event) -> None:
        """Tell all of them of a recorded event."""
        if search.state.is_ended:
            settle_commands(self._lock, search)
            _write_best_recipe(self._lock.folder, self._spec, search)
        elif self._mlflow:  # the end is sent by `finish`, with the finished report
            self._mlflow.submit(search)
        self._report.submit(search)
        self._notifier.on_event(search, event)
        try:
            if not self._host_is_broken:
                self.host.on_event(search, event)
        except OSError:
            self._host_is_broken = True

    def heartbeat(self) -> None:
        """Renew the lease, and let time pass for the others. Raises LeaseLost when another driver has taken over."""
        self._lock.heartbeat()
        self._notifier.on_iteration(self._lock.history.search, self._lock.history.clock())
        self.host.heartbeat()

    def after_launches(self) -> None:
        """Begin the slow imports, once what can be launched is."""
        self._imports.begin()

    def finish(self, search: SearchRecord, is_interrupted: bool) -> None:
        """Write what an ended search lacks, flush report and MLflow, and send notifications."""
        is_ended = search.state.is_ended
        timeout_s = MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S if is_interrupted and not is_ended else MLFLOW_FLUSH_TIMEOUT_S
        if is_ended:
            _write_missing(self._lock, self._spec, search)
        self._imports.allow()
        self._notifier.finish()
        if is_ended:  # the recipe was written after the last event
            self._report.submit(search)
        with suppress(KeyboardInterrupt):  # stop waiting for the report, and do the rest
            self._report.finish(min(REPORT_FLUSH_TIMEOUT_S, timeout_s))
        if self._mlflow and (self._mlflow.has_record or is_ended):  # else nothing is new
            self._flush_mlflow(self._mlflow, search, timeout_s)
        if is_ended and is_notification_due(self._lock.folder, self._spec, NotifyEvent.END):
            self._send_end_notification(search)

    def _flush_mlflow(self, worker: MlflowWorker, search: SearchRecord, timeout_s: float) -> None:
        folder = self._lock.folder
        worker.submit(search)
        with suppress(KeyboardInterrupt):  # stop waiting for MLflow, and say what it lacks
            worker.finish(timeout_s)
        if unsent := worker.unsent():
            _log.warning(
                f"{len(unsent)} runs could not be sent to MLflow; `parlay sync {folder.cli_name}` sends them again"
            )
        if worker.report is not None:
            write_json(folder.mlflow, mlflow_json(worker.report))

    def _send_end_notification(self, search: SearchRecord) -> None:
        """Send the notification if the lease is still held: flushing MLflow may have taken longer than it lasts."""
        try:
            self._lock.heartbeat()
        except (LeaseLost, ExternalError, OSError) as error:
            _log.warning(f"no notification of the search's end was sent: {error}")
            return
        if (message := event_message(NotifyEvent.END, search, self._spec.notify, time.time())) is not None:
            send_notification(self._lock.folder, self._spec, search, NotifyEvent.END, message)


class _SlowImports:
    """Imports of sampler and MLflow, which would delay the first launch: they begin after the first iteration."""

    def __init__(self, spec: SearchSpec, tracking: MlflowSync | None):
        self._imports: list[Callable[[], object]] = [partial(import_for_sampler, spec.search.sampler)]
        if tracking is not None:
            self._imports.append(lambda: import_mlflow(tracking.uri))
        self._allowed = threading.Event()

    def begin(self) -> None:
        """Begin the imports, once."""
        if not self._allowed.is_set():
            background_imports.start(self._imports)
            self.allow()

    def allow(self) -> None:
        """Let MLflow import itself: the first iteration is over, or there will be none."""
        self._allowed.set()

    def wait(self) -> None:
        """Wait until MLflow may be imported."""
        self._allowed.wait()
        background_imports.wait()


def mlflow_json(report: SyncReport) -> dict[str, str]:
    """Content of mlflow.json in a search's folder."""
    return {"schema": MLFLOW_SCHEMA, "uri": report.uri, "run_id": report.run_id}


def _write_missing(lock: SearchLock, spec: SearchSpec, search: SearchRecord) -> None:
    """Settle commands and write recipe and measured.csv of an ended search, which a killed driver may have left out."""
    settle_commands(lock, search)
    if not lock.folder.recipe.exists():
        _write_best_recipe(lock.folder, spec, search)
    write_measured_table(lock.folder, spec, search)  # replaces an export from while it ran


def settle_commands(lock: SearchLock, search: SearchRecord) -> None:
    """Mark the commands to an ended search as settled: they are done, or came too late."""
    with closing(LedgerReader(lock.ledger_url)) as reader:
        pending = reader.pending_commands(search.search_id)
    if pending:
        lock.ledger.settle_commands(search.search_id, pending[-1].id, time.time())


def _write_best_recipe(folder: SearchFolder, spec: SearchSpec, search: SearchRecord) -> Path | None:
    """Write the recipe of the best layout so far and return its path; None where nothing was measured."""
    ranking = spec.ranking_of(search.trials)
    best = ranking.best
    if best is None or best.first.last_attempt is None:
        return None
    baseline = baseline_of(search, ranking, spec.baseline_key)
    trial_spec = attempt_factory_of(folder, spec).spec(best.first, best.first.last_attempt)
    return write_recipe(folder.recipe, RecipeSource(search, best, trial_spec, ranking, baseline), folder.code)


def attempt_factory_of(folder: SearchFolder, spec: SearchSpec) -> AttemptFactory:
    """Create the factory of the search's attempts."""
    return AttemptFactory(
        folder,
        spec.model,
        spec.cluster,
        spec.measure,
        python_of(spec),
        trainer=spec.trainer.for_trials(),
        seed=spec.search.seed,
        baseline=spec.baseline,
    )
