"""Builds the recipe of a trial from its search's record. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from dashboards.rank_placement import nodes_per_domain
from dashboards.trial_text import describe_flag, describe_replayed_table, format_trial_end, memory_growth_lines
from orchestrator.recipe.exports import Export, exports
from orchestrator.recipe.recipe import Evidence, Recipe, RecordedRun
from orchestrator.records.summary import VerdictAnswer
from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.decoding import decode, encode
from search_spaces.engines import PARLAY
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.groups import leaving_words
from search_spaces.layouts.settings import PYTHON
from search_spaces.layouts.table import LayoutTable
from search_spaces.routing import Routing
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.unsafe_text import without_controls
from search_spaces.verification import Verification
from trials.analysis.best_layout import choice_of, fastest_of, rationale
from trials.analysis.node_sets import runs_on_disjoint_nodes
from trials.analysis.pareto import pareto_points
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Ranking, speedup_over
from trials.analysis.search_cost import SearchCost
from trials.analysis.training_rate import training_rate
from trials.analysis.verdict import baseline_key_of, verdict_of
from trials.ledger.events import SearchRecord
from trials.schema.checkpoint_section import checkpoints_of
from trials.trial import Attempt, Trial, TrialKind, TrialSpec, TrialState

EVIDENCE_SCHEMA = "parlay.evidence/1"
MAX_COMPARED = 50
"""Layouts listed in recipe.yaml; evidence.json has all."""


@dataclass(frozen=True)
class RecipeSource:
    """Input of a recipe.

    `best` and `baseline` come from the ranking; the recipe has the numbers over all their runs. `spec` is that of the
    attempt that measured the best layout's first run.
    """

    search: SearchRecord
    best: RankedLayout
    spec: TrialSpec
    ranking: Ranking
    baseline: TrialOrLayout | None = None

    @cached_property
    def exports(self) -> list[Export]:
        """The layout for every trainer."""
        return exports(self.spec, self.python, self.fingerprint, self.search.replayed_table is None)

    @property
    def python(self) -> str:
        """Interpreter that started the trial's ranks, as the search names it: a script may prepare the environment of
        the one that runs (`executable` of the fingerprint), which stands for a name of a node's PATH."""
        trainer = self.search.spec.get("trainer") or {}
        named = self.best.layout.of_trial.software.get(PYTHON) or trainer.get("python")
        return named if named and "/" in named else self.fingerprint.get("executable", named or "python3")

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Software and hardware of the layout's first run."""
        last = self.best.first.last_attempt
        return last.outcome.fingerprint if last and last.outcome else {}

    @property
    def runs(self) -> list[Attempt]:
        """Every measurement of the layout, in the order it was proposed."""
        return [run.last_attempt for run in self.best.runs if run.last_attempt is not None]

    @property
    def failed_repeats(self) -> list[Trial]:
        """Repeats of the trial's layout that ended without a measurement."""
        ended = [t for t in self.search.trials if t.state.is_ended and t.state is not TrialState.MEASURED]
        return [t for t in ended if t.kind is TrialKind.REPEAT and t.layout.key == self.best.layout.key]

    @property
    def others(self) -> list[RankedLayout]:
        """Other measured layouts, fastest first, after the baseline, which is listed even if it is this layout."""
        key = self.best.layout.key
        others = [t for t in self.ranking.ordered if t.layout.key != key or self.is_baseline(t)]
        return sorted(others, key=lambda t: not self.is_baseline(t))

    def is_baseline(self, trial: TrialOrLayout) -> bool:
        return self.baseline is not None and trial.layout.key == self.baseline.layout.key


def parlay_trainer_only(engine: str) -> str:
    """Caveat of a layout that Parlay's own trainer measured, until a replay with another one has been noted."""
    return f"Measured with Parlay's own training program, engine {engine}; not measured with another trainer."


def build_recipe(source: RecipeSource, created_at: str, parlay_version: str, files: Mapping[str, str]) -> Recipe:
    """Build the recipe; `files` maps each file that recipe.yaml holds a checksum of to its SHA-256."""
    best, spec = source.best, source.spec
    return Recipe(
        created_at=created_at,
        parlay_version=parlay_version,
        search_id=source.search.search_id,
        trial=best.trial,
        layout=best.layout,
        model=spec.model,
        cluster=Cluster(accelerator_named(spec.accelerator), spec.gpus_per_node, spec.num_nodes),
        objective=source.ranking.objective.value,
        measured=best.measured,
        training_rate=training_rate(
            best.measured.tokens_per_sec, spec.model, best.layout, checkpoints_of(source.search.spec)
        ),
        memory=recipe_memory(best, spec),
        repeats=len(source.runs),
        **_selection_fields(source),
        compared_with=tuple(_comparisons(source))[:MAX_COMPARED],
        constraints=_printable(source.search.spec.get("constraints") or {}),
        routing=spec.measure.routing,
        verified=Verification.of(best.layout.canonical()).to_json(),
        trainer=_printable(spec.trainer),
        python=_printable(source.python),
        launcher=_printable(source.search.spec.get("launcher") or {}),
        exports=tuple(export.to_json() for export in source.exports),
        fingerprint=_printable(source.fingerprint),
        evidence=Evidence(
            source.search.code_hash,
            dict(files),
            tuple(decode(RecordedRun, _printable(_run_json(attempt))) for attempt in source.runs),
        ),
        caveats=tuple(_caveats(source)),
    )


def evidence(source: RecipeSource) -> dict[str, Any]:
    """Content of evidence.json: every run of the layout with its raw step times, and the end of every other trial."""
    runs = source.runs
    measured = {attempt.trial for attempt in runs}
    return {
        "schema": EVIDENCE_SCHEMA,
        "search_id": source.search.search_id,
        "layout_key": source.best.layout.key,
        "runs": [_run_json(attempt) | encode(attempt, "outcome") for attempt in runs],
        "others": [_trial_end_json(t) for t in source.search.trials if t.trial not in measured],
    }


def _printable(value: Any) -> Any:
    """The same data with control characters in texts replaced by spaces: a recipe is read in terminals."""
    if isinstance(value, Mapping):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_printable(inner) for inner in value]
    return without_controls(value) if isinstance(value, str) else value


def _is_best(source: RecipeSource) -> bool:
    return source.ranking.best is not None and source.ranking.best.trial == source.best.trial


def _selection_fields(source: RecipeSource) -> dict[str, Any]:
    """Recipe fields about the choice of this layout: ties, verdict, reason, fastest layout and Pareto front."""
    ranking, baseline, is_best = source.ranking, source.baseline, _is_best(source)
    key = baseline_key_of(source.search) if baseline is None else baseline.layout.key
    verdict = verdict_of(source.search, ranking, key) if is_best else None
    return {
        "ties": tuple(tie.trial for tie in ranking.ties) if is_best else (),
        "verdict": None if verdict is None else _printable(VerdictAnswer.of(verdict).plain()),
        "cost": None if verdict is None else SearchCost.of(source.search, verdict),
        "selection_reason": choice_of(ranking) if is_best else None,
        "rationale": rationale(ranking) if is_best else None,
        "fastest": fastest_of(ranking) if is_best else None,
        "pareto": tuple(pareto_points(ranking)) if is_best else (),
    }


def _run_json(attempt: Attempt) -> dict[str, Any]:
    """One run: its trial, job and nodes, and its median step time with the 95 % interval, seconds."""
    metrics = attempt.outcome and attempt.outcome.metrics
    times = {name: getattr(metrics, name, None) for name in ("step_time_s", "step_time_low_s", "step_time_high_s")}
    return encode(attempt, "trial", "attempt", "job_id", "nodes", "leaves", "started_at") | times


def _trial_end_json(trial: Trial) -> dict[str, Any]:
    return {
        **encode(trial, "trial", "layout_key", "state", "reason"),
        "tokens_per_sec": None if trial.measured is None else trial.measured.tokens_per_sec,
        "flags": list(trial.flags),
    }


def _comparisons(source: RecipeSource) -> Iterator[dict[str, Any]]:
    for other in source.others:
        speedup = speedup_over(other, source.best, source.ranking.objective)
        if speedup is not None:
            yield {
                "trial": other.trial,
                "layout_key": other.layout.key,
                "baseline": source.is_baseline(other),
                "tokens_per_sec": other.measured.tokens_per_sec,
                "speedup": speedup.ratio,
                "speedup_low": speedup.low,
                "speedup_high": speedup.high,
            }


def _caveats(source: RecipeSource) -> Iterator[str]:
    table = source.search.replayed_table
    if table is not None:
        yield describe_replayed_table(table)
    elif len(source.runs) == 1:
        yield "Measured once: another run, hour or node may be faster or slower."
    for repeat in source.failed_repeats:
        yield f"A repeat ({repeat.trial}) was not measured: {format_trial_end(repeat)}."
    if _is_best(source) and source.ranking.ties:
        names = ", ".join(t.trial for t in source.ranking.ties)
        yield f"Statistically tied with {names}: the 95 % intervals overlap."
    yield from _memory_caveats(source)
    for flag in source.best.flags:
        yield f"Flagged {describe_flag(flag)}."
    yield from _link_domain_caveats(source)
    if source.spec.trainer["kind"] == PARLAY and table is None:
        yield parlay_trainer_only(source.best.layout.engine)
    if isinstance(source.baseline, Trial) and source.baseline.measured is None:
        yield f"The baseline ({source.baseline.trial}) was not measured: {format_trial_end(source.baseline)}."
    yield from memory_growth_lines(source.best.measured)
    if runs_on_disjoint_nodes(source.best.counted) is False:
        yield "No two of its runs were on disjoint sets of nodes: a slow or fast node may be part of every number."


def _link_domain_caveats(source: RecipeSource) -> Iterator[str]:
    """The groups in several link domains of the job, where a domain has several nodes."""
    layout, nodes = source.best.layout, nodes_per_domain(source.search.spec.get("cluster") or {}, source.best.layout)
    if 1 < nodes < layout.num_nodes:
        groups = leaving_words(layout, nodes * source.spec.gpus_per_node)
        yield f"Measured on link domains of {nodes} nodes. Groups in several of them: {groups}."


def _memory_caveats(source: RecipeSource) -> Iterator[str]:
    """Memory that stays free, if headroom is required, and the layouts that were passed over for leaving less."""
    headroom, ranking = source.ranking.headroom, source.ranking
    if headroom is None:
        return
    yield f"Of a rank's {headroom.capacity_gib:.4g} GiB it {headroom.describe(source.best.measured.peak_memory_gib)}."
    too_full = [trial.trial for trial in ranking.ordered if not ranking.has_headroom(trial)]
    if too_full:
        yield f"Not chosen, because they leave less: {', '.join(too_full)}."


def recipe_memory(best: RankedLayout, spec: TrialSpec) -> dict[str, Any]:
    """Content of the recipe's `memory`."""
    fullest = best.fullest_rank
    return {
        "fullest_rank": None if fullest is None else dict(fullest),
        "predicted_gib": _predicted_gib(spec),
    }


def _predicted_gib(spec: TrialSpec) -> dict[str, float]:
    """GiB of a rank of the fullest stage by purpose, without the allocator's overhead."""
    skew = Routing.of(spec.measure.routing).skew or 1.0
    layout = spec.layout.canonical()
    parts = stage_memory(spec.model, LayoutTable.of([layout]), StageTable.of_layout(spec.model, layout), skew)
    stage = int(parts.total[0].argmax())
    return {field.name: float(getattr(parts, field.name)[0, stage]) for field in fields(StageMemory)}
