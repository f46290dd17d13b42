"""Requests and responses of the service, with the contract's names. FastAPI validates both and derives openapi.json."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.service.executors import ExecutorKind
from orchestrator.service.supervisor import DriverState
from trials.analysis.verdict import DisplayState, VerdictKind
from trials.ledger.events import EndReason, SearchState
from trials.trial import FailureReason, TrialKind, TrialState

SearchIdText = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")]
TrialText = Annotated[str, Field(pattern=r"^t[0-9]{4,9}(\.a[0-9]{1,9})?$")]
_PathText = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")]


class Request(BaseModel):
    """A request body; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SubmitRequest(Request):
    yaml: str = Field(min_length=1, max_length=1_000_000, description="The text of a search file.")
    directory: _PathText = Field(description="Absolute path; base of relative paths in the file and of its work_dir.")
    set: list[Annotated[str, Field(max_length=10_000)]] = Field(
        default=[], max_length=1_000, description="Changes to the file, each key.key=value."
    )


class ResumeRequest(Request):
    folder: _PathText | None = Field(default=None, description="The search's folder, if it is not in the ledger.")
    ledger_url: str | None = Field(
        default=None, max_length=4096, description="The search's ledger, if it is not the service's."
    )


class Problem(BaseModel):
    """A problem and its fix."""

    code: str
    message: str
    rule: str | None = None
    fix: str | None = None
    key: str | None = None
    value: Any = None
    file: str | None = None
    line: int | None = None


class FirstProblem(Problem):
    others: list[Problem] = []


class ErrorAnswer(BaseModel):
    error: FirstProblem


class Answer(BaseModel):
    """`schema_` is `schema` on the wire."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: str = Field(alias="schema")


class HealthAnswer(Answer):
    version: str
    pid: int
    executor: ExecutorKind
    max_in_flight: int | None
    slurm: dict[str, str] = Field(description="Environment variables that select the service's Slurm.")
    drivers: dict[DriverState, int]


class SubmitAnswer(Answer):
    search_id: str
    folder: str
    notes: list[str]


class SearchRow(BaseModel):
    search_id: str
    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    best_trial: str | None
    folder: str | None


class SearchesAnswer(Answer):
    searches: list[SearchRow]


class DriverAnswer(BaseModel):
    """State of the service's driver; null if the service does not drive the search."""

    state: DriverState
    failures: int
    detail: str | None


class VerdictAnswer(BaseModel):
    """Result of the search relative to its baseline, over all runs of both layouts, also as text."""

    kind: VerdictKind
    state: DisplayState
    headline: str
    sentence: str
    trial: str | None
    baseline: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    ties: list[str]


class StatusAnswer(Answer):
    search_id: str
    state: SearchState
    end_reason: EndReason | None
    detail: str | None
    verdict: VerdictAnswer
    best: dict[str, Any] | None
    num_trials: int
    trials: dict[str, int]
    reasons: dict[str, int]
    budget: dict[str, float | None]
    node_time: dict[str, Any]
    recipe: str | None
    mlflow: dict[str, str] | None
    driver: DriverAnswer | None


class AttemptAnswer(BaseModel):
    attempt: str
    state: TrialState
    reason: FailureReason | None
    waits_for: str | None
    job_id: str | None
    nodes: list[str]
    submitted_at: str | None
    started_at: str | None
    ended_at: str | None
    node_hours: float | None


class TrialAnswer(BaseModel):
    trial: str
    kind: TrialKind
    state: TrialState
    reason: FailureReason | None
    layout: dict[str, Any]
    layout_key: str
    prediction: dict[str, Any] | None
    measured: dict[str, Any] | None
    flags: list[str]
    attempts: list[AttemptAnswer]


class TrialsAnswer(Answer):
    search_id: str
    trials: list[TrialAnswer]


class BestAnswer(Answer):
    model_config = ConfigDict(extra="allow")
    search_id: str
    verdict: VerdictAnswer
    trial: str
    recipe: str | None


class RecipeAnswer(Answer):
    search_id: str
    folder: str
    recipe: dict[str, Any]


class LogsAnswer(Answer):
    trial: str
    attempt: str
    files: list[str]
    excerpt: str | None


class AcceptedAnswer(Answer):
    search_id: str
    state: SearchState
