"""Lines that the benchmarks print, one JSON object each; docs/contract.md is generated from them."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class SearchEfficiencyLine(TypedDict):
    """`python -m benchmarks.search_efficiency`: one simulated search over a table. Then one line with `summary: true`
    for each source, one averaged over sources, with medians, means and 90th percentiles."""

    problem: str
    source: str
    candidates: int
    sampler: str
    seed: int
    mode: Literal["cold", "leave_one_model_out"]
    trials_to_2pct: int
    """Trials until a layout within 2 % of the best was measured."""
    trials_to_5pct: int
    node_seconds_to_2pct: float
    node_seconds_to_5pct: float
    stop_trials: int | None
    """Trials until the search would have stopped."""
    stop_regret: float | None
    """Step time of its best over the best there is, less 1; 0 within the noise."""
    noise: float | None
    """Largest over smallest repeat of a layout, less 1; null where fewer than three layouts were repeated."""
    lone_outlier: bool
    """True where the best layout is far ahead of the second."""


class CostModelLine(TypedDict):
    """`python -m benchmarks.cost_model`: predictions for one problem, null where no row shows the value; rows that the
    model was given are not counted. Then one line with `summary: true` for each source and one averaged."""

    problem: str
    source: str
    num_nodes: int
    candidates: int
    mode: Literal["cold", "calibrated", "leave_one_model_out"]
    sampler: str | None
    """Sampler that chose the five trials of `calibrated`."""
    seed: int | None
    ok_rows: int
    time_error_median: float | None
    rank_correlation: float | None
    memory_error_median: float | None
    failed_rows: int
    rule_rows: int
    """Failed rows that a rule rejects."""
    oom_rows: int
    """Failed rows labelled so, or whose layout with a smaller micro-batch came within a tenth of the limit."""
    oom_recalled: float | None
    """Share of them that was predicted not to fit."""
    foreseen_oom_rows: int
    """Failed rows where a line through the peaks of two smaller micro-batches passes the limit."""
    foreseen_oom_recalled: float | None
    unexplained: int
    """Failed rows that are none of these and were predicted to fit."""
    ok_refused: float | None
    """Share of the working rows that was predicted not to fit."""


class PublishedFigureLine(TypedDict):
    """`python -m benchmarks.cost_model`: a published figure. Then `{published: null, summary: true, source, quantity,
    error_mean, error_max, count}`."""

    source: str
    case: str
    quantity: str
    reading: Literal["hardware", "model"] | None
    """Definition of FLOPs used where the source leaves it open."""
    published: float
    predicted: float
    error: float


class ForecastBenchmarkLine(TypedDict):
    """`python -m benchmarks.forecast`: one forecast against the table. Then one line with `summary: true` for each
    multiple of nodes."""

    source: str
    model_name: str
    base_nodes: int
    times: int
    """Multiple of the nodes."""
    trials: int
    """Trials given."""
    seed: int
    scaling: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    measured_s: float
    """Step time of the best layout there."""
    is_covered: bool
    """True where the interval contains it."""
    error: float
    contenders: int
    best_is_contender: bool
    regret: float | None
    """Value of the chosen layout; null where it failed."""
    chosen_is_covered: bool | None


class RealSearchLine(TypedDict):
    """`python -m benchmarks.real_search`: one search that really trains. Then means with `summary: true`."""

    sampler: str
    seed: int
    end_reason: str
    trials: int
    node_seconds: float
    regret: float
    trials_to_2pct: int | None
    """Null, like the other `_to_` keys, where the search never came so near. Also 5pct and 10pct."""
    node_seconds_to_2pct: float | None


class ReplayBenchmarkLine(TypedDict):
    """`python -m benchmarks.replays`: one replay, with the ratios of a `ReplayAnswer`. Then counts of the verdicts with
    `summary: true`."""

    replay: int
    """From 1."""
    slower: float
    """Share by which steps were made longer; 0 as recorded."""
    verdict: str
    ratio_by_session: list[float]
    """Also `fast_ratio_by_session`, of the fastest tenth of the steps."""


class GalleryLine(TypedDict):
    """`python -m benchmarks.gallery`: one small twin of a published system, trained. Pages have its numbers between
    `<!-- twin NAME -->` or `<!-- runs NAME -->` and `<!-- / -->`."""

    twin: str
    search_id: str
    end_reason: str
    trials: dict[str, str]
    """State or reason of each trial."""
    best: str | None
    """A trial."""
    layout_key: str | None
    tokens_per_sec: float | None
    flags: list[str]
    """Key of the best layout."""
    speedup: float | None
    """Over the baseline; `speedup_low` and `speedup_high` are the ends of its interval."""
    recipe: str | None
    caveats: list[str]
    """Value of the recipe."""
    grows: dict[str, int]
    """Step at which host memory would be full, by trial."""
    runs: list[dict[str, Any]]
    """Layout, throughput, memory and losses of each measured trial."""
    faults: list[str]
    """Expectations that the twin did not meet."""
    seconds: float
    replay: str
    """Verdict of the replay, with --replay."""


class GalleryTableLine(TypedDict):
    """`python -m benchmarks.gallery_table`: a published recipe, or Parlay's choice (the last of a system), predicted.
    Pages have it between `<!-- predicted SYSTEM -->`, `choice` or `plan` and `<!-- / -->`."""

    system: str
    """Name of its search."""
    recipe: str
    quantity: Literal["step_time_s", "tokens_per_sec", "share_of_peak"] | None
    published: float | None
    num_layouts: int
    layout_key: str
    place: int
    """Position in the plan, of `num_layouts`."""
    step_time_s: float | None
    tokens_per_sec: float | None
    mfu: float | None
    hfu: float | None
    peak_memory_gib: float
    fits: str | None
    time_s: dict[str, float] | None
    off: dict[str, float]
    """Predicted over published, less 1; of a share of the peak for `mfu` and `hfu`."""


class DriverLine(TypedDict, total=False):
    """`python -m benchmarks.driver`: cost of a driver. `what` is `window` (trials begun or ended), `service`, or one of
    the compared tools; `--login` prints `phase` lines with seconds, CPU, memory, processes and threads."""

    what: Literal["window", "service", "parlay", "submitit", "ray_tune"]
    trials: int
    cpu_ms_per_trial: float
    ledger_bytes_per_trial: int
    folder_bytes_per_trial: int
    growth: float | None
    """CPU a trial of the last window over the first, of windows in which trials both begin and end."""
    shares: dict[str, float]
    """CPU time by part."""
    questions_per_minute: float
    """squeue and sacct calls, on the simulated clock."""
    commands_per_trial: float
    peak_rss_mib: float
    over_parlay: float
    """CPU a trial over Parlay's."""


class FinalsLine(TypedDict):
    """`python -m benchmarks.finals`: simulated finals of one case. Then one line with `summary: true`, the mean
    number of repeats over the cases by either rule.

    By rule: shares of the finals where the rule or the verdict called a layout clearly faster that is not
    (`false_by_rule`, `false_by_verdict`), where the winner is more than 2 % slower than the fastest finalist
    (`winner_off`), where the verdict has a winner without ties (`clear_winner`); means of how much slower the winner is
    (`mean_loss`) and of `repeats`.
    """

    speeds: str
    noise: str
    rounds: int
    until_decided: dict[str, float]
    fixed: dict[str, float]


class PlannerSpeedLine(TypedDict):
    """`python -m benchmarks.planner_speed`."""

    what: Literal["enumerate", "columns", "estimate", "plan", "plan_json_top_20", "plan_json"]
    layouts: int
    seconds: float


class DriverSpeedLine(TypedDict):
    """`python -m benchmarks.driver_speed`: medians of a command; `run` until its first launch."""

    what: Literal["submit", "status", "run"]
    launcher: str
    cpu_s: float
    """User and system time of the command and of the children it has waited for."""
    wall_s: float
    driver_cpu_s: float | None
    """CPU time of the driver that `submit` leaves, when `submit` returns; null where there is none."""
