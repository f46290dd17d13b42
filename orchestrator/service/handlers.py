"""Calls of the service, over the ledger and the supervised searches, and the answers of its own."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dashboards.report.log_page import LiveLog
from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.loader import load_search_text
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import SubmitAnswer, create_search, validate_search
from orchestrator.lifecycle.driver_status import find_driver_status
from orchestrator.lifecycle.logs import ListSink, sending_to
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


_FolderPath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]
SearchId = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$", description="A search's id, or a unique prefix of it.")
]
TrialName = Annotated[
    str, Field(pattern=r"^t[0-9]{4,9}(\.a[0-9]{1,9})?$", description="t0001 (its last attempt) or t0001.a1.")
]
Rank = Annotated[int, Field(ge=0, le=10**6)]


class _Body(BaseModel):
    """Body of a request; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SubmitRequest(_Body):
    yaml: str = Field(min_length=1, max_length=1_000_000, description="The text of a search file.")
    directory: _FolderPath = Field(description="Absolute path; base of relative paths in the file and of its work_dir.")
    set: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default=[], max_length=1_000, description="Changes to the file, each key.key=value."
    )


class ResumeRequest(_Body):
    folder: _FolderPath | None = Field(default=None, description="The search's folder, if it is not in the ledger.")
    ledger_url: str | None = Field(
        default=None, max_length=4096, description="The search's ledger, if it is not the service's."
    )


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
    """Charged to the search; of a step in a pilot the time on its own nodes, for reports only."""


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
    """The calls: the REST interface has each as it is declared here, and the pages use them too. Thread-safe.

    Raises InputError for the caller's mistakes, LeaseHeld, NotReady, ExternalError, and OSError.
    """

    def __init__(self, supervisor: DriverSupervisor, url: str, about: Mapping[str, Any]):
        """`about` is merged into `health`."""
        self._supervisor = supervisor
        self.ledger_url = url
        self._about = about

    def health(self) -> HealthAnswer:
        """Identity of the service, and the number of searches it drives."""
        counts = Counter(entry.state for entry in self._supervisor.searches().values())
        drivers = {state: counts[state] for state in DriverState}
        return HealthAnswer(version=VERSION, pid=os.getpid(), **self._about, drivers=drivers)

    def searches(self) -> SearchesAnswer:
        """All searches of the ledger, newest first."""
        with closing(LedgerReader(self.ledger_url)) as reader:
            return searches_of(reader.searches())

    def submit(self, request: SubmitRequest) -> SubmitAnswer:
        """Validate a search file, create the search and drive it."""
        notes = ListSink()
        spec = load_search_text(request.yaml, Path(request.directory), request.set)
        _require_no_other_ray(spec)
        with sending_to(notes), create_search(validate_search(spec, self.ledger_url)) as started:
            folder = started.folder
        self._supervisor.supervise(ServiceSearch(folder.search_id, folder.path, started.ledger_url))
        return SubmitAnswer(search_id=folder.search_id, folder=str(folder.path), notes=tuple(notes.messages))

    def status(self, search: SearchId) -> StatusAnswer:
        """State of a search."""
        found = self._locate(search)
        driver = None
        if not found.record.state.is_ended and found.folder.exists:
            driver = find_driver_status(found.folder, self._driver_to_come)
        return status_of(found.record, found.spec, found.folder, driver)

    def cancel(self, search: SearchId) -> AcceptedAnswer:
        """End a search and its trials in flight; its events show when that is done. Its driver reads the request; the
        service drives it if nobody does."""
        found = self._own(search)
        if not found.record.state.is_ended:
            request_cancel(found.ledger_url, found.record.search_id, time.time())
            if lease_holder(found.folder, time.time()) is None:
                self._supervise(found)
        return _accepted(found.record)

    def resume(self, search: SearchId, request: ResumeRequest | None = None) -> AcceptedAnswer:
        """Drive a search whose driver has gone; a search that has ended stays as it is."""
        if request is None or request.folder is None:
            found = self._own(search)
        else:
            folder = SearchFolder(Path(request.folder))
            if folder.search_id != search:
                message, fix = f"{folder.path} is not its folder", "name the folder that holds its journal.jsonl"
                raise InputError.of("unknown_id", message, key="folder", fix=fix)
            found = own_search(folder, request.ledger_url)
        _require_no_other_ray(found.spec)
        entry = self._supervisor.searches().get(found.record.search_id)
        if entry is None or entry.state is not DriverState.DRIVING:
            require_no_holder(found.folder, time.time())
        if not found.record.state.is_ended:
            self._supervise(found)
        return _accepted(found.record)

    def trials(self, search: SearchId) -> TrialsAnswer:
        """All trials, in the order of their proposal."""
        record = self._locate(search).record
        return TrialsAnswer(search_id=record.search_id, trials=[TrialAnswer.of(trial) for trial in record.trials])

    def best(self, search: SearchId) -> BestAnswer:
        """The best layout so far."""
        found = self._locate(search)
        best = best_of(found.record, found.spec, found.folder)
        if best is None:
            raise NotReady(f"search {found.record.search_id}: {result_line(found.record, found.spec)}")
        return best

    def recipe(self, search: SearchId) -> RecipeAnswer:
        """recipe.yaml and its folder."""
        found = self._locate(search)
        search_id, folder = found.record.search_id, found.folder.recipe
        if not folder.exists():
            raise NotReady(f"search {search_id} has no recipe: {missing_recipe_reason(found)}")
        recipe = read_recipe(folder).recipe.to_json()
        return RecipeAnswer(search_id=search_id, folder=str(folder), recipe=recipe)

    def logs(self, search: SearchId, trial: TrialName, rank: Rank | None = None) -> LogsAnswer:
        """Output of a trial's ranks: the first real error, or the end of one rank's log."""
        found = self._locate(search)
        which, attempt = find_attempt(found.record, trial)
        folder = found.folder.attempt(which.trial, attempt.attempt)
        if rank is None:
            return logs_of(attempt, folder)
        log = folder.rank_log(rank)
        if log not in folder.rank_logs():
            fix = "leave rank out to list the logs"
            raise InputError.of("unknown_id", f"there is no log {log.name}", key="rank", value=rank, fix=fix)
        return logs_of(attempt, folder, tail(log, _LOG_LINES))

    def record(self, search: str) -> SearchRecord:
        return self._locate(search).record

    def _driver_to_come(self, search_id: str) -> DriverStatus | None:
        """What the service does about a search without a driver; None where it does not drive it."""
        entry = self._supervisor.searches().get(search_id)
        if entry is None:
            return None
        if entry.state is not DriverState.STOPPED:
            return DriverStatus("the search is waiting for the service to drive it")
        words = f"the service has stopped driving it: {entry.detail}; parlay resume {search_id} starts a driver"
        return DriverStatus(words, is_expected=False)

    def live_log(self, search: str, name: str, rank: int) -> LiveLog:
        """End of the log of a rank, read now; without one if the rank has not written yet."""
        found = self._locate(search)
        trial, attempt = find_attempt(found.record, name)
        folder = found.folder.attempt(trial.trial, attempt.attempt)
        logs, log, text = folder.rank_logs(), folder.rank_log(rank), None
        if log in logs:
            if links_outside(log, found.folder.path):
                raise OSError(f"{log} is reached by a link that leads out of the search's folder")
            text = tail(log, _LIVE_LINES)
        ranks = sorted(int(number[1]) for file in logs if (number := _RANK_LOG.search(file.name)))
        return LiveLog(found.record, trial, attempt, rank, tuple(ranks), text)

    def stopped_searches(self) -> dict[str, str]:
        """Ids of the searches that the service has given up, with the reason."""
        entries = self._supervisor.searches().items()
        return {search: each.detail or "" for search, each in entries if each.state is DriverState.STOPPED}

    def missing_driver(self, search_id: str) -> str | None:
        """Reason why nobody drives the search and nobody will by itself; None where somebody does."""
        found = find_driver_status(SearchFolder(self.journal_path(search_id).parent), self._driver_to_come)
        return None if found.is_expected else found.detail

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
