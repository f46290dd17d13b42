"""Driver shutdown: flushes the report and MLflow, then sends end-of-search notifications."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from dashboards.mlflow.background import MlflowWorker
from dashboards.mlflow.sync import SyncReport
from dashboards.report.background import ReportWorker
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.lock import SearchLock
from orchestrator.lifecycle.notify import is_notification_due, send_notification
from orchestrator.lifecycle.notify_events import event_message
from orchestrator.schema.notify import NotifyEvent
from orchestrator.search.lease import LeaseLost
from search_spaces.errors import ExternalError
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import SearchRecord

_log = logging.getLogger(__name__)


MLFLOW_SCHEMA = "parlay.mlflow/1"
MLFLOW_FLUSH_TIMEOUT_S = 30.0
"""Timeout of the last MLflow synchronisation of a search or a turn."""
MLFLOW_INTERRUPTED_FLUSH_TIMEOUT_S = 5.0
"""The same for a driver that was interrupted: a resumed search sends the rest."""

REPORT_FLUSH_TIMEOUT_S = 10.0
"""Timeout of the last report: `parlay report` can write it later."""


def flush_on_exit(
    lock: SearchLock,
    spec: SearchSpec,
    search: SearchRecord,
    report: ReportWorker,
    worker: MlflowWorker | None,
    flush_timeout_s: float,
) -> None:
    """Flush the report and MLflow, each within `flush_timeout_s`, and send notifications if the search has ended."""
    if search.state.is_ended:  # the recipe was written after the last event
        report.submit(search)
    with suppress(KeyboardInterrupt):  # stop waiting for the report, and do the rest
        report.finish(min(REPORT_FLUSH_TIMEOUT_S, flush_timeout_s))
    if worker and (worker.has_record or search.state.is_ended):  # else nothing is new
        _flush_mlflow(worker, search, lock.folder, flush_timeout_s)
    if search.state.is_ended and is_notification_due(lock.folder, spec, NotifyEvent.END):
        _send_end_notification(lock, spec, search)


def _flush_mlflow(
    worker: MlflowWorker,
    search: SearchRecord,
    folder: SearchFolder,
    flush_timeout_s: float,
) -> None:
    worker.submit(search)
    try:
        unsent = worker.finish(flush_timeout_s)
    except KeyboardInterrupt:
        unsent = worker.finish(0.0)
    if unsent:
        _log.warning(
            f"{len(unsent)} runs could not be sent to MLflow; `parlay sync {folder.cli_name}` sends them again"
        )
    if worker.report is not None:
        write_json(folder.mlflow, mlflow_json(worker.report))


def _send_end_notification(lock: SearchLock, spec: SearchSpec, search: SearchRecord) -> None:
    """Send the notification if the lease is still held: flushing MLflow may have taken longer than it lasts."""
    try:
        lock.heartbeat()
    except (LeaseLost, ExternalError, OSError) as error:
        _log.warning(f"no notification of the search's end was sent: {error}")
        return
    if (message := event_message(NotifyEvent.END, search, spec.notify, time.time())) is not None:
        send_notification(lock.folder, spec, search, NotifyEvent.END, message)


def mlflow_json(report: SyncReport) -> dict[str, str]:
    """Content of mlflow.json in a search's folder."""
    return {"schema": MLFLOW_SCHEMA, "uri": report.uri, "run_id": report.run_id}
