"""A search that is to end, with everything it has in flight: its driver is asked to, or we do it where it has none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.lifecycle.drive import SearchCallbacks, drive, open_tracking
from orchestrator.lifecycle.driver_job import cancel_driver_jobs, job_name
from orchestrator.lifecycle.lock import open_or_renew_ledger
from orchestrator.lifecycle.pilot_cleanup import end_pilots
from orchestrator.records.ledger_rebuild import restore_rows
from orchestrator.records.lookup import LocatedSearch
from orchestrator.search.lease import lease_holder
from slurm.client import SlurmClient
from slurm.interface import SlurmUnreachable
from trials.files.folders import SearchFolder
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.trial import TrialState

if TYPE_CHECKING:
    from orchestrator.search.driver import Driver

CANCEL_SCHEMA = "parlay.cancel/1"
CANCEL_TIMEOUT_S = 120.0
"""Longer than the outcome of an attempt that has just ended may be late."""


@dataclass(frozen=True)
class CancelResult:
    """What became of a search that was to end: `record` as it then stands, `cancelled` the trials that were ended now.

    `unreached` names what may live on: attempts by their keys, a driver that is a job, and pilots.
    """

    record: SearchRecord
    cancelled: tuple[str, ...]
    unreached: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the search has ended, and nothing of it may live on."""
        return self.record.state.is_ended and not self.unreached

    def to_json(self) -> dict[str, Any]:
        """The contract's object for `parlay cancel --json`."""
        return {
            "schema": CANCEL_SCHEMA,
            "search_id": self.record.search_id,
            "cancelled": list(self.cancelled),
            "unreached": list(self.unreached),
        }


def cancel_search(found: LocatedSearch, note: Callable[[str], None]) -> CancelResult:
    """End the search, as far as that can be done: its driver has `CANCEL_TIMEOUT_S` for it, and where it has none, or
    none any more, what is in flight is tried for as long.

    Raises LeaseHeld where another driver takes it over meanwhile, ExternalError and OSError as `drive`.
    """
    jobs = _end_driver_jobs(found.folder, note)
    record = found.record
    if record.state.is_ended:
        note(f"search {record.search_id} has already ended: {record.state}")
    else:
        record = _end_search(found, note)
    if record.state.is_ended:
        jobs += end_pilots(found.folder, found.spec, note)
    attempts = [f"{record.search_id}.{attempt.trial}.{attempt.attempt}" for attempt in record.in_flight]
    return CancelResult(record, _cancelled_since(found.record, record), (*attempts, *jobs))


def _end_driver_jobs(folder: SearchFolder, note: Callable[[str], None]) -> list[str]:
    """End the search's driver where it is a Slurm job, and the one that waits behind it; the name of what may be left.

    A driver in a job stops at its next safe point when it is cancelled, and frees the search for us.
    """
    if not folder.driver_script.exists():
        return []
    name = job_name(folder.search_id)
    try:
        return [name] if cancel_driver_jobs(SlurmClient(), folder.search_id) else []
    except SlurmUnreachable as error:
        note(str(error))
        return [name]


def _end_search(found: LocatedSearch, note: Callable[[str], None]) -> SearchRecord:
    """Have the driver end the search, or end it ourselves once nobody drives it; the record as it then stands."""
    asked, deadline = False, time.monotonic() + CANCEL_TIMEOUT_S
    with closing(LedgerReader(found.ledger_url)) as reader:
        record = found.record
        while not record.state.is_ended and time.monotonic() < deadline:
            if lease_holder(found.folder, time.time()) is None:
                return _take_over_and_end(found, note)
            if not asked:
                _request_cancel(found, note)
                asked = True
            time.sleep(0.2)
            record = reader.search(record.search_id)
    return record


def _request_cancel(found: LocatedSearch, note: Callable[[str], None]) -> None:
    """By way of the ledger, which has to be sound and to know the search; its driver finds it where it lies then."""
    with closing(open_or_renew_ledger(found.ledger_url, note)) as ledger:
        restore_rows(found.folder, Journal(found.folder.journal).read(), ledger)
    request_cancel(found.ledger_url, found.record.search_id, time.time())


def _take_over_and_end(found: LocatedSearch, note: Callable[[str], None]) -> SearchRecord:
    """Nobody drives the search: take it over just to end it, as far as it can be reached in time."""
    tracking, watcher = open_tracking(found.spec, note), SearchCallbacks(note=note, driver_context=_stop_after_timeout)
    return drive(found.folder, found.spec, (), tracking, found.ledger_url, watcher, cancelling=True)


@contextmanager
def _stop_after_timeout(driver: Driver) -> Iterator[None]:
    """Within this block a driver that cannot end what is in flight, as while Slurm is away, gives up in the end."""
    alarm = threading.Timer(CANCEL_TIMEOUT_S, driver.stop_now)
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def _cancelled_since(before: SearchRecord, now: SearchRecord) -> tuple[str, ...]:
    ended = {trial.trial for trial in before.trials if trial.state.is_ended}
    return tuple(t.trial for t in now.trials if t.state is TrialState.CANCELLED and t.trial not in ended)
