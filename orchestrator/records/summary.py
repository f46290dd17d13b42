"""Answers about recorded searches, for `--json`, the service and notifications; unknown values are null."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from dashboards.terminal.headline import best_layout_line, headline, sentence
from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.spec import SearchSpec
from search_spaces.layouts.layout import Layout
from trials.analysis.best_layout import Choice, Fastest, choice_of, fastest_of, rationale
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.finals import FinalsEnd
from trials.analysis.node_sets import runs_on_disjoint_nodes
from trials.analysis.node_time import NodeTime, search_node_time
from trials.analysis.pareto import ParetoPoint, pareto_points
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, value_of
from trials.analysis.search_cost import SearchCost
from trials.analysis.training_rate import TrainingRate
from trials.analysis.verdict import DisplayState, SearchVerdict, TrialCounts, VerdictKind, counts_of, verdict_of
from trials.files.folders import AttemptFolder, SearchFolder, read_json
from trials.files.text import tail
from trials.ledger.events import EndReason, FabricCheck, SearchRecord, SearchState
from trials.trial import Attempt, FailureReason, Flag, TrialState

if TYPE_CHECKING:
    from trials.ledger.reader import SearchSummary

_EXCERPT_LINES = 40


class VerdictAnswer(AnswerPart):
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

    @classmethod
    def of(cls, verdict: SearchVerdict) -> VerdictAnswer:
        speedup, baseline = verdict.speedup, verdict.baseline
        return cls(
            kind=verdict.kind,
            state=verdict.state,
            headline=headline(verdict),
            sentence=sentence(verdict),
            trial=None if verdict.best is None else verdict.best.trial,
            baseline=None if baseline is None else baseline.trial,
            speedup=None if speedup is None else speedup.ratio,
            speedup_low=None if speedup is None else speedup.low,
            speedup_high=None if speedup is None else speedup.high,
            ties=[tie.trial for tie in verdict.ranking.ties],
        )


class BestLayout(AnswerPart):
    """The best layout of a search. Numbers are over all its runs; `trial` names the first of them."""

    trial: str
    layout: Layout
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
    fastest: Fastest
    rationale: str
    """Sentence for people that says why it was chosen, without a full stop."""
    pareto: list[ParetoPoint]
    """The best first. Of several objectives; of one, against the number of nodes, where several were measured."""
    flags: list[Flag]
    """Those of its runs."""
    time_s: Mapping[str, float] | None
    """Parts of a profiled run's step."""
    fullest_rank: Mapping[str, Any] | None
    """Rank of the run that left least memory; null where it is unknown."""
    on_disjoint_nodes: bool | None
    """True if two of its runs were on disjoint sets of nodes; null with fewer than two runs, or all on one node."""
    slowest_rank: Mapping[str, Any] | None
    """Slowest rank of its runs; null where ranks could not be compared."""
    training_rate: TrainingRate

    @classmethod
    def of(cls, ranking: Ranking, spec: SearchSpec, **more: Any) -> Self | None:
        """The best of this ranking, with `more` fields of a subclass; None without one."""
        best, choice, fastest, why = ranking.best, choice_of(ranking), fastest_of(ranking), rationale(ranking)
        if best is None or choice is None or fastest is None or why is None:
            return None
        return cls(
            trial=best.trial,
            layout=best.layout,
            objective=ranking.objective,
            value=in_objective_unit(value_of(best, ranking.objective), ranking.objective),
            tokens_per_sec=best.measured.tokens_per_sec,
            tokens_per_sec_low=best.measured.tokens_per_sec_low,
            tokens_per_sec_high=best.measured.tokens_per_sec_high,
            peak_memory_gib=best.measured.peak_memory_gib,
            ties=[tie.trial for tie in ranking.ties],
            selection_reason=choice,
            fastest=fastest,
            rationale=why,
            pareto=pareto_points(ranking),
            flags=list(best.flags),
            time_s=best.measured.time_s,
            fullest_rank=best.fullest_rank,
            on_disjoint_nodes=runs_on_disjoint_nodes(best.counted),
            slowest_rank=best.slowest_rank,
            training_rate=spec.training_rate(best),
            **more,
        )


class FabricCheckAnswer(AnswerPart):
    """Fabric check of a search that began with one (`launcher.fabric_check`)."""

    state: TrialState
    """State of its trial; `measured` once it has found something or nothing."""
    reason: FailureReason | None
    nodes: list[str]
    node_hours: float
    slow_nodes: list[str]
    """Trials avoid them, as long as enough of `num_available` are left."""
    num_available: int
    """Nodes that trials may get; 0 before its end."""
    findings: list[str]
    """A sentence for each."""
    links: Mapping[str, Any] | None
    """Measured links, by which the search predicts from then on, as in a cluster file's `links`."""


class BudgetAnswer(AnswerPart):
    """Node-hours of all attempts, of idle pilots, and of the Slurm jobs that drivers ran in."""

    node_hours_used: float
    node_hours_reserved: float
    """Upper bound of what jobs in flight may use: attempts, and pilots in place of their steps."""
    node_hours_limit: float | None
    """`search.budget_node_hours`."""


class MlflowAnswer(AnswerPart):
    """The search's run in MLflow."""

    uri: str
    run_id: str


@dataclass(frozen=True)
class DriverStatus:
    """Driver of a search that has not ended."""

    detail: str | None = None
    """Reason why none is at work, and what starts one; null while one is."""
    is_expected: bool = True
    """True if one is at work, or will start by itself."""
    process: str | None = None
    """Process that holds the search, and its host; null without one."""


class StatusAnswer(Answer):
    """Printed by run, resume, status and watch, and the service's answer about a search."""

    schema_: Literal["parlay.status/1"] = "parlay.status/1"
    search_id: str
    state: SearchState
    end_reason: EndReason | None
    detail: str | None
    """Explanation of the end reason."""
    fabric_check: FabricCheckAnswer | None
    finals: FinalsEnd | None
    """Null before the search has ended, without finals, and where their number was fixed."""
    verdict: VerdictAnswer
    best: BestLayout | None
    num_trials: int
    trials: TrialCounts
    reasons: Mapping[FailureReason, int]
    """Number of trials by failure reason."""
    budget: BudgetAnswer
    node_time: NodeTime
    cost: SearchCost
    recipe: str | None
    """The recipe's folder."""
    mlflow: MlflowAnswer | None
    driver: DriverStatus | None = None
    """Told by status and the service while the search has not ended and its folder is visible; else null."""


class BestAnswer(BestLayout, Answer):
    """Printed by best: the best layout of a search, as in its status, with what belongs to it."""

    schema_: Literal["parlay.best/1"] = "parlay.best/1"
    search_id: str
    verdict: VerdictAnswer
    cost: SearchCost
    recipe: str | None
    """The recipe's folder."""


class ListedSearch(AnswerPart):
    """One search of the ledger."""

    search_id: str
    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    best_trial: str | None
    folder: str | None


class SearchesAnswer(Answer):
    """Printed by status --all."""

    schema_: Literal["parlay.searches/1"] = "parlay.searches/1"
    searches: list[ListedSearch]
    """Newest first."""


class LogsAnswer(Answer):
    """Printed by logs."""

    schema_: Literal["parlay.logs/1"] = "parlay.logs/1"
    trial: str
    attempt: str
    files: list[str]
    """Logs of the ranks."""
    excerpt: str | None
    """The first traceback, else the end of rank 0's log; with `--rank N` all of that rank's log."""


class FailedAdvance(AnswerPart):
    """A search that could not be advanced."""

    search_id: str
    message: str


class AdvanceAllAnswer(Answer):
    """Printed by advance --all."""

    schema_: Literal["parlay.advance/1"] = "parlay.advance/1"
    searches: list[StatusAnswer]
    held: list[str]
    """Ids of searches that another driver holds."""
    refused: list[FailedAdvance]


class ReportAnswer(Answer):
    """Printed by report."""

    schema_: Literal["parlay.report/1"] = "parlay.report/1"
    search_id: str
    file: str


def status_of(
    search: SearchRecord, spec: SearchSpec, folder: SearchFolder, driver: DriverStatus | None = None
) -> StatusAnswer:
    """The search as it is; `driver` is who drives it, where that was asked."""
    ranking = spec.ranking_of(search.trials)
    verdict = verdict_of(search, ranking, spec.baseline_key)
    return StatusAnswer(
        search_id=search.search_id,
        state=search.state,
        end_reason=search.end_reason,
        detail=search.detail,
        fabric_check=_fabric_check(search.fabric_check),
        finals=finals_end_of(search),
        verdict=VerdictAnswer.of(verdict),
        best=BestLayout.of(ranking, spec),
        num_trials=len(search.trials),
        trials=counts_of(search.trials),
        reasons=reason_counts(search),
        budget=BudgetAnswer(
            node_hours_used=search.node_hours_used,
            node_hours_reserved=search.node_hours_reserved,
            node_hours_limit=spec.search.budget_node_hours,
        ),
        node_time=search_node_time(search),
        cost=SearchCost.of(search, verdict),
        recipe=recipe_path(folder),
        mlflow=_mlflow(folder),
        driver=driver,
    )


def best_of(search: SearchRecord, spec: SearchSpec, folder: SearchFolder) -> BestAnswer | None:
    """The best layout of a search; None without one."""
    ranking = spec.ranking_of(search.trials)
    verdict = verdict_of(search, ranking, spec.baseline_key)
    return BestAnswer.of(
        ranking,
        spec,
        search_id=search.search_id,
        verdict=VerdictAnswer.of(verdict),
        cost=SearchCost.of(search, verdict),
        recipe=recipe_path(folder),
    )


def _fabric_check(check: FabricCheck | None) -> FabricCheckAnswer | None:
    if check is None:
        return None
    last = check.trial.last_attempt
    return FabricCheckAnswer(
        state=check.trial.state,
        reason=check.trial.reason,
        nodes=[] if last is None else list(last.nodes),
        node_hours=check.node_hours,
        slow_nodes=list(check.slow_nodes),
        num_available=check.num_available,
        findings=list(check.findings or ()),
        links=check.links,
    )


def result_line(search: SearchRecord, spec: SearchSpec) -> str:
    """The best layout in one line, against the baseline, or the reason why there is none."""
    return best_layout_line(verdict_of(search, spec.ranking_of(search.trials), spec.baseline_key))


def searches_of(searches: Iterable[SearchSummary]) -> SearchesAnswer:
    """Searches of the ledger."""
    names = ListedSearch.model_fields
    rows = [ListedSearch(**{name: getattr(search, name) for name in names}) for search in searches]
    return SearchesAnswer(searches=rows)


def logs_of(attempt: Attempt, folder: AttemptFolder, log: str | None = None) -> LogsAnswer:
    """Logs of an attempt, with `log` as its excerpt.

    Without `log`, the first real error, or the end of the first rank's log; null if there is none.
    """
    files = folder.rank_logs()
    excerpt = attempt.excerpt if log is None else log
    if excerpt is None and files:
        excerpt = tail(files[0], _EXCERPT_LINES)
    return LogsAnswer(
        trial=attempt.trial, attempt=attempt.attempt, files=[str(file) for file in files], excerpt=excerpt
    )


def reason_counts(search: SearchRecord) -> dict[FailureReason, int]:
    """Ended trials by reason."""
    return dict(Counter(t.reason for t in search.trials if t.reason is not None))


def recipe_path(folder: SearchFolder) -> str | None:
    """The recipe's folder; None before it is written."""
    return str(folder.recipe) if folder.recipe.exists() else None


def _mlflow(folder: SearchFolder) -> MlflowAnswer | None:
    """MLflow's address of the search; None without a complete file."""
    try:
        data = read_json(folder.mlflow) or {}
        return MlflowAnswer(uri=data["uri"], run_id=data["run_id"])
    except (OSError, ValueError, KeyError):
        return None
