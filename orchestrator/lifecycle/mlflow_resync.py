"""Late MLflow synchronisation of a search without a driver: sends the runs that are missing."""

from __future__ import annotations

import logging
import time
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Literal

from dashboards.mlflow.sync import MlflowSync
from dashboards.text import mask_credentials, one_line
from orchestrator.config.answer import Answer
from orchestrator.launchers.timeouts import submit_to_thread
from orchestrator.lifecycle.observers import mlflow_json
from orchestrator.records.lookup import not_a_search
from orchestrator.search.lease import HEARTBEAT_S, LeaseLost, acquire_lease, release_lease, renew_lease
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of

_log = logging.getLogger(__name__)


class SyncAnswer(Answer):
    """Printed by sync. Exit code 6 while a run is unsent."""

    schema_: Literal["parlay.sync/1"] = "parlay.sync/1"
    search_id: str
    uri: str
    run_id: str | None
    """The parent run; null where MLflow did not return it."""
    sent: int
    """Number of runs that MLflow shows as the journal has them."""
    unsent: list[str]
    """Names of runs."""


def resync(folder: SearchFolder, tracking: MlflowSync) -> SyncAnswer:
    """Send the missing runs, once. The reason is logged if some could not be sent.

    The search's lease is held meanwhile, since two processes could create the same run twice. Raises LeaseHeld while
    another process holds it, InputError for a folder without a search, LeaseLost, JournalDamaged and OSError.
    """
    lease = acquire_lease(folder, time.time())
    try:
        search = _recorded_search(folder)
        sending = submit_to_thread(partial(tracking.sync, search, folder), "mlflow")
        while not wait([sending], HEARTBEAT_S).done:
            lease = renew_lease(folder, lease, time.time())
        unsent = list(tracking.unsent(search))
        told = partial(SyncAnswer, search_id=folder.search_id, uri=tracking.uri, unsent=unsent)
        try:
            report = sending.result()
        except Exception as error:  # MLflow and its libraries raise many types
            _log.warning(f"MLflow at {mask_credentials(tracking.uri)} fails: {one_line(error)}")
            return told(run_id=None, sent=0)
        write_json(folder.mlflow, mlflow_json(report))
        return told(run_id=report.run_id, sent=report.num_runs - len(unsent))
    finally:
        with suppress(LeaseLost):  # then there is nothing to release
            release_lease(folder, lease, time.time())


def _recorded_search(folder: SearchFolder) -> SearchRecord:
    search = search_of(folder.journal, folder.search_id, Journal(folder.journal).read())
    if search is None:
        raise not_a_search(str(folder.path), "its journal.jsonl has no event")
    return search
