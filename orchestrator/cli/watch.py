"""`parlay watch`: follows a search that another process drives. Read-only."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.cli.driver_errors import exit_code_of, print_search, resume_fix
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, exit_with_error, warn
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import ExternalError, InputError, Problem

if TYPE_CHECKING:
    from trials.files.folders import SearchFolder
    from trials.ledger.events import Event, SearchRecord

_log = logging.getLogger(__name__)


JOURNAL_POLL_S = 1.0
"""Seconds between two reads of a search's journal."""
DRIVER_POLL_S = 5.0
"""Seconds between two checks of its driver."""
NO_DRIVER_LIMIT_S = 10.0
"""Seconds without a driver, and without one to be expected, until watching ends."""
DRIVER_END_LIMIT_S = 60.0
"""Limit on waiting for the driver's exit after the search has ended."""


def watch(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Follow a search until it ends, whatever drives it; ctrl-C leaves it running."""
    from dashboards.terminal.live_table import LiveView
    from orchestrator.records.lookup import find_search

    found = find_search(search, ledger)
    spec, folder = found.spec, found.folder
    stream = sys.stderr if as_json else sys.stdout
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, stream)
    try:
        with _terms_interrupt(), view:
            record = SearchFollower(folder, view, driver_status).follow()
    except KeyboardInterrupt:
        fix = f"parlay watch {folder.cli_name} resumes watching, parlay cancel {folder.cli_name} ends the search"
        exit_with_error(
            ExitCode.INTERRUPTED, Problem("interrupted", "stopped watching; the search continues", fix=fix), as_json
        )
    print_search(record, folder, spec, as_json)
    if not record.state.is_ended:
        warn(f"stopped watching: the search has no driver; nothing is lost: {resume_fix(folder)}")
        raise Exit(ExitCode.STOPPED_EARLY)
    if (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


@contextmanager
def _terms_interrupt() -> Iterator[None]:
    """Within this block SIGTERM acts like ctrl-C, so that the terminal is restored."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class DriverStatus:
    """Status of a search's driver. `description` is None if a driver is at work. `is_expected`: one is at work, or will
    start by itself. `process` is the one that holds the search, and its host; None without any."""

    description: str | None = None
    is_expected: bool = True
    process: str | None = None


class SearchView(Protocol):
    """Display of a search; LiveView implements it."""

    def begin(self, search: SearchRecord) -> None: ...

    def update(self, search: SearchRecord, event: Event) -> None: ...


class SearchFollower:
    """Polls a search's journal and updates a view."""

    def __init__(
        self,
        folder: SearchFolder,
        view: SearchView,
        status_of: Callable[[SearchFolder], DriverStatus],
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ):
        self._folder = folder
        self._view = view
        self._driver_status = status_of
        self._clock = clock
        self._wait = wait
        self._last_note: str | None = None
        self._undriven_since: float | None = None
        self._driver_polled_at: float | None = None

    def follow(self) -> SearchRecord:
        """Return the search once it has ended, or once it has no driver and none is expected.

        Raises JournalDamaged, and InputError if its folder is not visible from here.
        """
        records = self._records()
        record = next(records)
        self._view.begin(record)
        while not record.state.is_ended and not self._is_abandoned():
            self._wait(JOURNAL_POLL_S)
            record = next(records)
        if record.state.is_ended:
            self._wait_for_driver_end()
        return record

    def _records(self) -> Iterator[SearchRecord]:
        """Yield the search at each poll, and show new events."""
        from trials.ledger.journal import Journal, JournalDamaged, search_after

        journal, search, seen = Journal(self._folder.journal), None, None
        while True:
            try:
                for event in journal.read_on():
                    search = search_after(journal.path, self._folder.search_id, event, search)
                    if seen is not None and event.seq > seen:
                        self._view.update(search, event)
            except JournalDamaged:
                if search is None:
                    raise
                journal, search = Journal(self._folder.journal), None  # its writer may have replaced a line
                continue
            except OSError as error:
                self._note_once(f"{self._folder.journal}: {error.strerror}; retrying")
            if search is None:
                raise _unreachable_error(self._folder)
            seen = max(seen or 0, search.last_seq)
            yield search

    def _is_abandoned(self) -> bool:
        """True if the search has had no driver for NO_DRIVER_LIMIT_S; polls the driver every DRIVER_POLL_S."""
        now = self._clock()
        if self._driver_polled_at is not None and now - self._driver_polled_at < DRIVER_POLL_S:
            return False
        self._driver_polled_at = now
        found = read_driver_status(self._folder, self._driver_status)
        self._note_once(found.description)
        if found.is_expected:
            self._undriven_since = None
            return False
        self._undriven_since = now if self._undriven_since is None else self._undriven_since
        return now - self._undriven_since >= NO_DRIVER_LIMIT_S

    def _wait_for_driver_end(self) -> None:
        """Wait until the driver has finished recipe and MLflow, after the last event."""
        deadline = self._clock() + DRIVER_END_LIMIT_S
        while self._clock() < deadline and read_driver_status(self._folder, self._driver_status).description is None:
            self._wait(JOURNAL_POLL_S)

    def _note_once(self, words: str | None) -> None:
        """Note each remark once, until another one follows."""
        if words is not None and words != self._last_note:
            _log.info(words)
        self._last_note = words


def read_driver_status(folder: SearchFolder, status_of: Callable[[SearchFolder], DriverStatus]) -> DriverStatus:
    """Return the driver's status; errors become a status."""
    try:
        return status_of(folder)
    except ExternalError as refused:
        fix = f"; {refused.fix}" if refused.fix else ""
        return DriverStatus(f"the driver's status is unknown: {refused}{fix}")
    except (OSError, ValueError) as error:
        return DriverStatus(f"the driver's status is unknown: {error}")


def driver_status(folder: SearchFolder) -> DriverStatus:
    """Status of the search's driver, from its lease, the service, cron and Slurm. Slurm is queried only if nobody holds
    the lease, and only for driver jobs."""
    from orchestrator.search.lease import LeaseHeld, current_lease
    from trials.trial import utc_text

    now = time.time()
    lease = current_lease(folder)
    if lease is not None and lease.is_held(now):
        process = f"process {lease.pid} on {lease.host}"
        return DriverStatus(None if lease.is_fresh(now) else str(LeaseHeld(lease, now)), process=process)
    if (in_service := _in_service(folder)) is not None:
        return in_service
    no_driver = "the search has no driver" + ("" if lease is None else f" since {utc_text(lease.heartbeat_at)}")
    if folder.cron_script.exists():
        return DriverStatus(f"{no_driver}: {_next_turn(folder)}")
    if folder.driver_script.exists():
        return _next_job(folder, no_driver)
    return DriverStatus(f"{no_driver}: {resume_fix(folder)} starts one", is_expected=False)


def _next_turn(folder: SearchFolder) -> str:
    """Next start of the search's driver: a scrontab job in Slurm's queue, or cron, which cannot be queried."""
    from orchestrator.lifecycle import driver_queue
    from slurm.interface import SlurmUnreachable

    with suppress(SlurmUnreachable):
        if (words := driver_queue.cron_job_in_queue(folder.search_id, driver_queue.shared_squeue())) is not None:
            return words
    return "it waits for its next turn, which cron starts"


def _next_job(folder: SearchFolder, no_driver: str) -> DriverStatus:
    """Status of the driver's next job; while Slurm does not answer there may be one."""
    from orchestrator.lifecycle import driver_queue
    from slurm.interface import SlurmUnreachable

    try:
        words = driver_queue.driver_in_queue(folder.search_id, driver_queue.shared_squeue())
    except SlurmUnreachable as error:
        fix = f"{resume_fix(folder)} starts one now"
        return DriverStatus(
            f"{no_driver}: it is waiting for its driver's next job, whose state Slurm does not report ({error}); {fix}"
        )
    if words is None:
        fix = f"{resume_fix(folder)} --as-job submits one"
        return DriverStatus(f"{no_driver}, and no job of its driver is in Slurm's queue: {fix}", is_expected=False)
    return DriverStatus(f"{no_driver}: {words}")


def _in_service(folder: SearchFolder) -> DriverStatus | None:
    """Status of the service's driver; None if no service drives the search."""
    from orchestrator.service.client import running_service
    from trials.ledger.location import home_folder

    found = running_service(home_folder())
    driver = None if found is None else found[0].driver_status(folder.search_id)
    if driver is None:
        return None
    if driver["state"] == "stopped":
        words = f"the service has stopped driving it: {driver['detail']}; {resume_fix(folder)} starts a driver"
        return DriverStatus(words, is_expected=False)
    return DriverStatus("the search is waiting for the service to drive it")


def _unreachable_error(folder: SearchFolder) -> InputError:
    return InputError.of(
        "unknown_id",
        f"{folder.journal} is not visible from here",
        key="search",
        value=folder.search_id,
        rule="watching reads the journal in the search's folder",
        fix=f"watch on a machine that sees the folder; from here, parlay status {folder.cli_name}",
    )
