"""Supervisor of the service's searches: each has a driver's process, started again if it dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dashboards.log_once import LogOnce
from orchestrator.lifecycle.driver_job import parlay_command
from orchestrator.search.lease import LeaseHeld, current_lease, require_no_holder, retry_releases
from orchestrator.service.driver_process import DriverExit, DriverProcess
from orchestrator.service.executors import Executor, Processes, RunningDriver
from orchestrator.service.quota import QuotaFile
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from search_spaces.errors import ExternalError
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of

_log = logging.getLogger(__name__)


MAX_FAILURES = 5
"""Consecutive drivers that failed before a search is given up."""
BACKOFF_S = 1.0
"""Seconds before the first restart; doubled before each further one."""
HELD_RETRY_S = 5.0
HEALTHY_S = 600.0
"""A driver that ran for at least this long resets the count of failures."""
STOPPED_CHECK_S = 60.0
"""Seconds between two checks: for drivers that hang, and of stopped searches, which others may drive."""
HANG_S = 600.0
"""A driver without a heartbeat for this long hangs and is ended: it renews its lease every few seconds."""
STOP_LIMIT_S = 30.0
_POLL_S = 0.5


class DriverState(StrEnum):
    """`waiting`: for its first or next session. `stopped`: given up until requested again."""

    WAITING = "waiting"
    DRIVING = "driving"
    STOPPED = "stopped"


@dataclass(frozen=True)
class SupervisedSearch:
    """State of a supervised search: `failures` in a row, and `detail`, the reason why it is not driven."""

    search: ServiceSearch
    state: DriverState = DriverState.WAITING
    failures: int = 0
    detail: str | None = None
    next_start_at: float = 0.0
    started_at: float = 0.0
    driver: RunningDriver | None = field(default=None, compare=False)


class DriverSupervisor:
    """One thread (`run`) starts drivers and handles their exits; `supervise`, `searches` and `stop` are for others."""

    def __init__(
        self,
        state_dir: ServiceStateDir,
        executor: Executor,
        max_in_flight: int | None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._state_dir = state_dir
        self._executor = executor
        self._quota = None if max_in_flight is None else QuotaFile(state_dir.quota, max_in_flight)
        limit = () if max_in_flight is None else ("--quota", str(state_dir.quota), "--in-flight", str(max_in_flight))
        self._options = ("--json", *limit)
        self._clock = clock
        self._log_once = LogOnce(_log)
        self._next_check_at = clock() + STOPPED_CHECK_S
        self._lock = threading.Lock()
        self._entries = {search.search_id: SupervisedSearch(search) for search in state_dir.read_searches().values()}
        self._stopping = threading.Event()
        self._wake = threading.Event()
        if self._quota is not None:
            self._quota.reset({name: _num_active(_record_of(entry.search)) for name, entry in self._entries.items()})

    def supervise(self, search: ServiceSearch) -> None:
        """Drive this search until it has ended, also after a restart of the service."""
        with self._lock:
            known = self._entries.get(search.search_id)
            if known is None or known.state is not DriverState.DRIVING:
                self._store({**self._entries, search.search_id: SupervisedSearch(search)})
        self._wake.set()

    def searches(self) -> dict[str, SupervisedSearch]:
        """Searches that have not ended, by id."""
        with self._lock:
            return dict(self._entries)

    def stop(self) -> None:
        """Make `run` return once every driver has left at a safe point."""
        self._stopping.set()
        self._wake.set()

    def run(self) -> None:
        """Supervise until `stop`. An error in one iteration (a full disk) is noted, and the next one follows."""
        while not self._stopping.is_set():
            try:
                self.iterate()
            except Exception as error:
                self._log_once.warning(f"retrying: {type(error).__name__}: {error}")
            self._wake.wait(_POLL_S)
            self._wake.clear()
        self._stop_drivers()

    def iterate(self) -> None:
        """Do everything that is due, once."""
        retry_releases(time.time())
        if not self._executor.is_alive:
            self._switch_to_processes()
        for entry in self.searches().values():
            if entry.driver is not None:
                if (ended := entry.driver.result()) is not None:
                    self._handle_exit(entry, ended)
            elif entry.state is DriverState.WAITING and self._clock() >= entry.next_start_at:
                self._start(entry)
        if self._clock() >= self._next_check_at:
            self._next_check_at = self._clock() + STOPPED_CHECK_S
            self._end_hanging()
            self._check_stopped()

    def _start(self, entry: SupervisedSearch) -> None:
        search = entry.search
        try:
            require_no_holder(SearchFolder(search.folder), time.time())
        except LeaseHeld as held:
            self._wait_for(entry, str(held))
            return
        command = parlay_command("resume", str(search.folder), "--ledger", search.ledger_url, *self._options)
        driver = self._executor.start(DriverProcess(command))
        self._set(replace(entry, state=DriverState.DRIVING, started_at=self._clock(), driver=driver))

    def _handle_exit(self, entry: SupervisedSearch, ended: DriverExit) -> None:
        now, record = self._clock(), _record_of(entry.search)
        if self._quota is not None:
            self._quota.set_active(entry.search.search_id, _num_active(record))
        if ended.has_finished:
            self._remove(entry)
        elif ended.was_held:
            self._wait_for(entry, ended.detail)
        elif ended.is_refused:
            self._give_up(entry, ended.detail)
        else:
            self._handle_failure(entry, ended.detail, now)

    def _wait_for(self, entry: SupervisedSearch, holder: str) -> None:
        """Leave the search to the driver that holds it, for a while."""
        next_start_at = self._clock() + HELD_RETRY_S
        self._set(replace(entry, state=DriverState.WAITING, next_start_at=next_start_at, detail=holder, driver=None))

    def _handle_failure(self, entry: SupervisedSearch, detail: str, now: float) -> None:
        failures = 1 if now - entry.started_at >= HEALTHY_S else entry.failures + 1
        if failures > MAX_FAILURES:
            self._give_up(entry, f"its driver failed {failures} times in a row, last error: {detail}")
            return
        next_start_at = now + BACKOFF_S * 2 ** (failures - 1)
        again = SupervisedSearch(entry.search, failures=failures, detail=detail, next_start_at=next_start_at)
        _log.warning(f"{entry.search.search_id}: {detail}; restarting its driver in {next_start_at - now:.0f} s")
        self._set(again)

    def _give_up(self, entry: SupervisedSearch, detail: str) -> None:
        _log.warning(f"{entry.search.search_id} has no driver any more: {detail}")
        self._set(replace(entry, state=DriverState.STOPPED, detail=detail, driver=None))

    def _end_hanging(self) -> None:
        """End the drivers that do not renew their lease. The next ones go on."""
        for entry in self.searches().values():
            if entry.driver is not None and self._clock() - entry.started_at >= HANG_S and _is_silent(entry.search):
                _log.warning(f"{entry.search.search_id}: its driver does not respond and is ended")
                entry.driver.kill()

    def _check_stopped(self) -> None:
        """Update the active trials of stopped searches, which others may drive, and remove those that have ended."""
        for entry in self.searches().values():
            if entry.state is DriverState.STOPPED:
                record = _record_of(entry.search)
                if self._quota is not None:
                    self._quota.set_active(entry.search.search_id, _num_active(record))
                if record is not None and record.state.is_ended:
                    self._remove(entry)

    def _switch_to_processes(self) -> None:
        """Any call to a dead Ray would end this process. Its actors have died, or soon will, with their drivers."""
        _log.warning("Ray has died; drivers now run as plain processes")
        dead, self._executor = self._executor, Processes()
        for entry in self.searches().values():
            if entry.driver is not None:
                self._handle_failure(entry, "Ray has died", self._clock())
        dead.close()

    def _stop_drivers(self) -> None:
        """Stop all drivers and wait for them; one that does not leave in time is ended."""
        running = {search_id: entry.driver for search_id, entry in self.searches().items() if entry.driver is not None}
        if self._executor.is_alive:
            for driver in running.values():
                driver.stop()
        deadline = self._clock() + STOP_LIMIT_S
        while running and self._clock() < deadline and self._executor.is_alive:
            for search_id, driver in list(running.items()):
                if (ended := driver.result()) is not None:
                    if ended.has_finished:
                        self._remove(self.searches()[search_id])
                    del running[search_id]
            time.sleep(0.05)
        for search_id, driver in running.items():
            _log.warning(f"{search_id}: its driver did not stop in time and is ended; nothing is lost")
            if self._executor.is_alive:
                driver.kill()

    def _set(self, entry: SupervisedSearch) -> None:
        with self._lock:
            self._entries[entry.search.search_id] = entry

    def _remove(self, ended: SupervisedSearch) -> None:
        """Remove a search, unless it was requested again meanwhile: its new driver then ends at once."""
        with self._lock:
            self._store({name: entry for name, entry in self._entries.items() if entry is not ended})

    def _store(self, entries: dict[str, SupervisedSearch]) -> None:
        """Write the searches to disk first: if the disk is full, the request fails and the search is not driven."""
        self._state_dir.write_searches({name: each.search for name, each in entries.items()})
        self._entries = entries


def _record_of(search: ServiceSearch) -> SearchRecord | None:
    """The search as in its journal; None if that cannot be read now."""
    try:
        with closing(Journal(SearchFolder(search.folder).journal)) as journal:
            return search_of(journal.path, search.search_id, journal.read())
    except Exception:  # the driver that reads a damaged journal reports it
        return None


def _is_silent(search: ServiceSearch) -> bool:
    """True if the search's newest lease is held and was not renewed for HANG_S."""
    try:
        lease = current_lease(SearchFolder(search.folder))
    except (OSError, ExternalError):
        return False
    return lease is not None and lease.is_held(time.time()) and time.time() - lease.heartbeat_at >= HANG_S


def _num_active(record: SearchRecord | None) -> int:
    """Number of trials of the search that have not ended."""
    return 0 if record is None else sum(not trial.state.is_ended for trial in record.trials)
