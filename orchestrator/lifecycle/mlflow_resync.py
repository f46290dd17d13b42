"""MLflow brought up to a search that nobody drives: what it did not take in time is sent now."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dashboards.mlflow.sync import MlflowSync
from dashboards.text import masked, one_line
from orchestrator.common.timeouts import submit_to_thread
from orchestrator.lifecycle.shutdown import mlflow_json
from orchestrator.records.lookup import MOVED_SEARCH_FIX, not_a_search
from orchestrator.search.lease import HEARTBEAT_S, LeaseLost, acquire_lease, release_lease, renew_lease
from trials.files.folders import SearchFolder, write_json
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of


@dataclass(frozen=True)
class ResyncResult:
    """`num_sent` runs of the search are in MLflow as its journal has them, those named in `unsent` are not.

    `run_id` is the parent's, None where MLflow did not say.
    """

    run_id: str | None
    num_sent: int
    unsent: tuple[str, ...] = ()


def resync(folder: SearchFolder, tracking: MlflowSync, note: Callable[[str], None]) -> ResyncResult:
    """Send what is missing, once. `note` hears why not all of it was sent.

    The search is held meanwhile, as by its driver: of two that send at once both could create the same run. Raises
    LeaseHeld while somebody else holds it, InputError where the folder is no search's, LeaseLost, JournalDamaged and
    OSError.
    """
    if not folder.exists:
        raise not_a_search(str(folder.path), "it holds no journal.jsonl", MOVED_SEARCH_FIX)
    lease = acquire_lease(folder, time.time())
    try:
        search = _recorded_search(folder)
        sending = submit_to_thread(partial(tracking.sync, search, folder), "mlflow")
        while not wait([sending], HEARTBEAT_S).done:
            lease = renew_lease(folder, lease, time.time())
        unsent = tuple(tracking.unsent(search))
        try:
            report = sending.result()
        except Exception as error:  # whatever MLflow and its libraries raise
            note(f"MLflow at {masked(tracking.uri)} fails: {one_line(error)}")
            return ResyncResult(None, 0, unsent)
        write_json(folder.mlflow, mlflow_json(report))
        return ResyncResult(report.run_id, report.num_runs - len(unsent), unsent)
    finally:
        with suppress(LeaseLost):  # then there is nothing left to free
            release_lease(folder, lease, time.time())


def _recorded_search(folder: SearchFolder) -> SearchRecord:
    search = search_of(folder.journal, folder.search_id, Journal(folder.journal).read())
    if search is None:
        raise not_a_search(str(folder.path), "its journal.jsonl holds no event", MOVED_SEARCH_FIX)
    return search
