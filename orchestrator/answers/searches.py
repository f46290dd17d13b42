"""Answers about searches: status, best layout, logs, submission, cancellation, cron turns, the ledger."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from orchestrator.answers.costs import CostAnswer
from orchestrator.records.ledger_rebuild import RebuildResult
from orchestrator.schema.notify import NotifyEvent
from trials.analysis.best_layout import Choice
from trials.analysis.finals import FinalsEnding
from trials.analysis.ranking import Objective
from trials.analysis.verdict import DisplayState, VerdictKind
from trials.ledger.events import EndReason, SearchState
from trials.ranks.startup import StartupPart
from trials.trial import FailureReason, TrialState


class VerdictAnswer(TypedDict):
    """Conclusion of a search: the best layout against the baseline, over all runs of both."""

    kind: VerdictKind
    state: DisplayState
    headline: str
    """A few words for people."""
    sentence: str
    """One sentence for people, with the numbers."""
    trial: str | None
    """Trial of the best layout."""
    baseline: str | None
    """Trial of the baseline; null where it was never tried."""
    speedup: float | None
    """Throughput of the best layout over the baseline's; null where unknown."""
    speedup_low: float | None
    """Lower end of its 95 % interval."""
    speedup_high: float | None
    """Upper end of its 95 % interval."""
    ties: list[str]
    """Trials whose intervals overlap that of the best."""


class FastestAnswer(TypedDict):
    """The faster layout over which the best was chosen; the best itself where none was measured as faster."""

    trial: str
    value: float
    """The objective in its own unit."""
    peak_memory_gib: float | None


class ParetoPoint(TypedDict):
    """A layout that no other beats in all objectives."""

    trial: str
    layout: dict[str, Any]
    """A `Layout`."""
    num_nodes: int
    values: dict[Objective, float]
    """Value of each objective in its own unit."""


class TrainingRateAnswer(TypedDict):
    """Rate of a training over days."""

    tokens_per_day: float
    """Without the time of stalls, where checkpoints are stated (`trainer.checkpoint`)."""
    stalled_share: float | None
    """Fraction of the time in which checkpoints stall the training; null where none are stated."""
    checkpoint_stall_s: float | None
    """Time for which one checkpoint stalls it."""


class BestLayout(TypedDict):
    """The best layout of a search. Numbers are over all its runs; `trial` names the first of them."""

    trial: str
    layout: dict[str, Any]
    """A `Layout`."""
    objective: Objective
    """The first objective, which decides."""
    value: float
    """The objective in its own unit."""
    tokens_per_sec: float
    tokens_per_sec_low: float | None
    """Lower end of the 95 % interval."""
    tokens_per_sec_high: float | None
    """Upper end of the 95 % interval."""
    peak_memory_gib: float | None
    ties: list[str]
    """Trials whose intervals overlap."""
    selection_reason: Choice
    """Other than `fastest`, a faster layout was measured: `fastest` of this object."""
    fastest: FastestAnswer
    rationale: str
    """Sentence for people that says why it was chosen, without a full stop."""
    pareto: list[ParetoPoint]
    """The best first. Of several objectives; of one, against the number of nodes, where several were measured."""
    flags: list[str]
    """`Flag` values of its runs."""
    time_s: dict[str, float] | None
    """`TimeParts` of a profiled run."""
    fullest_rank: dict[str, Any] | None
    """`FullestRank` of the run that left least memory; null where it is unknown."""
    on_disjoint_nodes: bool | None
    """True if two of its runs were on disjoint sets of nodes; null with fewer than two runs, or all on one node."""
    slowest_rank: dict[str, Any] | None
    """`SlowestRank` of the run with the slowest one; null where ranks could not be compared."""
    training_rate: TrainingRateAnswer


class TrialCountsAnswer(TypedDict):
    """Number of trials by how they ended."""

    measured: int
    stopped_early: int
    """Ended with reason `pruned`; not counted as failed."""
    failed: int
    cancelled: int
    in_flight: int


class BudgetAnswer(TypedDict):
    """Node-hours of all attempts, of idle pilots, and of the Slurm jobs that drivers ran in."""

    node_hours_used: float
    node_hours_reserved: float
    """Upper bound of what attempts in flight may use."""
    node_hours_limit: float | None
    """`search.budget_node_hours`."""


class NodeTimeAnswer(TypedDict):
    """Use of the node-hours used so far. The rest of them went to launches, pauses between steps and ends."""

    measured_share: float | None
    """Fraction of `node_hours_used` that measured steps took; null before any were used."""
    measured_node_hours: float
    """Measured steps, also of trials that stopped early."""
    startup_node_hours: dict[StartupPart, float]
    """Starts of the same attempts, as far as they are known."""
    unmeasured_node_hours: float
    """Other attempts without a measurement."""
    preempted_node_hours: float
    """Attempts that were preempted, and runs before a requeue."""
    fabric_check_node_hours: float
    """The fabric check, with its retry."""
    idle_node_hours: float
    """Pilots, beyond what attempts paid for."""
    driver_node_hours: float
    """Slurm jobs that drivers ran in (--as-job), by their CPUs of those of the node."""


class MlflowAnswer(TypedDict):
    """The search's run in MLflow."""

    uri: str
    run_id: str


class FinalsAnswer(TypedDict):
    """End of the repeats of the finalists, with `search.finals: until_decided`."""

    ending: FinalsEnding
    rounds: int
    """Round in which they ended."""
    max_rounds: int
    """`search.finalist_repeats`."""
    layouts: int
    """Number of layouts measured again."""


class FabricCheckAnswer(TypedDict):
    """Fabric check of a search that began with one (`launcher.fabric_check`)."""

    state: TrialState
    """State of its job; `measured` once it has found something or nothing."""
    reason: FailureReason | None
    nodes: list[str]
    node_hours: float | None
    slow_nodes: list[str]
    """Trials avoid them, as long as enough of `num_available` are left."""
    num_available: int
    """Nodes that trials may get; 0 before its end."""
    findings: list[str]
    """A sentence for each."""
    links: dict[str, Any] | None
    """Measured links, by which the search predicts from then on, as in a cluster file's `links`."""


class SearchDriverAnswer(TypedDict):
    """Driver of a search that has not ended."""

    process: str | None
    """Process that holds the search, and its host."""
    detail: str | None
    """Reason why none is at work, and what starts one; null while one is."""


class StatusAnswer(TypedDict):
    """Printed by run, resume, status, watch and advance."""

    schema: Literal["parlay.status/1"]
    search_id: str
    state: SearchState
    end_reason: EndReason | None
    detail: str | None
    """Explanation of the end reason."""
    fabric_check: FabricCheckAnswer | None
    finals: FinalsAnswer | None
    """Null before the search has ended, without finals, and where their number was fixed."""
    verdict: VerdictAnswer
    best: BestLayout | None
    num_trials: int
    trials: TrialCountsAnswer
    reasons: dict[FailureReason, int]
    """Number of trials by failure reason."""
    budget: BudgetAnswer
    node_time: NodeTimeAnswer
    cost: CostAnswer
    recipe: str | None
    """The recipe's folder."""
    mlflow: MlflowAnswer | None
    driver: NotRequired[SearchDriverAnswer]
    """Printed by status alone, while the search has not ended and its folder is visible."""


class NotificationAnswer(TypedDict):
    """Sent by `notify`: on the command's standard input, and as the body of the webhook's POST."""

    schema: Literal["parlay.notification/1"]
    event: NotifyEvent
    message: str
    """Sentence about the event that names the search."""
    status: StatusAnswer


class BestAnswer(BestLayout):
    """Printed by best: a `BestLayout` with these keys."""

    schema: Literal["parlay.best/1"]
    search_id: str
    verdict: VerdictAnswer
    cost: CostAnswer
    recipe: str | None
    """The recipe's folder."""


class ListedSearch(TypedDict):
    """One search of the ledger."""

    search_id: str
    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    best_trial: str | None
    folder: str | None


class SearchesAnswer(TypedDict):
    """Printed by status --all."""

    schema: Literal["parlay.searches/1"]
    searches: list[ListedSearch]
    """Newest first."""


class LogsAnswer(TypedDict):
    """Printed by logs."""

    schema: Literal["parlay.logs/1"]
    trial: str
    attempt: str
    files: list[str]
    """Logs of the ranks."""
    excerpt: str | None
    """The first traceback, else the end of rank 0's log; with `--rank N` all of that rank's log."""


class SubmitAnswer(TypedDict):
    """Printed by submit with one search file, and by resume --as-job. It has one of `pid`, `job_id` and `crontab`."""

    schema: Literal["parlay.submit/1"]
    search_id: str
    folder: str
    pid: NotRequired[int]
    """Process of the driver, or of the service that drives the search."""
    job_id: NotRequired[str]
    """Slurm job of the driver, of --as-job."""
    crontab: NotRequired[str]
    """Line for crontab, of --cron."""
    scrontab: NotRequired[list[str]]
    """Lines for scrontab, of --cron."""


class FailedSubmission(TypedDict):
    """A search file whose search could not be created, or got no driver."""

    file: str
    message: str


class SubmitManyAnswer(TypedDict):
    """Printed by submit with several search files. Exit code 6 where one was refused."""

    schema: Literal["parlay.submit_many/1"]
    searches: list[SubmitAnswer]
    refused: list[FailedSubmission]


class FailedAdvance(TypedDict):
    """A search that could not be advanced."""

    search_id: str
    message: str


class AdvanceAllAnswer(TypedDict):
    """Printed by advance --all."""

    schema: Literal["parlay.advance/1"]
    searches: list[StatusAnswer]
    held: list[str]
    """Ids of searches that another driver holds."""
    refused: list[FailedAdvance]


class CancelAnswer(TypedDict):
    """Printed by cancel."""

    schema: Literal["parlay.cancel/1"]
    search_id: str
    cancelled: list[str]
    """Trials."""
    unreached: list[str]
    """Attempt keys whose jobs could not be cancelled, and `SEARCH_ID.driver`."""


class RebuiltRow(TypedDict):
    """One search folder of ledger rebuild."""

    search_id: str
    folder: str
    result: RebuildResult
    num_events: int
    message: str | None


class LedgerAnswer(TypedDict):
    """Printed by ledger rebuild. Exit code 6 when a search is damaged, else 5 when one is held."""

    schema: Literal["parlay.ledger/1"]
    url: str
    put_aside: str | None
    """Path that a damaged ledger was moved to."""
    searches: list[RebuiltRow]


class SyncAnswer(TypedDict):
    """Printed by sync. Exit code 6 while a run is unsent."""

    schema: Literal["parlay.sync/1"]
    search_id: str
    uri: str
    run_id: str | None
    sent: int
    """Number of runs that MLflow shows as the journal has them."""
    unsent: list[str]
    """Names of runs."""


class ReportAnswer(TypedDict):
    """Printed by report."""

    schema: Literal["parlay.report/1"]
    search_id: str
    file: str


class DashboardAnswer(TypedDict):
    """Printed by dashboard, once it has ended."""

    schema: Literal["parlay.dashboard/1"]
    uri: str


class PageAnswer(TypedDict):
    """Printed by serve --page and dashboard --page: an address that opens once, within ten minutes."""

    schema: Literal["parlay.page/1"]
    address: str


class ServiceAnswer(TypedDict):
    """Printed by serve once it listens; also `service/service.json` in Parlay's home."""

    schema: Literal["parlay.service/1"]
    pid: int
    pid_started: int | None
    """Start time of the process in clock ticks since boot."""
    boot_id: str | None
    socket: str | None
    port: int | None
    executor: str
    """`process` or `ray`."""


class ProblemAnswer(TypedDict):
    """One mistake in the input, or one refusal."""

    code: str
    """Kind of error, such as `unknown_key`; of a refusal `refused`, `held`, `lease_lost`, `interrupted` or `bug`."""
    message: str
    file: NotRequired[str | None]
    line: NotRequired[int | None]
    key: NotRequired[str | None]
    value: NotRequired[Any]
    rule: NotRequired[str | None]
    fix: NotRequired[str | None]
    others: NotRequired[list[ProblemAnswer]]
    """Further mistakes."""


class ErrorAnswer(TypedDict):
    """Printed by every command that fails, and answered by the service."""

    error: ProblemAnswer
