"""What the models of memory and time expect of every candidate, after what the search has seen so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from orchestrator.samplers.base import TrialFeedback
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import (
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
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.tables.measured_table import Observation
from trials.analysis.ranking import Objective, throughput_divisor
from trials.trial import FailureReason


@dataclass(frozen=True)
class TuningTask:
    """What is searched for: the training, the machine, and what is to be large.

    `memory_limit_gib` is the limit a rank is given, None for the device's own; `min_free_memory_gib` of it have to stay
    free. `earlier` are trials of other searches on such a machine; what they teach is widened.
    """

    model: ModelShape
    cluster: Cluster
    objective: Objective = Objective.TOKENS_PER_SEC
    memory_limit_gib: float | None = None
    prior_trials: tuple[Observation, ...] = ()
    min_free_memory_gib: float = 0.0

    @property
    def capacity_gib(self) -> float | None:
        """GiB that a rank's own allocations may take before it runs out; None where nobody knows."""
        return rank_memory_gib(self.cluster.accelerator, self.memory_limit_gib)

    @property
    def room_gib(self) -> float | None:
        """GiB that they may take of a layout that is to be trained with; None where nobody knows."""
        return None if self.capacity_gib is None else self.capacity_gib - self.min_free_memory_gib

    @property
    def speed_is_known(self) -> bool:
        """Whether anybody knows how fast the accelerator is, or trials have told; else seconds are ratios only."""
        return self.cluster.speed_is_known or any(row.step_time_s is not None for row in self.prior_trials)

    @cached_property
    def priors(self) -> ModelPriors:
        """What is known before the first trial of this search."""
        return ModelPriors.of(self)


@dataclass(frozen=True)
class ModelPriors:
    """What the constants of the models are known to be."""

    time: TimePrior
    memory: Prior

    @classmethod
    def of(cls, task: TuningTask) -> ModelPriors:
        """What is known anyway, corrected by what earlier searches saw."""
        time = TimePrior.default(task.cluster.speed_is_known)
        memory = MEMORY_FACTOR
        if ran := [row for row in task.prior_trials if row.step_time_s is not None]:
            terms = StepTerms.concatenate([_terms_of(row, task.cluster) for row in ran])
            time = time.widened(terms, [row.step_time_s or math.nan for row in ran], seed=0)
        if told := [memory_evidence(row) for row in task.prior_trials if row.outcome in ("ok", "oom")]:
            memory = MemoryPosterior(task.capacity_gib, told).transferred
        return cls(time, memory)


def _terms_of(row: Observation, like: Cluster) -> StepTerms:
    """On nodes like these the links are those that are known now; a single node's may say nothing of a fabric."""
    is_alike = (row.cluster.accelerator.name, row.cluster.gpus_per_node) == (like.accelerator.name, like.gpus_per_node)
    is_joined = like.given_links is None or like.given_links.fabric is not None or row.cluster.num_nodes == 1
    cluster = replace(like, num_nodes=row.cluster.num_nodes) if is_alike and is_joined else row.cluster
    return StepTerms.of(row.model, cluster, LayoutTable.of([row.layout]))


def memory_evidence(row: Observation) -> MemoryEvidence:
    """What a row that ran, or that ran out of memory, tells of memory."""
    estimated_gib = float(stage_memory(row.model, LayoutTable.of([row.layout])).peak[0])
    peak_gib = row.peak_memory_gib if _is_of_tensors(row.cluster) else None
    return MemoryEvidence(estimated_gib, row.outcome == "ok", peak_gib)


def _is_of_tensors(cluster: Cluster) -> bool:
    """Whether the peaks that trials measure are what tensors take; on a CPU they are those of whole processes."""
    return cluster.accelerator.memory_gib is not None


def memory_posterior(task: TuningTask, evidence: Sequence[MemoryEvidence] = ()) -> MemoryPosterior:
    """What is believed of memory after these trials of the search."""
    return MemoryPosterior(task.capacity_gib, evidence, task.priors.memory, task.room_gib)


@dataclass(frozen=True)
class Prediction:
    """Of each candidate: mean and standard deviation of the logarithm of its objective, and the chance that it fits.

    `unexplained` is how far measurements are from the model, a standard deviation of the logarithm."""

    log_value: np.ndarray
    deviation: np.ndarray
    fits: np.ndarray
    unexplained: float


def acquisition_score(log_value: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """By what candidates are ordered before any was measured: one that may not fit has to be faster to be worth its
    trial. `log_value` is the logarithm of the objective, `fits` the chance to fit."""
    return log_value + 0.5 * np.log(fits + 1e-9)


class CostModelPredictor:
    """Estimates of a closed set of candidates, and what a history makes of them."""

    def __init__(self, task: TuningTask, candidates: Sequence[Layout], seed: int):
        self._task, self._seed = task, seed
        self.table = LayoutTable.of(candidates)
        self._rows = {layout.key: row for row, layout in enumerate(candidates)}
        self._terms = StepTerms.of(task.model, task.cluster, self.table)
        self._memory_gib = stage_memory(task.model, self.table).peak
        tokens = [layout.global_batch_size * task.model.seq_length for layout in candidates]
        sharers = [throughput_divisor(layout, task.objective) for layout in candidates]
        self._log_work = np.log(tokens) - np.log(sharers)

    def row(self, layout: Layout) -> int | None:
        """Which candidate it is; None for a layout from elsewhere."""
        return self._rows.get(layout.key)

    def predict(self, history: Sequence[TrialFeedback]) -> Prediction:
        """What is expected now. Layouts from elsewhere teach nothing here."""
        known = [(self._rows[told.layout.key], told) for told in history if told.layout.key in self._rows]
        measured = [(row, told.observed_value) for row, told in known if told.observed_value is not None]
        rows = np.array([row for row, _ in measured], dtype=int)
        seconds = np.exp(self._log_work[rows] - np.log([speed for _, speed in measured]))
        posterior = StepTimePosterior(self._terms.take(rows), seconds, self._seed, self._task.priors.time)
        log_seconds, deviation = posterior.predict(self._terms)
        evidence = [found for row, told in known if (found := self._evidence(row, told)) is not None]
        memory = memory_posterior(self._task, evidence)
        return Prediction(
            log_value=self._log_work - log_seconds,
            deviation=np.hypot(deviation, LAYOUT_RESIDUAL_SHARE * posterior.error),
            unexplained=posterior.error,
            fits=memory.fits(self._memory_gib),
        )

    def _evidence(self, row: int, told: TrialFeedback) -> MemoryEvidence | None:
        estimated = float(self._memory_gib[row])
        if told.observed_value is not None:
            peak_gib = told.peak_memory_gib if _is_of_tensors(self._task.cluster) else None
            return MemoryEvidence(estimated, ran=True, peak_gib=peak_gib)
        if told.reason is FailureReason.GPU_OOM:
            return MemoryEvidence(estimated, ran=False)
        return None


LAYOUT_RESIDUAL_SHARE = 0.7
"""Of the model's error, what is a layout's own and not its neighbours', too."""
