"""Comparison of two recipes or searches: questions, results and speed ratio. Pure.

The ratio and its interval are computed as in a replay (docs/recipe.md), so that layouts of different searches follow
the same rule as a repeated layout. But the question is asked once, not after every session. The throughput of a layout
is the median of its runs, as in every other view; the ratio is that of means, since its interval is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.spec import SearchSpec
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.records.summary import reason_counts
from orchestrator.replay.recorded_runs import recorded_runs
from orchestrator.replay.sessions import Run
from orchestrator.replay.speed_ratio import (
    Comparison,
    Confidence,
    Ratios,
    ReplayVerdict,
    compare_runs,
    fingerprint_differences,
    ratio_fields,
)
from search_spaces.engines import is_emulated
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.analysis.ranked_layout import runs_that_count
from trials.analysis.verdict import TrialCounts, counts_of
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.measurement.run_variance import geometric_median
from trials.trial import FailureReason, LowerStrEnum, Trial, TrialState

_HARDWARE_FIELD = "device"
"""The hardware in a fingerprint; its other fields are software, or differ from node to node."""
_EMULATED_ENGINE = "emulated_engine"
"""The engines, as an obstacle: one of them ran on a CPU that emulates its device."""
_ROUTING = "measure.routing"


class CompareVerdict(LowerStrEnum):
    SAME = "same"
    """B is within the margin of A."""
    SLOWER = "slower"
    """B is slower by more than the margin."""
    FASTER = "faster"
    """B is faster by more than the margin."""
    INCONCLUSIVE = "inconclusive"
    """The interval allows several of these."""
    NOT_COMPARABLE = "not_comparable"
    """Model, batch, cluster or device differ."""


_VERDICTS = {
    ReplayVerdict.REPRODUCED: CompareVerdict.SAME,
    ReplayVerdict.SLOWER: CompareVerdict.SLOWER,
    ReplayVerdict.FASTER: CompareVerdict.FASTER,
    ReplayVerdict.INCONCLUSIVE: CompareVerdict.INCONCLUSIVE,
}


@dataclass(frozen=True)
class ComparedLayout:
    """Result of one layout: how it ended and, where measured, its runs."""

    trial: str
    layout: Layout
    state: TrialState
    reason: FailureReason | None = None
    runs: tuple[Run, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


class ToBest(AnswerPart):
    """Cost until the best layout was found."""

    trials: int
    node_hours: float
    """Of the attempts until then; in pilots on their own nodes, without what pilots held beyond that."""
    seconds: float


class ComparedSearch(AnswerPart):
    """The search on a side of a comparison."""

    state: SearchState
    end_reason: EndReason | None
    num_trials: int
    trials: TrialCounts
    reasons: Mapping[FailureReason, int]
    node_hours: float
    to_best: ToBest | None


class ComparedSide(AnswerPart):
    """One side of a comparison with its best layout."""

    what: Literal["recipe", "search"]
    name: str
    folder: str
    trial: str | None
    layout: Layout | None
    tokens_per_sec: float | None
    """The median over its runs, as `best` has it; `ratio` is that of the means over sessions."""
    runs: int
    """Number of runs."""
    search: ComparedSearch | None
    """Null for a recipe."""


class FieldPair(AnswerPart):
    """A field with its value on both sides."""

    field: str
    a: Any
    b: Any


class CommonSide(AnswerPart):
    """One side's measurement of a layout that both tried."""

    trial: str
    state: TrialState
    reason: FailureReason | None
    tokens_per_sec: float | None


class CommonLayout(Ratios):
    """A layout that both searches tried, with the throughput of B over that of A."""

    layout_key: str
    a: CommonSide
    b: CommonSide
    verdict: CompareVerdict | None


class CompareAnswer(Ratios, Answer):
    """Printed by compare: the throughput of B over that of A. The exit code is 0 for every verdict."""

    schema_: Literal["parlay.compare/1"] = "parlay.compare/1"
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


@dataclass(frozen=True)
class ComparisonSide:
    """One side of a comparison: a recipe, or a search with its best layout so far.

    `question` holds the settings compared, flat, with dotted names. `layouts` are the results of a search by layout
    key; those of a recipe are empty.
    """

    what: Literal["recipe", "search"]
    name: str
    folder: str
    question: Mapping[str, Any]
    best: ComparedLayout | None
    tokens_per_step: int
    layouts: Mapping[str, ComparedLayout] = field(default_factory=dict)
    search: ComparedSearch | None = None

    def tokens_per_sec(self, runs: tuple[Run, ...]) -> float:
        """Throughput of a layout with these runs, their median as everywhere; the ratio is that of means over
        sessions."""
        return self.tokens_per_step / geometric_median([run.step_time_s for run in runs])

    @property
    def answer(self) -> ComparedSide:
        best = self.best
        return ComparedSide(
            what=self.what,
            name=self.name,
            folder=self.folder,
            trial=None if best is None else best.trial,
            layout=None if best is None else best.layout,
            tokens_per_sec=None if best is None else self.tokens_per_sec(best.runs),
            runs=0 if best is None else len(best.runs),
            search=self.search,
        )

    def measurement(self, found: ComparedLayout) -> CommonSide:
        """Measurement of a layout that both sides tried."""
        speed = self.tokens_per_sec(found.runs) if found.runs else None
        return CommonSide(trial=found.trial, state=found.state, reason=found.reason, tokens_per_sec=speed)


@dataclass(frozen=True)
class LayoutPair:
    """A layout that both searches tried; `found` is None unless both measured it."""

    layout_key: str
    a: ComparedLayout
    b: ComparedLayout
    found: Comparison | None


@dataclass(frozen=True)
class CompareResult:
    """Differences, and the speed of B relative to A.

    `found` is None if that cannot be computed; `obstacles` and `detail` say why.
    """

    a: ComparisonSide
    b: ComparisonSide
    question: tuple[Mapping[str, Any], ...]
    layout: tuple[Mapping[str, Any], ...]
    software: tuple[Mapping[str, Any], ...]
    obstacles: tuple[str, ...]
    detail: str | None
    found: Comparison | None
    pairs: tuple[LayoutPair, ...]

    @property
    def verdict(self) -> CompareVerdict:
        return CompareVerdict.NOT_COMPARABLE if self.found is None else _VERDICTS[self.found.verdict]

    @property
    def answer(self) -> CompareAnswer:
        return CompareAnswer(
            verdict=self.verdict,
            **ratio_fields(self.found),
            not_comparable=list(self.obstacles),
            detail=self.detail,
            a=self.a.answer,
            b=self.b.answer,
            question=[FieldPair(**row) for row in self.question],
            layout=[FieldPair(**row) for row in self.layout],
            software=[FieldPair(**row) for row in self.software],
            common=[self._common(pair) for pair in self.pairs],
        )

    def _common(self, pair: LayoutPair) -> CommonLayout:
        return CommonLayout(
            layout_key=pair.layout_key,
            a=self.a.measurement(pair.a),
            b=self.b.measurement(pair.b),
            verdict=None if pair.found is None else _VERDICTS[pair.found.verdict],
            **ratio_fields(pair.found),
        )


def side_of_recipe(loaded: LoadedRecipe) -> ComparisonSide:
    """The side of a recipe; InputError if its evidence names no run."""
    recipe, runs = loaded.recipe, tuple(recorded_runs(loaded))
    best = ComparedLayout(recipe.trial, recipe.layout, TrialState.MEASURED, runs=runs, fingerprint=recipe.fingerprint)
    question = _question(recipe.model, recipe.cluster, recipe.layout.global_batch_size, recipe.trainer)
    objectives = recipe.pareto[0].values if recipe.pareto else [recipe.objective]  # those of the best layout
    question |= {"objective": ", ".join(objectives), _ROUTING: recipe.routing}
    name = f"{recipe.search_id}.{recipe.trial}"
    return ComparisonSide("recipe", name, str(loaded.folder), question, best, recipe.batch["tokens_per_step"])


def side_of_search(search: SearchRecord, spec: SearchSpec, folder: str) -> ComparisonSide:
    """The side of a search as it is, with the best layout by its own objective."""
    ranking = spec.ranking_of(search.trials)
    layouts = {
        key: _ended_layout(trials) for key, trials in _by_layout(search) if any(t.state.is_ended for t in trials)
    }
    best = None if ranking.best is None else layouts[ranking.best.layout.key]
    question = _question(spec.model, spec.cluster, spec.global_batch_size, {"kind": spec.trainer.kind})
    question |= {"objective": ", ".join(objective.value for objective in spec.objectives)}
    question |= {_ROUTING: spec.measure.routing}
    tokens = spec.global_batch_size * spec.model.seq_length
    summary = ComparedSearch(
        state=search.state,
        end_reason=search.end_reason,
        num_trials=len(search.trials),
        trials=counts_of(search.trials),
        reasons=reason_counts(search),
        node_hours=search.node_hours_used,
        to_best=None if best is None else _cost_to_best(search, best),
    )
    return ComparisonSide("search", search.search_id, folder, question, best, tokens, layouts, summary)


def compare_sides(a: ComparisonSide, b: ComparisonSide, margin: float) -> CompareResult:
    """Compare B with A. Speeds are compared if model, global batch and hardware agree."""
    question = tuple(_differences(a.question, b.question))
    seen = () if a.best is None or b.best is None else software_rows(a.best.fingerprint, b.best.fingerprint)
    software = tuple(row for row in seen if row["field"] != _HARDWARE_FIELD)
    devices = [row for row in seen if row["field"] == _HARDWARE_FIELD and None not in (row["a"], row["b"])]
    engines = list(_emulated_engines(a, b))
    obstacles = tuple(row["field"] for row in (*question, *devices, *engines) if _is_obstacle(row["field"]))
    found: Comparison | None = None
    detail: str | None = None
    layout: tuple[Mapping[str, Any], ...] = ()
    if a.best is None or b.best is None:
        detail = " and ".join(f"{side.name} has found no best layout" for side in (a, b) if side.best is None)
    else:
        layout = tuple(_differences(a.best.layout.to_json(), b.best.layout.to_json()))
        found = None if obstacles else _speed_ratio(a.best, b.best, margin)
    pairs = () if obstacles else tuple(_pairs(a, b, margin))
    asked = (*question, *devices, *engines)
    return CompareResult(a, b, asked, layout, software, obstacles, detail, found, pairs)


def _emulated_engines(a: ComparisonSide, b: ComparisonSide) -> Iterator[dict[str, Any]]:
    """Row of the best layouts' engines if they differ, and one of them ran on an emulated device."""
    if a.best is None or b.best is None:
        return
    engines = [side.best.layout.engine for side in (a, b) if side.best is not None]
    on = [side.question["cluster.accelerator"] for side in (a, b)]
    if engines[0] != engines[1] and any(map(is_emulated, engines, on)):
        yield {"field": _EMULATED_ENGINE, "a": engines[0], "b": engines[1]}


def _question(
    model: ModelShape, cluster: Cluster, global_batch_size: int, trainer: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        **{f"model.{name}": value for name, value in model.to_json().items()},
        "cluster.accelerator": cluster.accelerator.name,
        "cluster.gpus_per_node": cluster.gpus_per_node,
        "cluster.num_nodes": cluster.num_nodes,
        "global_batch_size": global_batch_size,
        "trainer.kind": trainer.get("kind"),
    }


def _is_obstacle(name: str) -> bool:
    """True if speeds are not comparable where this differs: model, batch, routing of experts, hardware, or the engine
    on emulated hardware."""
    others = ("global_batch_size", _ROUTING, _HARDWARE_FIELD, _EMULATED_ENGINE)
    return name.startswith(("model.", "cluster.")) or name in others


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows for names whose values differ; None for a missing one."""
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            yield {"field": name, "a": a.get(name), "b": b.get(name)}


def software_rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of the fields in which two fingerprints differ, those that are most likely to matter first; without the
    command, which follows from layout and trainer section."""
    rows = fingerprint_differences(a, b)
    found = [
        {"field": row["field"], "a": row["recorded"], "b": row["here"]} for row in rows if row["field"] != "command"
    ]
    return sorted(found, key=lambda row: _relevance(row["field"]))


_MOST_RELEVANT = (
    *(
        "device",
        "scripts",
        "script_modified",
        "script_python_files",
        "script_commit",
        "torch",
        "cuda",
        "nccl",
        "transformer_engine",
        "megatron_core",
        "megatron_layers",
    ),
    *("deepspeed", "torchtitan", "torchao", "accelerate", "transformers", "gpu_driver", "python"),
)
_LEAST_RELEVANT = ("cpus", "kernel", "executable", "host", "hosts", "slow_hosts")


def _relevance(name: str) -> int:
    """Place of a field, or of its object; environment variables and fields of no known place lie between the lists."""
    name = name.partition(".")[0]
    if name in _MOST_RELEVANT:
        return _MOST_RELEVANT.index(name)
    others = len(_MOST_RELEVANT)
    return others + 1 + _LEAST_RELEVANT.index(name) if name in _LEAST_RELEVANT else others


def _pairs(a: ComparisonSide, b: ComparisonSide, margin: float) -> Iterator[LayoutPair]:
    for key, one in a.layouts.items():
        other = b.layouts.get(key)
        if other is not None:
            both = one.runs and other.runs
            yield LayoutPair(key, one, other, _speed_ratio(one, other, margin) if both else None)


def _speed_ratio(a: ComparedLayout, b: ComparedLayout, margin: float) -> Comparison:
    return compare_runs(a.runs, b.runs, margin, Confidence.SINGLE_TEST)


def _by_layout(search: SearchRecord) -> Iterator[tuple[str, list[Trial]]]:
    groups: dict[str, list[Trial]] = {}
    for trial in search.trials:
        groups.setdefault(trial.layout.key, []).append(trial)
    yield from groups.items()


def _ended_layout(trials: list[Trial]) -> ComparedLayout:
    """Result of a layout's trials: the runs that count if it was measured, else the last trial."""
    measured = [trial for trial in trials if trial.state is TrialState.MEASURED]
    if not measured:
        last = [trial for trial in trials if trial.state.is_ended][-1]
        return ComparedLayout(last.trial, last.layout, last.state, last.reason)
    runs = runs_that_count(measured)
    outcome = runs[0].last_attempt and runs[0].last_attempt.outcome
    fingerprint = outcome.fingerprint if outcome else {}
    return ComparedLayout(runs[0].trial, runs[0].layout, TrialState.MEASURED, None, _runs(runs), fingerprint)


def _runs(trials: Iterable[Trial]) -> tuple[Run, ...]:
    attempts = [trial.last_attempt for trial in trials if trial.last_attempt is not None]
    return tuple(
        Run.of(a.outcome.metrics, a.outcome.step_times_s, a.started_at, a.outcome.flags)
        for a in attempts
        if a.outcome is not None and a.outcome.metrics is not None
    )


def _cost_to_best(search: SearchRecord, best: ComparedLayout) -> ToBest:
    """Cost until the best layout's first run had ended: ended trials, node-hours, and seconds since the search's
    creation."""
    last = search.trial(best.trial).last_attempt
    moment = search.created_at if last is None or last.ended_at is None else last.ended_at
    ended = [a for t in search.trials for a in t.attempts if a.ended_at is not None and a.ended_at <= moment]
    return ToBest(
        trials=len({attempt.trial for attempt in ended}),
        node_hours=sum(attempt.node_hours or 0.0 for attempt in ended),
        seconds=moment - search.created_at,
    )
