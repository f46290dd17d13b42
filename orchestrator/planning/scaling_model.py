"""Extrapolation from trials on few nodes to more nodes, with uncertainty. Pure; numpy.

A constant of the time model scales traffic inside a node as well as the same traffic between nodes, and trials in one
node say nothing about the other. So traffic over the fabric that no trial had stays as uncertain as under the prior,
and all traffic over the fabric becomes more uncertain with every doubling of the nodes. See docs/past_searches.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.search.samplers.cost_model_posterior import TuningTask, memory_evidence, memory_posterior
from search_spaces.cost_model.constants import CONSTANTS
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import (
    LAYOUT_RESIDUAL_SHARE,
    MODEL_ERROR,
    StepTimePosterior,
    TimePrior,
)
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.layouts.groups import group_names
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.placement import leaves_domain
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.measured_table import Observation

FABRIC_LOG_SD = 0.5
"""Uncertainty added to traffic over the fabric by each doubling of the nodes: a standard deviation of the logarithm.

The one fabric measured from 2 to 64 nodes loses a factor of e^0.48 each time (clusters/playbook-h100.yaml).
"""

_GROUP_CONSTANTS = {
    **dict.fromkeys(("tensor", "context"), ("collectives", "latency")),
    "expert": ("dispatch",),
    "pipeline": ("pipeline",),
    **dict.fromkeys(("shards", "replicas", "expert_shards"), ("data_parallel", "sharded")),
}
"""Constants of the traffic of each kind of groups."""
_DETECTABLE_SD = 2
"""Deviation of a term's constant, in prior standard deviations, that a trial must have been able to show."""
_MIN_SHARE = 0.1
"""Share of a layout's uncertainty from which a term is reported."""
_DRAWS = 1000
_DEGREES_OF_FREEDOM = 4
_MAX_TRIALS = 150
"""Upper limit of trials: more take seconds and add little."""


@dataclass(frozen=True)
class UnmeasuredTerm:
    """A term of the time model without a measurement, over the fabric or inside a node."""

    term: str
    over_fabric: bool


class ScalingPosterior:
    """Cost model conditioned on trials of a task, for layouts on any number of nodes.

    `rows` are of the task's model, on nodes of its cluster, and at least one of them ran. All random draws come from
    `seed`.
    """

    def __init__(self, task: TuningTask, rows: Sequence[Observation], seed: int):
        self._task = task
        rng = np.random.default_rng(seed)
        ran = _sample([row for row in rows if row.step_time_s is not None], rng)
        table = LayoutTable.of(row.layout for row in ran)
        terms = self._terms(table)
        seconds = [row.step_time_s or math.nan for row in ran]
        self._time = StepTimePosterior(terms, seconds, seed, task.priors.time)
        found = self._time.summary
        self._constants, self._log_constants = found.constants, found.draws(_DRAWS, rng)
        self._error = _scale(np.log(seconds) - self._time.predict(terms)[0])
        evidence = memory_evidence(rows, task.expert_skew)
        self._memory = memory_posterior(task, evidence)
        self._widest = max(row.layout.num_nodes for row in ran)
        self._prior_log_sd = TimePrior.default(task.cluster.speed_is_known).deviations
        self._measured_inside, self._measured_between = self._measured_terms(table, terms)
        unseen_log_sd = np.where(self._measured_between, 0, self._prior_log_sd)
        self._unmeasured_log = unseen_log_sd * rng.standard_normal((_DRAWS, len(CONSTANTS)))
        self._fabric = FABRIC_LOG_SD * rng.standard_normal((_DRAWS, 1))
        self._seed = seed

    def step_time_s(self, layouts: LayoutTable) -> np.ndarray:
        """Most likely step time of each layout, seconds."""
        return self._terms(layouts).seconds(self._constants)

    def fits(self, layouts: LayoutTable) -> np.ndarray:
        """Probability that each layout fits; 1 if the memory size is unknown."""
        memory = stage_memory(self._task.model, layouts, expert_skew=self._task.expert_skew)
        return self._memory.fits(memory.peak)

    def log_seconds(self, layouts: LayoutTable) -> np.ndarray:
        """Draws of log step times, of shape (draws, layouts), over the constants that all layouts share."""
        terms, between = self._terms(layouts), self._between_nodes(layouts)
        logs = np.empty((_DRAWS, len(layouts)))
        kinds, kind_of = np.unique(np.column_stack([layouts["num_nodes"], between]), axis=0, return_inverse=True)
        for kind, (num_nodes, *is_between) in enumerate(kinds.tolist()):
            rows = np.flatnonzero(kind_of.ravel() == kind)
            logs[:, rows] = np.log(
                terms.take(rows).seconds(np.exp(self._log_constants_at(num_nodes, np.array(is_between))))
            )
        return logs

    def shared_residual(self, layout: Layout, step_time_s: float) -> float:
        """Residual that layouts share with this measured one: the logarithm of a factor on step times."""
        left = math.log(step_time_s / self.step_time_s(LayoutTable.of([layout]))[0])
        return (1 - LAYOUT_RESIDUAL_SHARE**2) * left

    def layout_residual(self, count: int) -> np.ndarray:
        """Draws of each layout's own residual, logarithms of shape (draws, count)."""
        return LAYOUT_RESIDUAL_SHARE * self._errors(count)

    def error(self) -> np.ndarray:
        """Draws of a layout's whole residual, logarithms of shape (draws,)."""
        return self._errors(1)[:, 0]

    def _errors(self, count: int) -> np.ndarray:
        rng = np.random.default_rng(self._seed)
        return self._error * rng.standard_t(_DEGREES_OF_FREEDOM, (_DRAWS, count))

    def unmeasured_terms(self, layout: LayoutTable) -> list[UnmeasuredTerm]:
        """Terms without a measurement that dominate the uncertainty of this layout's step time, the largest first."""
        between = self._between_nodes(layout)[0]
        widened, terms = self._log_constants_at(int(layout["num_nodes"][0]), between), self._terms(layout)
        typical = np.median(widened, axis=0)
        variances = np.empty(len(CONSTANTS))
        for term in range(len(CONSTANTS)):
            alone = np.tile(typical, (_DRAWS, 1))
            alone[:, term] = widened[:, term]
            variances[term] = np.log(terms.seconds(np.exp(alone))).var()
        shares = variances / variances.sum()
        unseen = ~np.where(between > 0, self._measured_between, self._measured_inside) & (shares >= _MIN_SHARE)
        return [UnmeasuredTerm(CONSTANTS[term], bool(between[term])) for term in np.argsort(-shares) if unseen[term]]

    def _log_constants_at(self, num_nodes: int, between: np.ndarray) -> np.ndarray:
        """Draws of the log constants on `num_nodes` nodes, for layouts with these terms over the fabric."""
        doublings = max(0.0, math.log2(num_nodes / self._widest))
        return self._log_constants + between * (self._unmeasured_log + doublings * self._fabric)

    def _terms(self, layouts: LayoutTable) -> StepTerms:
        return StepTerms.of(self._task.model, self._task.cluster, layouts)

    def _measured_terms(self, table: LayoutTable, terms: StepTerms) -> tuple[np.ndarray, np.ndarray]:
        """Masks of terms that some trial measures: inside nodes, and over the fabric."""
        is_felt = terms.sensitivity(self._constants) * np.exp(_DETECTABLE_SD * self._prior_log_sd) >= MODEL_ERROR
        between = self._between_nodes(table) > 0
        return np.any(is_felt & ~between, axis=0), np.any(is_felt & between, axis=0)

    def _between_nodes(self, layouts: LayoutTable) -> np.ndarray:
        """Mask of the terms whose traffic crosses the fabric, 0 or 1, of shape (layouts, len(CONSTANTS))."""
        between = np.zeros((len(layouts), len(CONSTANTS)))
        for name in group_names(self._task.model.num_experts is not None):
            terms = _GROUP_CONSTANTS[name]
            leaves = leaves_domain(layouts, name, self._task.cluster)
            between[:, [CONSTANTS.index(term) for term in terms]] += leaves[:, None]
        return np.minimum(between, 1)


def _sample(rows: list[Observation], rng: np.random.Generator) -> list[Observation]:
    chosen = rng.choice(len(rows), min(len(rows), _MAX_TRIALS), replace=False)
    return [rows[index] for index in np.sort(chosen)]


def _scale(left: np.ndarray) -> float:
    """Scale of the residuals: that of Student's t, robust against outliers. MODEL_ERROR counts as four measurements."""
    squares, known = MODEL_ERROR**2, _DEGREES_OF_FREEDOM
    for _ in range(_ROUNDS):
        weights = (known + 1) / (known + left**2 / squares)
        squares = (known * MODEL_ERROR**2 + (weights * left**2).sum()) / (known + len(left))
    return math.sqrt(squares)


_ROUNDS = 30
"""Iterations of the scale's fixed point; each at least halves the error."""
