"""Answers about several measurements: replay, compare, export, import."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from orchestrator.comparison.compare import CompareVerdict
from orchestrator.comparison.speed_ratio import ReplayVerdict
from orchestrator.comparison.stacks import StackVerdict
from orchestrator.interop.export_formats import ExportFormat
from trials.ledger.events import EndReason, SearchState
from trials.trial import FailureReason, TrialState


class Ratios(TypedDict):
    """Throughput of the second side over the first, with 95 % intervals. Null where unknown."""

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    fast_ratio: float | None
    """The same for the fastest tenth of the steps."""
    fast_ratio_low: float | None
    fast_ratio_high: float | None


class SessionAnswer(TypedDict):
    """One measurement session."""

    started_at: str | None
    runs: int
    ratio: float
    fast_ratio: float | None


class Difference(TypedDict):
    """A field of the fingerprint that differs."""

    field: str
    recorded: Any
    here: Any


class ReplayAnswer(Ratios):
    """Printed by replay: `Ratios` of the new runs over the recorded ones, with these keys."""

    schema: Literal["parlay.replay/1"]
    verdict: ReplayVerdict
    trainer: str
    """Kind of the trainer that ran."""
    recorded: float | None
    """Recorded tokens/s, the mean over sessions, as in the ratio; the recipe has the median over the runs."""
    measured: float | None
    """Tokens/s of the new runs, likewise."""
    sessions: list[SessionAnswer]
    differences: list[Difference]
    flags: list[str]
    """`Flag` values of the new runs."""
    detail: str | None
    """Reason why it is impossible or ended early."""


class ToBest(TypedDict):
    """Cost until the best layout was found."""

    trials: int
    node_hours: float | None
    seconds: float | None


class ComparedSearch(TypedDict):
    """The search on a side of a comparison."""

    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    trials: dict[str, int]
    """`TrialCountsAnswer`."""
    reasons: dict[FailureReason, int]
    node_hours: float
    to_best: ToBest | None


class ComparedSide(TypedDict):
    """One side of a comparison with its best layout."""

    what: Literal["recipe", "search"]
    name: str
    folder: str
    trial: str | None
    layout: dict[str, Any] | None
    """A `Layout`."""
    tokens_per_sec: float | None
    """The median over its runs, as `best` has it; `ratio` is that of the means over sessions."""
    runs: int
    """Number of runs."""
    search: ComparedSearch | None
    """Null for a recipe."""


class FieldPair(TypedDict):
    """A field with its value on both sides."""

    field: str
    a: Any
    b: Any


class CommonSide(TypedDict):
    """One side's measurement of a layout that both tried."""

    trial: str
    state: TrialState
    reason: FailureReason | None
    tokens_per_sec: float | None


class CommonLayout(Ratios):
    """A layout that both searches tried: `Ratios` of B over A, with these keys."""

    layout_key: str
    a: CommonSide
    b: CommonSide
    verdict: CompareVerdict | None


class CompareAnswer(Ratios):
    """Printed by compare: `Ratios` of B over A, with these keys. The exit code is 0 for every verdict."""

    schema: Literal["parlay.compare/1"]
    verdict: CompareVerdict
    not_comparable: list[str]
    """Fields of `question` that keep speeds from being compared."""
    detail: str | None
    a: ComparedSide
    b: ComparedSide
    question: list[FieldPair]
    """Differences in what was asked: model, cluster, global batch size, trainer kind, objective, device."""
    layout: list[FieldPair]
    software: list[FieldPair]
    common: list[CommonLayout]


class StackSide(TypedDict):
    """A layout's measurement with one software stack."""

    trial: str
    value: float
    """The objective in its own unit, over its runs."""
    runs: int
    """Number of runs that count."""


class StackLayout(TypedDict):
    """A layout of an experiment: A with the search's own software, B with the other one. Null where not measured."""

    layout_key: str
    """Without settings of the software."""
    a: StackSide | None
    b: StackSide | None
    ratio: float | None
    """Speed of B over A, the mean over pairs of runs."""
    ratio_low: float | None
    """Lower end of its 95 % interval."""
    ratio_high: float | None
    pairs: int
    """Number of pairs of runs."""
    verdict: StackVerdict


class ExperimentAnswer(TypedDict):
    """Printed by compare of one search: an experiment of two software stacks (`search.against`)."""

    schema: Literal["parlay.experiment/1"]
    search_id: str
    against: str
    """The other software: a Python or an image."""
    layouts: list[StackLayout]
    software: list[FieldPair]
    """Fields of the fingerprint that differ, the most relevant first."""


class ExportAnswer(TypedDict):
    """Printed by export. Exit code 3 where no trial has a result."""

    schema: Literal["parlay.export/1"]
    search_id: str
    format: ExportFormat
    file: str
    rows: int
    left_out: dict[str, int]
    """Number of trials by why they are not in the file: a failure reason, `in_flight`, `suspect` or `damaged`."""


class ImportAnswer(TypedDict):
    """Printed by import. Exit code 3 where no result can be used."""

    schema: Literal["parlay.import/1"]
    source: str
    kind: Literal["deephyper", "deepspeed", "measured"]
    file: str
    """A measured table."""
    rows: int
    left_out: dict[str, int]
    """Results by failure reason, or `cancelled`, `world`, `batch`, `other_machine`, `unfinished`, `no_layout_field`."""
    notes: list[str]
