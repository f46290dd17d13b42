"""One session of a supervised driver, in an actor's process or a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from orchestrator.common.logs import FileSink, sending_to
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import validate_space
from orchestrator.lifecycle.drive import SearchCallbacks, drive, open_tracking
from orchestrator.records.lookup import MOVED_SEARCH_FIX, not_a_search
from orchestrator.search.driver import Driver
from orchestrator.search.lease import LeaseHeld, LeaseLost
from orchestrator.service.quota_file import QuotaFile
from search_spaces.errors import ExternalError, InputError
from trials.files.folders import SearchFolder
from trials.ledger.events import FencedError, SearchRecord
from trials.ledger.journal import Journal, search_of
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
        """Drive the search; errors become the result and a line in driver.log."""
        with sending_to(FileSink(self._folder.driver_log)):
            return self._run()

    def _run(self) -> DriverResult:
        try:
            search = self._drive()
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

    def _drive(self) -> SearchRecord:
        with closing(Journal(self._folder.journal)) as journal:
            search = search_of(journal.path, self._folder.search_id, journal.read())
        if search is None:
            raise not_a_search(str(self._folder.path), "it has no journal.jsonl", MOVED_SEARCH_FIX)
        spec, cancelling = self._spec(search), self._cancel_requested()
        candidates = () if cancelling or search.state.is_ended else validate_space(spec).layouts
        tracking = open_tracking(spec)
        callbacks = SearchCallbacks(driver_context=self._track_driver, grant_slots=self._grant_slots)
        return drive(self._folder, spec, candidates, tracking, self._ledger_url, callbacks, cancelling)

    def _cancel_requested(self) -> bool:
        """True if a cancel is pending. It needs neither the search's code nor its files, which may have changed or
        gone."""
        with closing(LedgerReader(self._ledger_url)) as reader:
            return bool(reader.pending_commands(self._folder.search_id))

    def _spec(self, search: SearchRecord) -> SearchSpec:
        """Spec of the search as it was created, with the folder where it is now. Its ranks cannot use a second Ray
        beside the driver's."""
        spec = replace(SearchSpec.from_json(search.spec), work_dir=self._folder.path.parent)
        if spec.launcher.kind != "ray":
            return spec
        _log.info(_LAUNCHER_REMARK)
        return replace(spec, launcher=spec.launcher.model_copy(update={"kind": "local"}))

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


class DriverThread(threading.Thread):
    """A driver's session in a thread of this process."""

    def __init__(self, session: DriverSession):
        super().__init__(name="driver", daemon=True)
        self.session = session
        self.result: DriverResult | None = None

    def run(self) -> None:
        self.result = self.session.run()
