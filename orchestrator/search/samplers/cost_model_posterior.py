"""Predictions of the cost model for every candidate, conditioned on the trials so far."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean
from typing import TypeVar

import numpy as np

from orchestrator.search.samplers.base import TrialFeedback
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import (
    LAYOUT_RESIDUAL_SHARE,
    MEMORY_FACTOR,
    MemoryEvidence,
    MemoryPosterior,
    Prior,
    StepTimePosterior,
    TimePrior,
)
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.memory_headroom import rank_memory_gib
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings, settings_of
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.routing import ROUTERS_CHOICE, Routing
from search_spaces.tables.measured_table import Observation
from trials.analysis.ranking import Objective, throughput_divisor
from trials.failure_policy import policy_of

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class TuningTask:
    """Tuning task: the training, the machine and the objective.

    `memory_limit_gib` is the limit of a rank, None for the device's own; `min_free_memory_gib` of it have to stay free.
    `prior_trials` are trials of other searches on the same kind of machine; what they teach is widened. `routing` is
    that of the model's experts.
    """

    model: ModelShape
    cluster: Cluster
    objective: Objective = Objective.TOKENS_PER_SEC
    memory_limit_gib: float | None = None
    prior_trials: tuple[Observation, ...] = ()
    min_free_memory_gib: float = 0.0
    routing: Routing = ROUTERS_CHOICE

    @property
    def expert_skew(self) -> float:
        """Skew by which memory is judged; a router's own is not known."""
        return self.routing.skew or 1.0

    @property
    def capacity_gib(self) -> float | None:
        """GiB that a rank can allocate before it runs out; None if unknown."""
        return rank_memory_gib(self.cluster.accelerator, self.memory_limit_gib)

    @property
    def usable_gib(self) -> float | None:
        """GiB that a rank of the resulting layout may allocate; None if unknown."""
        return None if self.capacity_gib is None else self.capacity_gib - self.min_free_memory_gib

    @property
    def speed_is_known(self) -> bool:
        """True if the accelerator's speed is known, from data sheets or trials. Otherwise seconds are only ratios."""
        return self.cluster.speed_is_known or any(row.step_time_s is not None for row in self.prior_trials)

    @cached_property
    def priors(self) -> ModelPriors:
        """Priors before the first trial of this search."""
        return ModelPriors.of(self)


@dataclass(frozen=True)
class ModelPriors:
    """Priors of the cost model's constants."""

    time: TimePrior
    memory: Prior

    @classmethod
    def of(cls, task: TuningTask) -> ModelPriors:
        """Shipped priors, updated by the trials of earlier searches."""
        time = TimePrior.default(task.cluster.speed_is_known)
        memory = MEMORY_FACTOR
        if ran := [row for row in task.prior_trials if row.step_time_s is not None]:
            clusters = [_known_now(row.cluster, task.cluster) for row in ran]
            time = time.widened(step_terms(ran, clusters), [row.step_time_s or math.nan for row in ran], seed=0)
        if evidence := memory_evidence(task.prior_trials):
            memory = MemoryPosterior(task.capacity_gib, evidence).transferred
        return cls(time, memory)


def step_terms(rows: Sequence[Observation], clusters: Sequence[Cluster]) -> StepTerms:
    """Cost terms of the rows, in their order, each on the cluster beside it. Rows of one model and cluster are one
    table: the cost model takes as long for a layout as for a hundred."""
    places = _places_by([(row.model, cluster) for row, cluster in zip(rows, clusters, strict=True)])
    parts = [StepTerms.of(*key, LayoutTable.of([rows[place].layout for place in of])) for key, of in places.items()]
    return StepTerms.concatenate(parts).take(np.argsort(np.concatenate([*places.values()])))


def peak_memory_gib(rows: Sequence[Observation], expert_skew: float = 1.0) -> np.ndarray:
    """Estimated peak of each row, in their order."""
    peaks = np.zeros(len(rows))
    for model, places in _places_by([row.model for row in rows]).items():
        layouts = LayoutTable.of([rows[place].layout for place in places])
        peaks[places] = stage_memory(model, layouts, expert_skew=expert_skew).peak
    return peaks


def _places_by(keys: Sequence[K]) -> dict[K, list[int]]:
    """Places of each key."""
    places = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return places


def _known_now(of_row: Cluster, like: Cluster) -> Cluster:
    """Cluster of a row: this task's where the row's nodes are of the same kind, with the links that are known now. A
    single node's description may lack a fabric."""
    is_alike = (of_row.accelerator.name, of_row.gpus_per_node) == (like.accelerator.name, like.gpus_per_node)
    has_fabric = like.given_links is None or like.given_links.fabric is not None
    is_joined = has_fabric or of_row.num_nodes <= like.domain_nodes
    return replace(like, num_nodes=of_row.num_nodes) if is_alike and is_joined else of_row


def memory_evidence(rows: Iterable[Observation], expert_skew: float = 1.0) -> list[MemoryEvidence]:
    """Memory evidence of the rows that ran, or that ran out of memory."""
    tried = [row for row in rows if row.outcome in ("ok", "oom")]
    return [
        MemoryEvidence(float(gib), row.outcome == "ok", row.peak_memory_gib if _measures_tensors(row.cluster) else None)
        for row, gib in zip(tried, peak_memory_gib(tried, expert_skew), strict=True)
    ]


def _measures_tensors(cluster: Cluster) -> bool:
    """True if measured peaks are of tensors. On a CPU they are of whole processes."""
    return cluster.accelerator.memory_gib is not None


def memory_posterior(task: TuningTask, evidence: Sequence[MemoryEvidence] = ()) -> MemoryPosterior:
    """Memory posterior after these trials of the search."""
    return MemoryPosterior(task.capacity_gib, evidence, task.priors.memory, task.usable_gib)


@dataclass(frozen=True)
class Prediction:
    """Predictions for each candidate: mean and standard deviation of the log objective, and the probability that it
    fits.

    `unexplained` is the residual between measurements and model, a standard deviation of the logarithm.
    """

    log_value: np.ndarray
    deviation: np.ndarray
    fits: np.ndarray
    unexplained: float


def prior_score(log_value: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """Order of candidates before any measurement: the log objective, with a penalty for a low fit probability."""
    return log_value + 0.5 * np.log(fits + 1e-9)


class CostModelPredictor:
    """Cost-model predictions for a closed set of candidates, updated by a history."""

    def __init__(self, task: TuningTask, candidates: Sequence[Layout], seed: int):
        self._task, self._seed = task, seed
        self.table = LayoutTable.of(candidates)
        self._rows = {key: row for row, key in enumerate(self.table.canonical().keys)}
        self._terms = StepTerms.of(task.model, task.cluster, self.table)
        self._memory_gib = stage_memory(task.model, self.table, expert_skew=task.expert_skew).peak
        tokens = self.table.global_batch_size * task.model.seq_length
        sharers = self.table.column_of(lambda layout: throughput_divisor(layout, task.objective))
        self._log_work = np.log(tokens) - np.log(sharers)
        self._layout_of = _layouts_in_memory(candidates)

    def row(self, layout: Layout) -> int | None:
        """Row of a candidate; None for any other layout."""
        return self._rows.get(layout.key)

    def predict(self, history: Sequence[TrialFeedback]) -> Prediction:
        """Predictions after this history. Layouts that are not candidates are ignored."""
        known = [
            (self._rows[feedback.layout.key], feedback) for feedback in history if feedback.layout.key in self._rows
        ]
        measured = [(row, feedback.observed_value) for row, feedback in known if feedback.observed_value is not None]
        rows = np.array([row for row, _ in measured], dtype=int)
        log_watts = self._log_watts(known)
        seconds = np.exp(self._log_work[rows] - np.log([speed for _, speed in measured]) - log_watts[rows])
        posterior = StepTimePosterior(self._terms.take(rows), seconds, self._seed, self._task.priors.time)
        log_seconds, deviation = posterior.predict(self._terms)
        evidence = [found for row, feedback in known if (found := self._evidence(row, feedback)) is not None]
        memory = memory_posterior(self._task, evidence)
        return Prediction(
            log_value=self._log_work - log_seconds - log_watts,
            deviation=np.hypot(deviation, np.hypot(LAYOUT_RESIDUAL_SHARE * posterior.error, self._power_deviation)),
            unexplained=float(np.hypot(posterior.error, self._power_deviation)),
            fits=self._with_same_layouts(memory.fits(self._memory_gib), known),
        )

    @property
    def _power_deviation(self) -> float:
        return 0.0 if self._task.objective.follows_from_throughput else POWER_DEVIATION

    def _log_watts(self, known: Sequence[tuple[int, TrialFeedback]]) -> np.ndarray:
        """Logarithm of each candidate's draw a GPU where energy is the objective, else 0: the measured one, or the
        geometric mean of those measured. Before the first only ratios are known."""
        measured = {row: math.log(f.watts_per_gpu) for row, f in known if f.watts_per_gpu is not None}
        if self._task.objective.follows_from_throughput or not measured:
            return np.zeros(len(self._log_work))
        found = np.full(len(self._log_work), fmean(measured.values()))
        found[list(measured)] = list(measured.values())
        return found

    def _with_same_layouts(self, fits: np.ndarray, known: Sequence[tuple[int, TrialFeedback]]) -> np.ndarray:
        """Fit probabilities, with what a trial of the same layout has shown: other settings take as much memory, but
        for those of the allocator."""
        if self._layout_of is None:
            return fits
        for row, feedback in known:
            evidence = self._evidence(row, feedback)
            if evidence is not None:
                has_run = evidence.ran and feedback.unfit_value is None
                fits = np.where(self._layout_of == self._layout_of[row], _RUNS if has_run else _FAILS, fits)
        return fits

    def _evidence(self, row: int, feedback: TrialFeedback) -> MemoryEvidence | None:
        estimated = float(self._memory_gib[row])
        if feedback.observed_value is not None:
            peak_gib = feedback.peak_memory_gib if _measures_tensors(self._task.cluster) else None
            return MemoryEvidence(estimated, ran=True, peak_gib=peak_gib)
        if policy_of(feedback.reason).exceeds_rank_memory(self._task.cluster.accelerator.name):
            return MemoryEvidence(estimated, ran=False)
        return None


def _layouts_in_memory(candidates: Sequence[Layout]) -> np.ndarray | None:
    """Number of each candidate's layout and allocator; None where no candidate has settings."""
    if not any(layout.settings for layout in candidates):
        return None
    numbers: dict[tuple[str, ...], int] = {}
    names = [(layout.without_settings.key, _allocator(layout.settings)) for layout in candidates]
    return np.array([numbers.setdefault(name, len(numbers)) for name in names])


@cache
def _allocator(settings: str) -> str:
    """Settings of the allocator."""
    env = settings_of(settings).env
    return Settings({name: value for name, value in env.items() if "ALLOC" in name or "MALLOC" in name}).text


_RUNS, _FAILS = 0.999, 0.001
POWER_DEVIATION = 0.15
"""Standard deviation of the logarithm of a layout's power around that of the others. An assumption: GPUs draw between
half and all of their limit, by how long they wait."""
