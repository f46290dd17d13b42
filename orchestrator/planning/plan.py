"""Plan: layouts in predicted order, the expected cost of a search, and the prediction recorded with each trial.

No torch, no processes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from orchestrator.config.answer import AnswerPart
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.prior_trials import NO_PRIOR_TRIALS, PriorTrials
from orchestrator.search.samplers.cost_model_posterior import TuningTask, memory_posterior, prior_score
from orchestrator.search.samplers.guided import MANY_TRIALS
from search_spaces.cost_model import memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.arithmetic import peak_flops_of
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.routing import Routing
from search_spaces.search_space import SearchSpace
from search_spaces.tables.measured_table import Observation, render_table
from search_spaces.verification import verifications
from trials.analysis.ranking import throughput_divisor
from trials.analysis.training_rate import Checkpoints, TrainingRate, training_rate
from trials.measure_rules import MeasureRules
from trials.measurement.protocol import LONGEST_STEP_S, STABILITY_WINDOW, TwoPointExtrapolation
from trials.trial import LowerStrEnum

LIKELY, UNLIKELY = 0.9, 0.1
"""Probabilities from which, and up to which, a layout counts as fitting or not."""
IN_DOUBT, IN_DOUBT_AMONG = 1 / 3, 20
"""Probability from which a layout may be faster than the first, and the number of layouts of which that is said."""
STARTUP_S = 60.0
"""Seconds until a trial's first step, or until it is out of memory; measured tables assume the same."""


class Fits(LowerStrEnum):
    """Memory verdict on a layout."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"

    @classmethod
    def of_each(cls, task: TuningTask, probabilities: np.ndarray) -> list[Fits | None]:
        """The verdict for each of these fit probabilities; None if the memory size is unknown."""
        if task.capacity_gib is None:
            return [None] * len(probabilities)
        yes, no, unsure = cls.YES, cls.NO, cls.UNSURE
        return [yes if p >= LIKELY else no if p <= UNLIKELY else unsure for p in probabilities.tolist()]


def task_of(spec: SearchSpec, prior_trials: Sequence[Observation] = ()) -> TuningTask:
    """The tuning task of a search, with trials of others to learn from."""
    return TuningTask(
        spec.model,
        spec.cluster,
        spec.objective,
        spec.measure.memory_limit_gib,
        tuple(prior_trials),
        spec.constraints.min_free_memory_gib or 0.0,
        Routing.of(spec.measure.routing),
    )


@dataclass(frozen=True)
class Estimates:
    """Estimates of layouts, one row each: terms of the step time and their sum in seconds, GiB of the fullest rank,
    probability to fit.

    Times are only ratios for an accelerator of unknown speed.
    """

    terms: StepTerms
    step_time_s: np.ndarray
    peak_memory_gib: np.ndarray
    fit_probability: np.ndarray

    @classmethod
    def of(cls, task: TuningTask, layouts: LayoutTable) -> Estimates:
        terms, constants = StepTerms.of(task.model, task.cluster, layouts), task.priors.time.constants
        posterior = memory_posterior(task)
        gib = memory.stage_memory(task.model, layouts, expert_skew=task.expert_skew).peak
        return cls(terms, terms.seconds(constants), gib * posterior.factor, posterior.fits(gib))

    def take(self, rows: np.ndarray) -> Estimates:
        """Rows of these indices, in that order."""
        numbers = (self.step_time_s, self.peak_memory_gib, self.fit_probability)
        return Estimates(self.terms.take(rows), *(column[rows] for column in numbers))


@dataclass(frozen=True)
class ExpectedHours:
    """Expected node-hours of a search, with all rounds of its finals, which is their upper limit. Null where the
    accelerator's speed is unknown."""

    guided_trials: int
    """Assumed number of trials of the guided sampler."""
    guided: float | None
    every_layout: float | None


class VerifiedValues(AnswerPart):
    """Knowledge of the axis values of a layout with its engine: that of the least verified ones."""

    level: Literal["run", "parsed", "by rule"]
    """`run`: a test of Parlay trained the value on a CPU. `parsed`: the trainer's own parser takes it in exports.
    `by rule`: only the engine's rules describe it."""
    values: list[str]
    """Those values, as `axis value`; empty where all were run."""


class PlannedLayout(AnswerPart):
    """A layout of a plan with its predictions."""

    layout: Layout
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
    time_s: Mapping[str, float] | None
    """Parts of the step's time."""
    training_rate: TrainingRate | None
    """Predicted; null where the accelerator's speed is unknown."""
    memory_gib: list[float]
    """Peak of each pipeline stage."""


@dataclass(frozen=True)
class Plan:
    """Layouts of a search in predicted order: those of the search's batch first, then those that may fit, then by
    acquisition score."""

    task: TuningTask
    layouts: LayoutTable
    estimates: Estimates
    expected: ExpectedHours
    prior_trials: PriorTrials = NO_PRIOR_TRIALS
    checkpoints: Checkpoints | None = None

    @property
    def speed_is_known(self) -> bool:
        """True if times are seconds, False if they are only ratios."""
        return self.task.speed_is_known

    @cached_property
    def tokens_per_sec(self) -> np.ndarray:
        return _tokens(self.task, self.layouts) / self.estimates.step_time_s

    @cached_property
    def relative_step_time(self) -> np.ndarray:
        """Step time relative to that of the first layout."""
        return self.estimates.step_time_s / self.estimates.step_time_s[0]

    @cached_property
    def _mfu(self) -> np.ndarray:
        """Model FLOPs utilization, a fraction; NaN where the peak is unknown."""
        accelerator = self.task.cluster.accelerator
        peaks = self.layouts.column_of(lambda layout: peak_flops_of(accelerator, layout) or math.nan)
        return self.task.model.model_flops_per_token * self.tokens_per_sec / self.layouts.num_gpus / peaks

    @cached_property
    def time_s(self) -> dict[str, np.ndarray]:
        """Step time by part, seconds."""
        return self.estimates.terms.parts(self.task.priors.time.constants)

    @cached_property
    def num_in_doubt(self) -> int:
        """Layouts among the first that are faster than the first with a probability from `IN_DOUBT` on."""
        first = self.estimates.terms.take(np.arange(self.num_compared))
        return int(np.sum(self.task.priors.time.probability_faster(first)[1:] >= IN_DOUBT))

    @property
    def num_compared(self) -> int:
        """Number of the first layouts among which these are, the first itself included."""
        return min(IN_DOUBT_AMONG, len(self.layouts))

    @cached_property
    def fits(self) -> list[Fits | None]:
        """Memory verdict on each layout; None if the memory size is unknown."""
        return Fits.of_each(self.task, self.estimates.fit_probability)

    def first(self, top: int | None = None) -> list[dict[str, Any]]:
        """The first `top` layouts, or all, each as the plain values of a PlannedLayout."""
        return self.plain_rows(np.arange(len(self.layouts) if top is None else min(top, len(self.layouts))))

    def plain_rows(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Plain values of a PlannedLayout for each of these rows; a row is made once, from the columns."""
        layouts, estimates, known = self.layouts.take(rows), self.estimates.take(rows), self.speed_is_known
        unknown, constants = [None] * len(rows), self.task.priors.time.constants
        found, verified_of = verifications(layouts)
        verified = [each.to_json() for each in found]
        factor = np.exp(1.96 * self.task.priors.time.log_deviation(estimates.terms))
        columns: dict[str, Sequence[Any] | np.ndarray] = {
            "layout": layouts.rows(),
            "layout_key": layouts.keys,
            "verified": [verified[index] for index in verified_of.tolist()],
            "fits": Fits.of_each(self.task, estimates.fit_probability),
            "relative_step_time": self.relative_step_time[rows],
            "step_time_s": estimates.step_time_s if known else unknown,
            "step_time_low_s": estimates.step_time_s / factor if known else unknown,
            "step_time_high_s": estimates.step_time_s * factor if known else unknown,
            "tokens_per_sec": self.tokens_per_sec[rows] if known else unknown,
            "mfu": [None if math.isnan(share) else share for share in self._mfu[rows].tolist()] if known else unknown,
            "peak_memory_gib": estimates.peak_memory_gib,
            "time_s": _records(estimates.terms.parts(constants)) if known else unknown,
            "training_rate": self._training_rates(rows) if known else unknown,
            "memory_gib": stage_memory_gib(self.task, layouts),
        }
        return _records(columns)

    def _training_rates(self, rows: np.ndarray) -> list[dict[str, Any]]:
        """Predicted tokens a day, less the stalls of stated checkpoints, as plain values."""
        model, checkpoints = self.task.model, self.checkpoints
        layouts: Any = self.layouts.take(rows)
        if checkpoints is not None:
            stalls_s: Any = layouts.column_of(partial(checkpoints.stall_of, model))
            checkpoints = replace(checkpoints, stall_s=stalls_s)
        rates = vars(training_rate(self.tokens_per_sec[rows], model, layouts, checkpoints))
        return _records({name: [None] * len(rows) if rate is None else rate for name, rate in rates.items()})


def _records(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> list[dict[str, Any]]:
    """A record for each row of these columns."""
    lists = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def plan_of(spec: SearchSpec, space: SearchSpace, prior_trials: PriorTrials = NO_PRIOR_TRIALS) -> Plan:
    """The plan of a search, after these trials of other searches."""
    task, layouts = task_of(spec, prior_trials.observations), space.layouts
    estimates = Estimates.of(task, layouts)
    order = _order(task, space, estimates)
    layouts, estimates = layouts.take(order), estimates.take(order)
    return Plan(
        task, layouts, estimates, _expected_hours(spec, task, layouts, estimates), prior_trials, spec.checkpoints
    )


def predictor(task: TuningTask) -> Callable[[Layout], dict[str, Any] | None]:
    """Function that returns a layout's `prediction` for the ledger; it returns None if the accelerator's speed is
    unknown."""
    if not task.speed_is_known:
        return lambda layout: None
    model_hash = _model_hash(task.prior_trials)

    def predict(layout: Layout) -> dict[str, Any]:
        estimates = Estimates.of(task, LayoutTable.of([layout]))
        return {
            "step_time_s": float(estimates.step_time_s[0]),
            "peak_memory_gib": float(estimates.peak_memory_gib[0]),
            "model_hash": model_hash,
        }

    return predict


def stage_memory_gib(task: TuningTask, layouts: LayoutTable) -> list[list[float]]:
    """GiB of a rank on each stage, first to last, for each layout."""
    factor = memory_posterior(task).factor
    found: list[list[float]] = [[] for _ in range(len(layouts))]
    for stages in sorted({*layouts["pipeline_parallel"].tolist()}):
        rows = np.flatnonzero(layouts["pipeline_parallel"] == stages)
        part = layouts.take(rows)
        every_stage = StageTable.at(task.model, part, np.tile(np.arange(stages), (len(rows), 1)))
        totals = factor * memory.stage_memory(task.model, part, every_stage, task.expert_skew).total
        for row, gib in zip(rows.tolist(), totals.tolist(), strict=True):
            found[row] = gib
    return found


def expected_trial_s(rules: MeasureRules, layouts: LayoutTable, estimates: Estimates) -> np.ndarray:
    """Seconds for which a trial of each layout holds its nodes: startup, warm-up and the minimum of measured steps.

    One that runs out of memory ends at its start; the probability of that is weighed in.
    """
    steps = min(rules.max_warmup_steps, 2 * STABILITY_WINDOW) + rules.min_steps
    measuring_s = np.minimum(steps * _measured_step_s(layouts, estimates), rules.time_limit_s)
    return STARTUP_S + estimates.fit_probability * measuring_s


def _measured_step_s(layouts: LayoutTable, estimates: Estimates) -> np.ndarray:
    """Seconds of the measured steps; long ones are extrapolated from two shorter steps."""
    seconds = estimates.step_time_s
    return np.where(seconds > LONGEST_STEP_S, seconds * layouts.column_of(_share_of_short_steps), seconds)


def _share_of_short_steps(layout: Layout) -> float:
    """Mean time of two shorter steps that a step is extrapolated from; 1 where there are none."""
    found = TwoPointExtrapolation.of(layout)
    return 1.0 if found is None else (found.short + found.long) / 2 / found.full


def _expected_hours(spec: SearchSpec, task: TuningTask, layouts: LayoutTable, estimates: Estimates) -> ExpectedHours:
    trials = min(MANY_TRIALS, spec.search.max_trials, len(layouts))
    if not task.speed_is_known:
        return ExpectedHours(trials, None, None)
    nodes = layouts["num_nodes"]
    hours = nodes * expected_trial_s(spec.measure, layouts, estimates) / 3600
    repeated = _finalist_rows(spec, layouts, trials)
    rules, step_s = spec.measure, estimates.step_time_s[repeated]
    steady_s = np.maximum(np.minimum(rules.finalist_time_s, rules.finalist_steps * step_s), rules.min_steps * step_s)
    warmup_s = 2 * STABILITY_WINDOW * estimates.step_time_s[repeated]
    once = nodes[repeated] * (STARTUP_S + warmup_s + steady_s) / 3600
    repeats = spec.search.finalist_repeats * float(once.sum())
    return ExpectedHours(trials, float(hours[:trials].sum()) + repeats, float(hours.sum()) + repeats)


def _finalist_rows(spec: SearchSpec, layouts: LayoutTable, trials: int) -> list[int]:
    """Rows that will be measured again, as far as is known: the first ones, the first of each node count, and the
    baseline."""
    rows = set(range(min(spec.search.finalists, trials)))
    if rows:
        rows |= {*np.unique(layouts["num_nodes"][:trials], return_index=True)[1].tolist()}
    if rows and spec.baseline is not None and spec.baseline in layouts:
        rows.add(layouts.index(spec.baseline))
    return sorted(rows)


def _order(task: TuningTask, space: SearchSpace, estimates: Estimates) -> np.ndarray:
    batch = space.layouts.global_batch_size
    sharers = space.layouts.column_of(lambda layout: throughput_divisor(layout, task.objective))
    speed = np.log(_tokens(task, space.layouts) / sharers / estimates.step_time_s)
    scores = prior_score(speed, estimates.fit_probability)
    return np.lexsort((-scores, estimates.fit_probability <= UNLIKELY, batch != space.workload.global_batch_size))


def _tokens(task: TuningTask, table: LayoutTable) -> np.ndarray:
    """Tokens per step."""
    return table.global_batch_size * task.model.seq_length


def _model_hash(prior_trials: Sequence[Observation]) -> str:
    """SHA-256, in hex, over the source code of the models and the trials they learned from. Predictions with the same
    hash are comparable."""
    digest = hashlib.sha256()
    for path in sorted(Path(memory.__file__).parents[1].rglob("*.py")):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    if prior_trials:
        digest.update(render_table(prior_trials).encode())
    return digest.hexdigest()
