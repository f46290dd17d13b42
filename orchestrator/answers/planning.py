"""Answers before anything runs: init, plan, dry run, forecast."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from orchestrator.answers.costs import PlannedCostAnswer
from orchestrator.answers.searches import TrainingRateAnswer
from orchestrator.planning.forecast import Scaling
from orchestrator.planning.plan import Fits


class InitAnswer(TypedDict):
    """Printed by init."""

    schema: Literal["parlay.init/1"]
    file: str | None
    """The file written with --output."""
    yaml: str
    notes: list[str]
    """Assumptions, and parts of the given configuration that were left out."""


class SetupFileAnswer(TypedDict):
    """The shell file that sets up each job."""

    path: str
    text: str


class VerifiedValues(TypedDict):
    """Knowledge of the axis values of a layout with its engine: that of the least verified ones."""

    level: Literal["run", "parsed", "by rule"]
    """`run`: a test of Parlay trained the value on a CPU. `parsed`: the trainer's own parser takes it in exports.
    `by rule`: only the engine's rules describe it."""
    values: list[str]
    """Those values, as `axis value`; empty where all were run."""


class PlannedLayout(TypedDict):
    """A layout of a plan with its predictions."""

    layout: dict[str, Any]
    """A `Layout`."""
    layout_key: str
    verified: VerifiedValues
    fits: Fits | None
    """Null where the memory is unknown."""
    relative_step_time: float
    """Over that of the first layout."""
    step_time_s: float | None
    """Null, like the next four and `time_s`, where the accelerator's speed is unknown."""
    step_time_low_s: float | None
    """Lower end of the 95 % interval of the cost model."""
    step_time_high_s: float | None
    """Upper end of the 95 % interval of the cost model."""
    tokens_per_sec: float | None
    mfu: float | None
    peak_memory_gib: float
    time_s: dict[str, float] | None
    """`TimeParts`."""
    training_rate: TrainingRateAnswer | None
    """Predicted; null where the accelerator's speed is unknown."""
    memory_gib: list[float]
    """Peak of each pipeline stage."""


class ExplainedLayout(PlannedLayout):
    """The first layout of a plan, or the baseline: a `PlannedLayout` with these keys."""

    what: Literal["first", "baseline"]
    place: int
    """Position among the layouts, from 1."""
    hfu: float | None
    """The same as `mfu`, with recomputed operations."""
    fullest_stage: int
    """Pipeline stage with the highest peak."""
    parts_gib: dict[str, float]
    """Its memory without allocator overhead: weights, gradients, optimizer, update, activations, logits, buffers; and
    `on_host`, what it keeps in host memory."""


class RejectedLayout(TypedDict):
    """A layout that a rule rejects."""

    layout: dict[str, Any]
    """A `Layout`; derived fields may be absent."""
    rule: str
    message: str


class FitCounts(TypedDict):
    """Number of layouts by whether they fit into memory."""

    yes: int
    no: int
    unsure: int


class ExpectedNodeHours(TypedDict):
    """Expected cost of a search, with all rounds of its finals, which is their upper limit. Null where the
    accelerator's speed is unknown."""

    guided_trials: int
    """Assumed number of trials of the guided sampler."""
    guided: float | None
    every_layout: float | None


class PlanAnswer(TypedDict):
    """Printed by plan."""

    schema: Literal["parlay.plan/1"]
    num_layouts: int
    rejected: dict[str, int]
    """Number of layouts by the rule that rejects them."""
    rejected_examples: dict[str, str]
    """The message of the first layout that each rule rejects."""
    rejected_layouts: NotRequired[list[RejectedLayout]]
    """With --rejected."""
    fits: FitCounts | None
    """Null where the memory is unknown."""
    explained: list[ExplainedLayout]
    """The first layout, and the baseline where it is another."""
    saved_s: dict[str, float] | None
    """`TimeParts` of the baseline less those of the first layout; null without both."""
    layouts: list[PlannedLayout]
    """By expected speed and fit probability."""
    setup_file: SetupFileAnswer | None
    node_hours: float | None
    """Upper limit of the search."""
    expected_node_hours: ExpectedNodeHours
    cost: PlannedCostAnswer
    notes: list[str]


class DryRunScript(TypedDict):
    """A job script that a dry run has written."""

    what: Literal["first", "baseline"]
    layout_key: str
    script: str


class DryRunAnswer(TypedDict):
    """Printed by run --dry-run and submit --dry-run."""

    schema: Literal["parlay.dry_run/1"]
    num_layouts: int
    max_trials: int
    spec: dict[str, Any]
    """search.json."""
    setup_file: SetupFileAnswer | None
    scripts: list[DryRunScript]
    """With --scripts."""


class DryRunManyAnswer(TypedDict):
    """Printed by submit --dry-run with several search files."""

    schema: Literal["parlay.dry_run_many/1"]
    searches: list[DryRunAnswer]


class ForecastBase(TypedDict):
    """The fastest layout on the largest number of nodes that was tried."""

    num_nodes: int
    layout: dict[str, Any]
    """A `Layout`."""
    layout_key: str
    step_time_s: float
    tokens_per_sec: float


class ContenderAnswer(TypedDict):
    """A layout that may be the fastest."""

    layout_key: str
    probability: float
    step_time_s: float
    fits: Fits | None


class UncertainTerm(TypedDict):
    """A term of the time model that no trial measures and that widens the interval."""

    term: str
    over_fabric: bool


class ForecastRow(TypedDict):
    """The predicted best layout on a number of nodes."""

    scaling: Scaling
    num_nodes: int
    global_batch_size: int
    layout: dict[str, Any]
    """A `Layout`."""
    layout_key: str
    step_time_s: float
    step_time_low_s: float
    """Lower end of the 95 % interval."""
    step_time_high_s: float
    """Upper end of the 95 % interval."""
    tokens_per_sec: float
    tokens_per_sec_per_gpu: float
    efficiency: float
    """Throughput a GPU over that of the base."""
    fits: Fits | None
    contenders: list[ContenderAnswer]
    """Layouts that contain the fastest with probability 95 %, the likeliest first."""
    uncertain_terms: list[UncertainTerm]


class ForecastAnswer(TypedDict):
    """Printed by forecast."""

    schema: Literal["parlay.forecast/1"]
    search_id: str | None
    """Null where a table was given."""
    table: str | None
    """Null where a search was given."""
    problems: list[str]
    """`problem` of the table's rows."""
    base: ForecastBase
    trials: int
    """Number of measured layouts."""
    forecasts: list[ForecastRow]
    notes: list[str]
