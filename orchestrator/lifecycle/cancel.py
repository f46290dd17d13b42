"""Cancels a search and its running attempts, through its driver, or directly if no driver runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Literal

from orchestrator.config.answer import Answer
from orchestrator.lifecycle.create import reopen_search
from orchestrator.lifecycle.drive import driving, end_pilots
from orchestrator.lifecycle.driver_job import cancel_driver_jobs, job_name
from orchestrator.lifecycle.lock import open_or_renew_ledger
from orchestrator.records.ledger_rebuild import restore_rows
from orchestrator.records.lookup import OwnSearch
from orchestrator.search.lease import lease_holder
from slurm.client import SlurmClient
from slurm.interface import SlurmUnreachable
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchRecord, SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import TrialState

if TYPE_CHECKING:
    from orchestrator.search.driver import Driver

_log = logging.getLogger(__name__)


CANCEL_TIMEOUT_S = 120.0
"""Longer than the outcome file of an attempt that has just ended may take to appear."""


class CancelAnswer(Answer):
    """Printed by cancel, and returned by `api.cancel`."""

    schema_: Literal["parlay.cancel/1"] = "parlay.cancel/1"
    search_id: str
    state: SearchState
    """The search's, afterwards."""
    cancelled: list[str]
    """Trials that this cancelled."""
    unreached: list[str]
    """Jobs that may still run: attempts by their keys, `SEARCH_ID.driver`, and pilots."""

    @property
    def is_complete(self) -> bool:
        """True if the search has ended and none of its jobs may still run."""
        return self.state.is_ended and not self.unreached


def cancel_search(found: OwnSearch) -> CancelAnswer:
    """End the search: ask its driver and wait up to `CANCEL_TIMEOUT_S`; without a driver cancel its attempts directly.

    Raises LeaseHeld where another driver takes it over meanwhile, ExternalError and OSError as `drive`.
    """
    jobs = _end_driver_jobs(found.folder)
    record = found.record
    if record.state.is_ended:
        _log.info(f"search {record.search_id} has already ended: {record.state}")
    else:
        record = _end_search(found)
    if record.state.is_ended:
        jobs += end_pilots(found.folder, found.spec)
    attempts = [f"{record.search_id}.{attempt.trial}.{attempt.attempt}" for attempt in record.in_flight]
    return CancelAnswer(
        search_id=record.search_id,
        state=record.state,
        cancelled=_cancelled_since(found.record, record),
        unreached=[*attempts, *jobs],
    )


def _end_driver_jobs(folder: SearchFolder) -> list[str]:
    """Cancel the jobs of a driver in Slurm, running and waiting; returns the job name if one may still be there.

    A driver in a cancelled job stops at its next safe point and releases the search's lease.
    """
    if not folder.driver_script.exists():
        return []
    name = job_name(folder.search_id)
    try:
        return [name] if cancel_driver_jobs(SlurmClient(), folder.search_id) else []
    except SlurmUnreachable as error:
        _log.warning(str(error))
        return [name]


def _end_search(found: OwnSearch) -> SearchRecord:
    """Ask the driver to end the search, or end it here once it has no driver; returns the new record."""
    asked, deadline = False, time.monotonic() + CANCEL_TIMEOUT_S
    with closing(LedgerReader(found.ledger_url)) as reader:
        record = found.record
        while not record.state.is_ended and time.monotonic() < deadline:
            if lease_holder(found.folder, time.time()) is None:
                return _take_over_and_end(found)
            if not asked:
                _request_cancel(found)
                asked = True
            time.sleep(0.2)
            record = reader.search(record.search_id)
    return record


def _request_cancel(found: OwnSearch) -> None:
    """Write the cancel command into the ledger, after repairing it and adding the search if that is missing."""
    with closing(open_or_renew_ledger(found.ledger_url)) as ledger:
        restore_rows(found.folder, found.record, ledger)
    request_cancel(found.ledger_url, found.record.search_id, time.time())


def _take_over_and_end(found: OwnSearch) -> SearchRecord:
    """Become the driver of a search without one, only to end it within the time limit."""
    with driving(reopen_search(found, is_ending=True)) as driver, _stop_after_timeout(driver):
        return driver.run()


@contextmanager
def _stop_after_timeout(driver: Driver) -> Iterator[None]:
    """Stop the driver after `CANCEL_TIMEOUT_S` if it cannot end its attempts, for example while Slurm is down."""
    alarm = threading.Timer(CANCEL_TIMEOUT_S, driver.stop_now)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def _cancelled_since(before: SearchRecord, now: SearchRecord) -> list[str]:
    ended = {trial.trial for trial in before.trials if trial.state.is_ended}
    return [t.trial for t in now.trials if t.state is TrialState.CANCELLED and t.trial not in ended]
