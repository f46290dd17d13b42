"""Comparison of two recipes or searches: questions, results and speed ratio.

The ratio and its interval are computed as in a replay (docs/recipe.md), so that layouts of different searches follow
the same rule as a repeated layout. But the question is asked once, not after every session. The throughput of a layout
is the median of its runs, as in every other view; the ratio is that of means, since its interval is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.spec import SearchSpec
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.records.lookup import find_search, is_path_without_search
from orchestrator.records.summary import reason_counts
from orchestrator.replay.measured_layout import MeasuredLayout
from orchestrator.replay.software import FieldPair, field_differences, software_differences
from orchestrator.replay.speed_ratio import (
    Comparison,
    Confidence,
    Ratios,
    ReplayVerdict,
    Run,
    compare_runs,
    ratio_fields,
)
from search_spaces.engines import is_emulated
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.analysis.verdict import TrialCounts, counts_of
from trials.ledger.events import EndReason, SearchRecord, SearchState
from trials.measurement.run_variance import geometric_median
from trials.trial import FailureReason, LowerStrEnum, Trial, TrialState

_log = logging.getLogger(__name__)

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
    best: MeasuredLayout | None
    tokens_per_step: int
    layouts: Mapping[str, MeasuredLayout] = field(default_factory=dict)
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

    def measurement(self, found: MeasuredLayout) -> CommonSide:
        """Measurement of a layout that both sides tried."""
        speed = self.tokens_per_sec(found.runs) if found.runs else None
        return CommonSide(trial=found.trial, state=found.state, reason=found.reason, tokens_per_sec=speed)


@dataclass(frozen=True)
class CompareResult:
    """The answer, and the comparison behind its ratio; None without one, for the reason that the answer says."""

    answer: CompareAnswer
    found: Comparison | None

    @property
    def verdict(self) -> CompareVerdict:
        return self.answer.verdict


def find_side(given: str, ledger: str | None, force: bool) -> ComparisonSide:
    """Find one side: a search by id or folder, else a recipe by folder or file.

    With `force`, an edited recipe is read too.
    """
    if not is_path_without_search(given):
        found = find_search(given, ledger)
        return side_of_search(found.record, found.spec, str(found.folder.path))
    loaded = read_recipe(Path(given), force)
    if loaded.banner:
        _log.warning(loaded.banner)
    return side_of_recipe(loaded)


def side_of_recipe(loaded: LoadedRecipe) -> ComparisonSide:
    """The side of a recipe."""
    recipe, best = loaded.recipe, MeasuredLayout.of_recipe(loaded)
    question = _question(recipe.model, recipe.cluster, recipe.layout.global_batch_size, recipe.trainer)
    objectives = recipe.pareto[0].values if recipe.pareto else [recipe.objective]  # those of the best layout
    question |= {"objective": ", ".join(objectives), _ROUTING: recipe.routing}
    name = f"{recipe.search_id}.{recipe.trial}"
    return ComparisonSide("recipe", name, str(loaded.folder), question, best, recipe.batch["tokens_per_step"])


def side_of_search(search: SearchRecord, spec: SearchSpec, folder: str) -> ComparisonSide:
    """The side of a search as it is, with the best layout by its own objective."""
    ranking = spec.ranking_of(search.trials)
    ended = [(key, trials) for key, trials in _by_layout(search) if any(trial.state.is_ended for trial in trials)]
    layouts = {key: MeasuredLayout.of_trials(trials) for key, trials in ended}
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
    layout: list[FieldPair] = []
    seen: list[FieldPair] = []
    if a.best is not None and b.best is not None:
        layout = list(field_differences(a.best.layout.to_json(), b.best.layout.to_json()))
        seen = software_differences(a.best.fingerprint, b.best.fingerprint)
    devices = [pair for pair in seen if pair.field == _HARDWARE_FIELD and None not in (pair.a, pair.b)]
    question = [*field_differences(a.question, b.question), *devices, *_emulated_engines(a, b)]
    obstacles = [pair.field for pair in question if _is_obstacle(pair.field)]
    without = [f"{side.name} has found no best layout" for side in (a, b) if side.best is None]
    found = None if obstacles else _speed_ratio(a.best, b.best, margin)
    answer = CompareAnswer(
        verdict=CompareVerdict.NOT_COMPARABLE if found is None else _VERDICTS[found.verdict],
        **ratio_fields(found),
        not_comparable=obstacles,
        detail=" and ".join(without) or None,
        a=a.answer,
        b=b.answer,
        question=question,
        layout=layout,
        software=[pair for pair in seen if pair.field != _HARDWARE_FIELD],
        common=[] if obstacles else list(_common_layouts(a, b, margin)),
    )
    return CompareResult(answer, found)


def _emulated_engines(a: ComparisonSide, b: ComparisonSide) -> Iterator[FieldPair]:
    """The best layouts' engines if they differ, and one of them ran on an emulated device."""
    if a.best is None or b.best is None:
        return
    engines = [side.best.layout.engine for side in (a, b) if side.best is not None]
    on = [side.question["cluster.accelerator"] for side in (a, b)]
    if engines[0] != engines[1] and any(map(is_emulated, engines, on)):
        yield FieldPair(field=_EMULATED_ENGINE, a=engines[0], b=engines[1])


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


def _common_layouts(a: ComparisonSide, b: ComparisonSide, margin: float) -> Iterator[CommonLayout]:
    for key, one in a.layouts.items():
        if (other := b.layouts.get(key)) is not None:
            found = _speed_ratio(one, other, margin)
            yield CommonLayout(
                layout_key=key,
                a=a.measurement(one),
                b=b.measurement(other),
                verdict=None if found is None else _VERDICTS[found.verdict],
                **ratio_fields(found),
            )


def _speed_ratio(a: MeasuredLayout | None, b: MeasuredLayout | None, margin: float) -> Comparison | None:
    """Comparison of two layouts; None unless both were measured."""
    if a is None or b is None or not (a.runs and b.runs):
        return None
    return compare_runs(a.runs, b.runs, margin, Confidence.SINGLE_TEST)


def _by_layout(search: SearchRecord) -> Iterator[tuple[str, list[Trial]]]:
    groups: dict[str, list[Trial]] = {}
    for trial in search.trials:
        groups.setdefault(trial.layout.key, []).append(trial)
    yield from groups.items()


def _cost_to_best(search: SearchRecord, best: MeasuredLayout) -> ToBest:
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
