"""One session of a supervised driver, in an actor's process or a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from orchestrator.common.logs import FileSink, sending_to
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import reopen_search
from orchestrator.lifecycle.drive import SearchCallbacks, drive
from orchestrator.records.lookup import OwnSearch, own_search
from orchestrator.search.driver import Driver
from orchestrator.search.lease import LeaseHeld, LeaseLost
from orchestrator.service.quota_file import QuotaFile
from search_spaces.errors import ExternalError, InputError
from trials.files.folders import SearchFolder
from trials.ledger.events import FencedError, SearchRecord
from trials.ledger.reader import LedgerReader

_log = logging.getLogger(__name__)


_LAUNCHER_REMARK = (
    "launcher ray: its ranks run as local processes, since the service's drivers already share a Ray or a process"
)


class DriverExit(StrEnum):
    """End of a driver's session. A retry does not help `refused`; it may help `failed` and `lost`."""

    ENDED = "ended"
    STOPPED = "stopped"
    HELD = "held"
    REFUSED = "refused"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True)
class DriverResult:
    """End of a session; `detail` is the reason, "" for ended and stopped."""

    end: DriverExit
    detail: str = ""


class DriverSession:
    """Drives the search in this folder until it has ended or `stop` is called. Pickled and sent to the process that
    runs it.

    `quota` limits the trials in flight; None for no limit.
    """

    def __init__(self, folder: Path, ledger_url: str, quota: QuotaFile | None = None):
        self._folder = SearchFolder(folder)
        self._ledger_url = ledger_url
        self._quota = quota
        self._driver: Driver | None = None
        self._stop_asked = False

    def run(self) -> DriverResult:
        """Drive the search; errors become the result and a line in the driver.log of our own folder."""
        with ExitStack() as log:
            try:
                found = own_search(self._folder, self._ledger_url)
                log.enter_context(sending_to(FileSink(found.folder.driver_log)))
                search = self._drive(found)
            except LeaseHeld as held:
                return DriverResult(DriverExit.HELD, str(held))
            except InputError as error:
                return self._failed(DriverExit.REFUSED, "; ".join(p.message for p in error.problems))
            except (LeaseLost, FencedError, ExternalError, OSError) as error:
                return self._failed(DriverExit.FAILED, str(error))
            except Exception as bug:
                return self._failed(DriverExit.FAILED, f"{type(bug).__name__}: {bug}")
            return DriverResult(DriverExit.ENDED if search.state.is_ended else DriverExit.STOPPED)

    def stop(self) -> None:
        """Leave at the next safe point; trials in flight keep running."""
        self._stop_asked = True
        if self._driver is not None:
            self._driver.stop_now()

    def _drive(self, found: OwnSearch) -> SearchRecord:
        cancelling = self._cancel_requested()
        started = reopen_search(found, cancelling)
        spec = _with_local_ranks(started.spec)
        callbacks = SearchCallbacks(driver_context=self._track_driver, grant_slots=self._grant_slots)
        candidates, tracking = started.candidates, started.tracking
        return drive(started.folder, spec, candidates, tracking, started.ledger_url, callbacks, cancelling)

    def _cancel_requested(self) -> bool:
        """True if a cancel is pending. It needs neither the search's code nor its files, which may have changed or
        gone."""
        with closing(LedgerReader(self._ledger_url)) as reader:
            return bool(reader.pending_commands(self._folder.search_id))

    @contextmanager
    def _track_driver(self, driver: Driver) -> Iterator[None]:
        self._driver = driver
        if self._stop_asked:
            driver.stop_now()
        try:
            yield
        finally:
            self._driver = None

    def _grant_slots(self, active: int, requested: int) -> int:
        return requested if self._quota is None else self._quota.grant(self._folder.search_id, active, requested)

    def _failed(self, end: DriverExit, detail: str) -> DriverResult:
        _log.error(f"the driver ended: {detail}")
        return DriverResult(end, detail)


def _with_local_ranks(spec: SearchSpec) -> SearchSpec:
    """The spec without a Ray for its ranks: they cannot use a second one beside the driver's."""
    if spec.launcher.kind != "ray":
        return spec
    _log.info(_LAUNCHER_REMARK)
    return replace(spec, launcher=spec.launcher.model_copy(update={"kind": "local"}))


class DriverThread(threading.Thread):
    """A driver's session in a thread of this process."""

    def __init__(self, session: DriverSession):
        super().__init__(name="driver", daemon=True)
        self.session = session
        self.result: DriverResult | None = None

    def run(self) -> None:
        self.result = self.session.run()
