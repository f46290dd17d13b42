"""Data of the report, taken from a search's record: numbers and names without text or figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboards.fabric_check_text import describe_fabric_check
from dashboards.rank_placement import nodes_per_domain
from dashboards.report.explanation import Explanation, explanation_of
from dashboards.report.figures.importance import Importance, axis_importance
from dashboards.report.figures.time_breakdown import TimeBreakdown, time_breakdowns
from dashboards.report.log_excerpts import Excerpts
from dashboards.report.setup import SetupRow, setup_rows
from dashboards.report.use_it import UseIt
from dashboards.trial_text import describe_failure, describe_straggler
from search_spaces.layouts.layout import DERIVED, SETTINGS, Layout
from search_spaces.layouts.settings import as_numbers, setting_axes
from search_spaces.layouts.short_name import varying_axes
from search_spaces.model_shape import ModelShape
from trials.analysis.failure_patterns import FailurePattern, failure_patterns
from trials.analysis.final_rounds import finals_end_of
from trials.analysis.finals import FinalsEnd
from trials.analysis.node_sets import runs_on_disjoint_nodes
from trials.analysis.node_time import NodeTime, search_node_time
from trials.analysis.pareto import pareto, trade_offs
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, Ranking, in_objective_unit, known_value_of, upper_bound_of, value_of
from trials.analysis.search_cost import SearchCost
from trials.analysis.training_rate import TrainingRate, training_rate
from trials.analysis.verdict import (
    SearchVerdict,
    baseline_key_of,
    global_batch_of,
    has_failed,
    has_stopped_early,
    ranking_of,
    verdict_of,
)
from trials.ledger.events import SearchRecord, SearchState
from trials.outcome_types import MeasuredMetrics
from trials.schema.checkpoint_section import checkpoints_of
from trials.trial import FailureReason, Flag, Trial, TrialKind, TrialState

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class TrialView:
    """Trial, or measured layout over all its runs. Unknown values are None.

    `speed` is the objective turned so that larger is better, for measured trials with the search's global batch size;
    `speed_at_most` is its upper bound for a trial that stopped early or ran out of time. `ended_h` is hours after the
    search began. `excerpt` is short and without control characters. `values` are a measured layout's values of the
    search's objectives, each in its own unit; () for a trial.
    """

    trial: str
    kind: TrialKind
    state: TrialState
    reason: FailureReason | None
    has_failed: bool
    has_stopped_early: bool
    layout: Layout
    num_attempts: int
    ended_h: float | None
    speed: float | None
    speed_at_most: float | None
    metrics: MeasuredMetrics | None
    predicted_step_time_s: float | None
    predicted_peak_memory_gib: float | None
    queue_wait_s: float | None
    node_hours: float
    flags: tuple[Flag, ...]
    remark: str | None
    excerpt: str | None
    values: tuple[float | None, ...] = ()

    @property
    def tokens_per_sec(self) -> float | None:
        return None if self.metrics is None else self.metrics.tokens_per_sec

    @property
    def step_time_s(self) -> float | None:
        return None if self.metrics is None else self.metrics.step_time_s

    @property
    def peak_memory_gib(self) -> float | None:
        return None if self.metrics is None else self.metrics.peak_memory_gib


@dataclass(frozen=True)
class LayoutView:
    """Layout of the table, and its runs in launch order.

    `view` is the layout over all its runs where one was measured, else its last run. `ratio` is its speed over the
    baseline's, None where either is unknown.
    """

    view: TrialView
    runs: tuple[TrialView, ...]
    ratio: float | None

    @property
    def layout(self) -> Layout:
        return self.view.layout


@dataclass(frozen=True)
class BestLayout:
    """Best layout, over all its runs.

    `points` are the Pareto-optimal trials, this one first, and `trades` the trade-off of each alternative as text; ()
    with a single objective. `slowest_rank` is a `SlowestRank`, `fullest_rank` a `FullestRank`, `rate` is None where the
    record has no model. `leaf_counts` are the numbers of leaf switches or blocks that its runs lay below, () where no
    topology is known.
    """

    trial: str
    layout: Layout
    num_runs: int
    points: tuple[str, ...]
    trades: tuple[str, ...]
    ties: tuple[str, ...]
    flags: tuple[Flag, ...]
    metrics: MeasuredMetrics
    rate: TrainingRate | None
    leaf_counts: tuple[int, ...] = ()
    slowest_rank: Mapping[str, Any] | None = None
    fullest_rank: Mapping[str, Any] | None = None
    on_disjoint_nodes: bool | None = None


@dataclass(frozen=True)
class Progress:
    """Progress of the search. `elapsed_h` is wall time, `fabric_check` what that found, in sentences without full
    stops."""

    node_hours_used: float
    node_hours_reserved: float
    budget_node_hours: float | None
    node_time: NodeTime
    cost: SearchCost
    finals: FinalsEnd | None
    elapsed_h: float
    fabric_check: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReportData:
    """All data of the report. `at` is the time of reading the record, UTC seconds since the epoch.

    `layouts` are the measured ones over all their runs, in ranked order, `tried` all of them: the measured ones first,
    fastest first, then the others in launch order. `varying` are the layout fields with more than
    one value tried, in the order of a layout's fields. `importance` is that of the layouts on `best_num_nodes` alone.
    `replayed_table` is that of a search replayed from a measured table.
    """

    search_id: str
    name: str
    state: SearchState
    verdict: SearchVerdict
    created_at: float
    at: float
    objectives: tuple[Objective, ...]
    replayed_table: str | None
    num_layers: int
    has_balancing_loss: bool
    gpus_per_node: int
    nodes_per_domain: int
    accelerator: str | None
    best: BestLayout | None
    baseline_key: str | None
    baseline_speed: float | None
    progress: Progress
    trials: tuple[TrialView, ...]
    layouts: tuple[TrialView, ...]
    tried: tuple[LayoutView, ...]
    varying: tuple[str, ...]
    importance: Importance | None
    time_breakdowns: tuple[TimeBreakdown, ...]
    explanation: Explanation | None
    failure_patterns: tuple[FailurePattern, ...]
    setup: tuple[SetupRow, ...]
    use: UseIt | None

    @property
    def objective(self) -> Objective:
        """The objective that decides."""
        return self.objectives[0]

    @property
    def node_counts(self) -> tuple[int, ...]:
        """Numbers of nodes of the measured layouts, in order."""
        return tuple(sorted({layout.layout.num_nodes for layout in self.layouts}))

    @property
    def best_num_nodes(self) -> int | None:
        """Number of nodes of the best layout, or of the fastest where there is none."""
        first = self.best or next(iter(self.layouts), None)
        return None if first is None else first.layout.num_nodes

    @property
    def measured(self) -> tuple[TrialView, ...]:
        """Runs that compete; several may be of one layout."""
        return tuple(trial for trial in self.trials if trial.speed is not None)


def report_data(search: SearchRecord, at: float, use: UseIt | None = None) -> ReportData:
    """Build the report's data from a record; `use` is that of its recipe, None without one. A spec that lacks sections
    gives fewer data, not an error."""
    spec = search.spec
    ranking = ranking_of(search, search.trials)
    objective = ranking.objective
    verdict = verdict_of(search, ranking, baseline_key_of(search))
    baseline = verdict.baseline if verdict.baseline is not None and verdict.baseline.measured else None
    cluster, best = _section(spec, "cluster"), _best_layout(ranking, spec)
    baseline_speed = value_of(baseline, objective) if baseline else None
    trials, patterns = _views(search, ranking), failure_patterns(search.trials)
    layouts = tuple(_layout_view(layout, search, ranking) for layout in ranking.ordered)
    return ReportData(
        search_id=search.search_id,
        name=str(spec.get("name", search.search_id)),
        state=search.state,
        verdict=verdict,
        created_at=search.created_at,
        at=at,
        objectives=(objective, *ranking.others),
        replayed_table=search.replayed_table,
        num_layers=_section(spec, "model").get("num_layers", 1),
        has_balancing_loss=_section(spec, "model").get("aux_loss_coefficient") is not None,
        gpus_per_node=_gpus_per_node(cluster, search.trials),
        nodes_per_domain=1 if best is None else nodes_per_domain(cluster, best.layout),
        accelerator=_accelerator(cluster),
        best=best,
        baseline_key=baseline_key_of(search),
        baseline_speed=baseline_speed,
        progress=_progress(search, verdict, at),
        trials=trials,
        layouts=layouts,
        tried=tuple(_tried(trials, layouts, baseline_speed)),
        varying=varying_axes([trial.layout for trial in search.trials]),
        importance=axis_importance(*_speeds(ranking)),
        time_breakdowns=time_breakdowns(ranking.best, baseline, spec),
        explanation=explanation_of(search, verdict, patterns, at),
        failure_patterns=patterns,
        setup=setup_rows(spec, ranking.ordered),
        use=use,
    )


def _section(spec: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = spec.get(name)
    return found if isinstance(found, Mapping) else {}


def _gpus_per_node(cluster: Mapping[str, Any], trials: Sequence[Trial]) -> int:
    layout = trials[0].layout if trials else Layout()
    return cluster.get("gpus_per_node") or -(-layout.num_gpus // layout.num_nodes)


def _accelerator(cluster: Mapping[str, Any]) -> str | None:
    found = cluster.get("accelerator")
    return found.get("name") if isinstance(found, Mapping) else found


def _best_layout(ranking: Ranking, spec: Mapping[str, Any]) -> BestLayout | None:
    best = ranking.best
    if best is None:
        return None
    return BestLayout(
        trial=best.trial,
        layout=best.layout,
        num_runs=len(best.runs),
        points=tuple(point.trial for point in pareto(ranking)),
        trades=tuple(trade_offs(ranking)),
        ties=tuple(tie.trial for tie in ranking.ties),
        flags=best.flags,
        metrics=best.measured,
        rate=_rate(best, spec),
        leaf_counts=_leaf_counts(best),
        slowest_rank=best.slowest_rank,
        fullest_rank=best.fullest_rank,
        on_disjoint_nodes=runs_on_disjoint_nodes(best.counted),
    )


def _leaf_counts(best: RankedLayout) -> tuple[int, ...]:
    attempts = (run.last_attempt for run in best.runs)
    return tuple(sorted({len(set(attempt.leaves)) for attempt in attempts if attempt is not None and attempt.leaves}))


def _rate(best: RankedLayout, spec: Mapping[str, Any]) -> TrainingRate | None:
    if not (model := _section(spec, "model")):
        return None
    shape = ModelShape.from_json(model)
    return training_rate(best.measured.tokens_per_sec, shape, best.layout, checkpoints_of(spec))


def _progress(search: SearchRecord, verdict: SearchVerdict, at: float) -> Progress:
    wanted = _section(search.spec, "search")
    return Progress(
        node_hours_used=search.node_hours_used,
        node_hours_reserved=search.node_hours_reserved,
        budget_node_hours=wanted.get("budget_node_hours"),
        node_time=search_node_time(search),
        cost=SearchCost.of(search, verdict),
        finals=finals_end_of(search),
        elapsed_h=_hours(_last_moment(search, at) - search.created_at),
        fabric_check=tuple(describe_fabric_check(search)),
    )


def _last_moment(search: SearchRecord, at: float) -> float:
    """Time of the search's end, or now; a simulated clock may be ahead of ours."""
    ended = [a.ended_at for trial in search.trials for a in trial.attempts if a.ended_at is not None]
    if search.ended_at is not None:
        return max(search.ended_at, *ended) if ended else search.ended_at
    return max([at, *ended])


def _views(search: SearchRecord, ranking: Ranking) -> tuple[TrialView, ...]:
    excerpts = Excerpts.of(search.trials)
    return tuple(replace(_view(trial, search, ranking), excerpt=excerpts.shown(trial)) for trial in search.trials)


def _view(trial: Trial, search: SearchRecord, ranking: Ranking) -> TrialView:
    """View of one trial, without the `excerpt`, which depends on other trials."""
    last, metrics, predicted = trial.last_attempt, trial.measured, trial.prediction or {}
    limit_gib = _section(search.spec, "measure").get("memory_limit_gib")
    competes, objective = trial.layout.global_batch_size == global_batch_of(search), ranking.objective
    ended_at = last.ended_at if last and trial.state.is_ended else None
    return TrialView(
        trial=trial.trial,
        kind=trial.kind,
        state=trial.state,
        reason=trial.reason,
        has_failed=has_failed(trial),
        has_stopped_early=has_stopped_early(trial),
        layout=trial.layout,
        num_attempts=len(trial.attempts),
        ended_h=None if ended_at is None else _hours(ended_at - search.created_at),
        speed=value_of(trial, objective) if metrics and competes else None,
        speed_at_most=upper_bound_of(trial, objective) if competes else None,
        metrics=metrics,
        predicted_step_time_s=_number(predicted.get("step_time_s")),
        predicted_peak_memory_gib=_number(predicted.get("peak_memory_gib")),
        queue_wait_s=last.queue_wait_s if last else None,
        node_hours=sum(attempt.node_hours or 0.0 for attempt in trial.attempts),
        flags=trial.flags,
        remark=describe_straggler(trial) or (describe_failure(last, limit_gib) if last else None),
        excerpt=None,
    )


def _layout_view(layout: RankedLayout, search: SearchRecord, ranking: Ranking) -> TrialView:
    """View of a layout: that of the run it is named after, with the numbers over all runs."""
    view, speed = _view(layout.first, search, ranking), value_of(layout, ranking.objective)
    known = [(objective, known_value_of(layout, objective)) for objective in (ranking.objective, *ranking.others)]
    values = tuple(None if value is None else in_objective_unit(value, objective) for objective, value in known)
    return replace(view, metrics=layout.measured, flags=layout.flags, speed=speed, values=values)


def _tried(
    trials: Sequence[TrialView], layouts: Sequence[TrialView], baseline_speed: float | None
) -> Iterator[LayoutView]:
    runs: dict[str, list[TrialView]] = {}
    for trial in trials:
        runs.setdefault(trial.layout.key, []).append(trial)
    measured = {view.layout.key: view for view in sorted(layouts, key=lambda view: -(view.speed or 0.0))}
    for key in (*measured, *(key for key in runs if key not in measured)):
        view = measured.get(key, runs[key][-1])
        ratio = view.speed / baseline_speed if view.speed is not None and baseline_speed else None
        yield LayoutView(view, tuple(runs[key]), ratio)


def _speeds(ranking: Ranking) -> tuple[list[dict[str, Any]], list[float]]:
    """Measured layouts on as many nodes as the best by their freely chosen fields, and their speeds."""
    best = ranking.best or next(iter(ranking.ordered), None)
    ranked = [one for one in ranking.ordered if best is not None and one.layout.num_nodes == best.layout.num_nodes]
    layouts = [layout.layout.canonical() for layout in ranked]
    settings = setting_axes([layout.settings for layout in layouts])
    columns = {name: as_numbers(values) for name, values in settings.items()}
    chosen = [
        {name: value for name, value in layout.without_settings.to_json().items() if name not in (*DERIVED, SETTINGS)}
        | {name: column[row] for name, column in columns.items()}
        for row, layout in enumerate(layouts)
    ]
    return chosen, [value_of(layout, ranking.objective) for layout in ranked]


def _number(value: Any) -> float | None:
    """Finite number as a float; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _hours(seconds: float) -> float:
    return max(0.0, seconds / _SECONDS_PER_HOUR)
