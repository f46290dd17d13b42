"""Request handlers of the service, over the ledger and the supervised searches, and the answers of its own."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from dashboards.report.log_page import LiveLog
from orchestrator.common.answer import Answer, AnswerPart
from orchestrator.common.logs import ListSink, sending_to
from orchestrator.config.loader import load_search_text
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import SubmitAnswer, create_search, validate_search
from orchestrator.lifecycle.driver_status import driver_status
from orchestrator.recipe.read import read_recipe
from orchestrator.records.lookup import (
    LocatedSearch,
    OwnSearch,
    find_attempt,
    missing_recipe_reason,
    own_search,
    recorded_search,
)
from orchestrator.records.summary import (
    BestAnswer,
    DriverStatus,
    LogsAnswer,
    SearchesAnswer,
    StatusAnswer,
    best_of,
    logs_of,
    result_line,
    searches_of,
    status_of,
)
from orchestrator.search.lease import lease_holder, require_no_holder
from orchestrator.service.state_dir import ServiceSearch
from orchestrator.service.supervisor import DriverState, DriverSupervisor
from search_spaces.decoding import encode
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from trials.files.folders import SearchFolder, links_outside
from trials.files.text import tail
from trials.ledger.commands import request_cancel
from trials.ledger.events import SearchRecord, SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, Flag, Trial, TrialKind, TrialState

VERSION = version("parlay")
_LOG_LINES = 10_000
_LIVE_LINES = 1000
_RANK_LOG = re.compile(r"rank-([0-9]{1,6})\.log$")


class HealthAnswer(Answer):
    """Identity of the service, and the number of searches it drives."""

    schema_: Literal["parlay.health/1"] = "parlay.health/1"
    version: str
    pid: int
    executor: str
    max_in_flight: int | None
    slurm: Mapping[str, str]
    """Environment variables that select the service's Slurm."""
    drivers: Mapping[DriverState, int]


class AcceptedAnswer(Answer):
    """A request that the search's driver carries out."""

    schema_: Literal["parlay.accepted/1"] = "parlay.accepted/1"
    search_id: str
    state: SearchState


class AttemptAnswer(AnswerPart):
    """An attempt of a trial."""

    attempt: str
    state: TrialState
    reason: FailureReason | None
    waits_for: str | None
    """Slurm's reason, while its job waits in the queue."""
    job_id: str | None
    nodes: list[str]
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    node_hours: float | None


class TrialAnswer(AnswerPart):
    """A trial with all its attempts."""

    trial: str
    kind: TrialKind
    state: TrialState
    reason: FailureReason | None
    layout: Layout
    layout_key: str
    prediction: Mapping[str, Any] | None
    measured: Mapping[str, Any] | None
    flags: list[Flag]
    attempts: list[AttemptAnswer]

    @classmethod
    def of(cls, trial: Trial) -> TrialAnswer:
        """The trial with known times as UTC text, and the numbers that were measured."""
        names = AttemptAnswer.model_fields
        return cls(
            trial=trial.trial,
            kind=trial.kind,
            state=trial.state,
            reason=trial.reason,
            layout=trial.layout,
            layout_key=trial.layout.key,
            prediction=trial.prediction,
            measured=None if trial.measured is None else trial.measured.to_json(),
            flags=list(trial.flags),
            attempts=[AttemptAnswer(**encode(attempt, *names)) for attempt in trial.attempts],
        )


class TrialsAnswer(Answer):
    """Trials of a search, in the order of their proposal."""

    schema_: Literal["parlay.trials/1"] = "parlay.trials/1"
    search_id: str
    trials: list[TrialAnswer]


class RecipeAnswer(Answer):
    """recipe.yaml and its folder."""

    schema_: Literal["parlay.recipe_answer/1"] = "parlay.recipe_answer/1"
    search_id: str
    folder: str
    recipe: Mapping[str, Any]


class NotReady(Exception):
    """The requested result does not exist yet."""


class RequestHandlers:
    """Handlers of the service's requests. Thread-safe.

    Raises InputError for the caller's mistakes, LeaseHeld, ExternalError, and OSError.
    """

    def __init__(self, supervisor: DriverSupervisor, url: str, about: Mapping[str, Any]):
        """`about` is merged into `health`."""
        self._supervisor = supervisor
        self.ledger_url = url
        self._about = about

    def health(self) -> HealthAnswer:
        counts = Counter(entry.state for entry in self._supervisor.searches().values())
        drivers = {state: counts[state] for state in DriverState}
        return HealthAnswer(version=VERSION, pid=os.getpid(), **self._about, drivers=drivers)

    def submit(self, yaml: str, directory: str, changes: list[str]) -> SubmitAnswer:
        """Validate as `parlay submit` does, create the search and drive it."""
        notes = ListSink()
        spec = load_search_text(yaml, Path(directory), changes)
        _require_no_other_ray(spec)
        with sending_to(notes), create_search(validate_search(spec, self.ledger_url)) as started:
            folder = started.folder
        self._supervisor.supervise(ServiceSearch(folder.search_id, folder.path, started.ledger_url))
        return SubmitAnswer(search_id=folder.search_id, folder=str(folder.path), notes=tuple(notes.messages))

    def searches(self) -> SearchesAnswer:
        with closing(LedgerReader(self.ledger_url)) as reader:
            return searches_of(reader.searches())

    def status(self, search: str) -> StatusAnswer:
        found = self._locate(search)
        driver = None
        if not found.record.state.is_ended and found.folder.exists:
            driver = driver_status(found.folder, self._driver_to_come)
        return status_of(found.record, found.spec, found.folder, driver)

    def _driver_to_come(self, search_id: str) -> DriverStatus | None:
        """What the service does about a search without a driver; None where it does not drive it."""
        entry = self._supervisor.searches().get(search_id)
        if entry is None:
            return None
        if entry.state is not DriverState.STOPPED:
            return DriverStatus("the search is waiting for the service to drive it")
        words = f"the service has stopped driving it: {entry.detail}; parlay resume {search_id} starts a driver"
        return DriverStatus(words, is_expected=False)

    def record(self, search: str) -> SearchRecord:
        return self._locate(search).record

    def trials(self, search: str) -> TrialsAnswer:
        record = self._locate(search).record
        return TrialsAnswer(search_id=record.search_id, trials=[TrialAnswer.of(trial) for trial in record.trials])

    def best(self, search: str) -> BestAnswer:
        found = self._locate(search)
        best = best_of(found.record, found.spec, found.folder)
        if best is None:
            raise NotReady(f"search {found.record.search_id}: {result_line(found.record, found.spec)}")
        return best

    def recipe(self, search: str) -> RecipeAnswer:
        found = self._locate(search)
        search_id, folder = found.record.search_id, found.folder.recipe
        if not folder.exists():
            raise NotReady(f"search {search_id} has no recipe: {missing_recipe_reason(found)}")
        recipe = read_recipe(folder).recipe.to_json()
        return RecipeAnswer(search_id=search_id, folder=str(folder), recipe=recipe)

    def logs(self, search: str, name: str, of_rank: int | None) -> LogsAnswer:
        found = self._locate(search)
        trial, attempt = find_attempt(found.record, name)
        folder = found.folder.attempt(trial.trial, attempt.attempt)
        if of_rank is None:
            return logs_of(attempt, folder)
        log = folder.rank_log(of_rank)
        if log not in folder.rank_logs():
            fix = "leave rank out to list the logs"
            raise InputError.of("unknown_id", f"there is no log {log.name}", key="rank", value=of_rank, fix=fix)
        return logs_of(attempt, folder, tail(log, _LOG_LINES))

    def live_log(self, search: str, name: str, rank: int) -> LiveLog:
        """End of the log of a rank, read now; without one if the rank has not written yet."""
        found = self._locate(search)
        trial, attempt = find_attempt(found.record, name)
        folder = found.folder.attempt(trial.trial, attempt.attempt)
        logs = folder.rank_logs()
        log = folder.rank_log(rank)
        text = None
        if log in logs:
            if links_outside(log, found.folder.path):
                raise OSError(f"{log} is reached by a link that leads out of the search's folder")
            text = tail(log, _LIVE_LINES)
        ranks = sorted(int(number[1]) for file in logs if (number := _RANK_LOG.search(file.name)))
        return LiveLog(found.record, trial, attempt, rank, tuple(ranks), text)

    def cancel(self, search: str) -> AcceptedAnswer:
        """Request the search's end. Its driver reads the request; the service drives it if nobody does."""
        found = self._own(search)
        if not found.record.state.is_ended:
            request_cancel(found.ledger_url, found.record.search_id, time.time())
            if lease_holder(found.folder, time.time()) is None:
                self._supervise(found)
        return _accepted(found.record)

    def resume(self, search: str, folder: str | None, url: str | None) -> AcceptedAnswer:
        """Drive a search from now on. Raises LeaseHeld if another driver does."""
        found = self._own(search) if folder is None else _in_folder(search, folder, url)
        _require_no_other_ray(found.spec)
        entry = self._supervisor.searches().get(found.record.search_id)
        if entry is None or entry.state is not DriverState.DRIVING:
            require_no_holder(found.folder, time.time())
        if not found.record.state.is_ended:
            self._supervise(found)
        return _accepted(found.record)

    def stopped_searches(self) -> dict[str, str]:
        """Ids of the searches that the service has given up, with the reason."""
        entries = self._supervisor.searches().items()
        return {search: each.detail or "" for search, each in entries if each.state is DriverState.STOPPED}

    def missing_driver(self, search_id: str) -> str | None:
        """Reason why nobody drives the search and nobody will by itself; None where somebody does."""
        entry = self._supervisor.searches().get(search_id)
        if entry is not None:
            return (entry.detail or "") if entry.state is DriverState.STOPPED else None
        folder = SearchFolder(self.journal_path(search_id).parent)
        is_expected = folder.cron_script.exists() or folder.driver_script.exists()
        return (
            None
            if is_expected or lease_holder(folder, time.time()) is not None
            else "it has ended or was never started"
        )

    def journal_path(self, search: str) -> Path:
        """Path of the search's journal, found without reading the search's trials, since live pages ask often."""
        entry = self._supervisor.searches().get(search)
        if entry is not None:
            return SearchFolder(entry.search.folder).journal
        with closing(LedgerReader(self.ledger_url)) as reader:
            search_id = reader.resolve(search)
            folder = next(found.folder for found in reader.searches() if found.search_id == search_id)
        if folder is None:
            message = f"the ledger has no folder of search {search_id}"
            fix = "add it with parlay ledger rebuild FOLDER"
            raise InputError.of("unknown_id", message, key="search", fix=fix)
        return SearchFolder(Path(folder)).journal

    def _supervise(self, found: OwnSearch) -> None:
        self._supervisor.supervise(ServiceSearch(found.record.search_id, found.folder.path, found.ledger_url))

    def _own(self, given: str) -> OwnSearch:
        found = self._locate(given)
        return own_search(found.folder, found.ledger_url)

    def _locate(self, given: str) -> LocatedSearch:
        """Find the search by its id or an unambiguous prefix: in the ledger, or among the supervised searches."""
        entry = self._supervisor.searches().get(given)
        url = self.ledger_url if entry is None else entry.search.ledger_url
        with closing(LedgerReader(url)) as reader:
            record = reader.search(reader.resolve(given))
        return recorded_search(record, url)


def _in_folder(search_id: str, path: str, url: str | None) -> OwnSearch:
    """Return the search in the given folder, whether or not the ledger has it."""
    folder = SearchFolder(Path(path))
    if folder.search_id != search_id:
        fix = "name the folder that holds its journal.jsonl"
        raise InputError.of("unknown_id", f"{path} is not the folder of search {search_id}", key="folder", fix=fix)
    return own_search(folder, url)


def _require_no_other_ray(spec: SearchSpec) -> None:
    if spec.launcher.address is not None:
        raise InputError.of(
            "contradiction",
            f"names a running Ray, {spec.launcher.address}",
            key="launcher.address",
            value=spec.launcher.address,
            rule="which Ray an address names depends on the environment of the driver, and the service has its own",
            fix="parlay submit --no-service starts a separate driver process",
        )


def _accepted(record: SearchRecord) -> AcceptedAnswer:
    return AcceptedAnswer(search_id=record.search_id, state=record.state)
