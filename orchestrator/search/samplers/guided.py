"""The default sampler: a cost model proposes, trials correct it, DeepHyper's search decides.

DeepHyper's CBO runs over our own candidates with the surrogate `Surrogate`: its prior mean is the calibrated model's
prediction for each candidate, and a Gaussian process over the layouts learns the residual. So an empty history gives
the model's order, and a long one follows the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from orchestrator.search.samplers.base import Sampler, TrialFeedback, distinct
from orchestrator.search.samplers.cost_model_posterior import CostModelPredictor, Prediction, TuningTask, prior_score
from orchestrator.search.samplers.deephyper import most_promising
from orchestrator.search.samplers.setting_effects import SettingEffects
from search_spaces.layouts.layout import AXES, CHOICES, SETTINGS, Layout
from search_spaces.layouts.table import LayoutTable


class CostModelSampler(Sampler):
    """Proposes candidates in the order of the uncalibrated cost model: likely to fit first, then the fastest."""

    name = "cost_model"

    def __init__(self, candidates: Sequence[Layout], seed: int, task: TuningTask):
        self._candidates = list(distinct(candidates).values())
        predictor = CostModelPredictor(task, self._candidates, seed)
        prediction = predictor.predict([])
        self._order = np.argsort(-prior_score(prediction.log_value, prediction.fits), kind="stable")

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        tried = {feedback.layout.key for feedback in history}
        ordered = (self._candidates[row] for row in self._order)
        return [layout for layout in ordered if layout.key not in tried][:count]


class GuidedSampler(Sampler):
    """Maximizes expected improvement times the fit probability, under a model that every trial corrects."""

    name = "guided"

    def __init__(self, candidates: Sequence[Layout], seed: int, task: TuningTask):
        self._candidates = list(distinct(candidates).values())
        self._predictor = CostModelPredictor(task, self._candidates, seed)
        self._features = _features(self._predictor.table)
        self._effects = SettingEffects(self._predictor.table, [layout.settings for layout in self._candidates])
        self._seed = seed

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        """Choose one after the other; layouts in flight count as measured at their predicted value."""
        prediction = self._predictor.predict(history)
        tried = self._tried_rows(history)
        values = self._log_values(history)
        values |= {row: float(prediction.log_value[row]) for row in self._in_flight_rows(history)}
        chosen: list[Layout] = []
        while len(chosen) < count and len(tried) < len(self._candidates):
            row = self._next(prediction, values, self._remaining_rows(prediction, tried))
            tried.add(row)
            values[row] = float(prediction.log_value[row])
            chosen.append(self._candidates[row])
        return chosen

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        """True if no remaining candidate has an expected gain that is worth a trial."""
        values = self._log_values(history)
        prediction = self._predictor.predict(history)
        left = self._remaining_rows(prediction, self._tried_rows(history))
        if len(values) < _MIN_MEASURED or not left:
            return False
        surrogate = self._surrogate(prediction).fit([*values], [-v for v in values.values()])
        gains = surrogate.expected_improvement(left)
        ended = self._tried_rows([feedback for feedback in history if feedback.is_ended])
        return bool(gains.max() < (MIN_GAIN if len(ended) < MANY_TRIALS else LARGE_GAIN))

    def _log_values(self, history: Sequence[TrialFeedback]) -> dict[int, float]:
        """Log values by candidate. One with only an upper bound counts as no faster than the best measured."""
        known = [(row, feedback) for feedback in history if (row := self._predictor.row(feedback.layout)) is not None]
        best = max((feedback.value for _, feedback in known if feedback.value is not None), default=math.inf)
        return {
            row: math.log(min(feedback.value_or_bound, best))
            for row, feedback in known
            if feedback.value_or_bound is not None
        }

    def _tried_rows(self, history: Sequence[TrialFeedback]) -> set[int]:
        return {row for feedback in history if (row := self._predictor.row(feedback.layout)) is not None}

    def _in_flight_rows(self, history: Sequence[TrialFeedback]) -> set[int]:
        return self._tried_rows([feedback for feedback in history if not feedback.is_ended])

    def _next(self, prediction: Prediction, values: dict[int, float], left: Sequence[int]) -> int:
        if not values:
            scores = prior_score(prediction.log_value, prediction.fits)
            return max(left, key=lambda row: scores[row])
        return most_promising(self._surrogate(prediction), values, left, self._seed)

    def _remaining_rows(self, prediction: Prediction, tried: set[int]) -> list[int]:
        """Remaining candidates; of very many, those with the highest optimistic score."""
        left = np.setdiff1d(np.arange(len(self._candidates)), list(tried))
        if len(left) > _MAX_RATED:
            optimistic = prior_score(prediction.log_value, prediction.fits)[left] + 2 * prediction.deviation[left]
            left = np.sort(left[np.argsort(-optimistic, kind="stable")[:_MAX_RATED]])
        return left.tolist()

    def _surrogate(self, prediction: Prediction) -> Any:
        from orchestrator.search.samplers.residual_gp import Surrogate

        return Surrogate(
            -prediction.log_value,
            prediction.deviation,
            prediction.fits,
            self._features,
            prediction.unexplained,
            self._effects,
        )


MIN_GAIN = 0.005
"""Expected improvement, relative to the best so far, below which a trial is not worth its node-hours: less than the
spread between runs of one layout."""
MANY_TRIALS, LARGE_GAIN = 12, 0.3
"""After this many trials the best is usually found: the search continues for a large gain only."""
_MIN_MEASURED = 4
_MAX_RATED = 5_000
"""More would take seconds per ask."""


def _features(table: LayoutTable) -> np.ndarray:
    """Features in which close layouts behave alike: log2 of most counts, one-hot words, switches."""
    columns = []
    for name, column in table.columns.items():
        if name == SETTINGS or len(np.unique(column)) < 2:
            continue
        if name in CHOICES:
            columns += [column == word for word in np.unique(column)[1:]]
        elif AXES[name].is_number and name not in _LINEAR:
            columns.append(np.log2(np.maximum(column, 1)))
        else:
            columns.append(column)
    return np.stack(columns, axis=1).astype(float) if columns else np.zeros((len(table), 1))


_LINEAR = ("grad_accum_steps", "zero_stage")
"""Counts whose differences matter more than their ratios."""
