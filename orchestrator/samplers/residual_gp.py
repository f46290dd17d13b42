"""Surrogate for DeepHyper: the cost model's prediction, corrected by a Gaussian process on its residuals.

A scikit-learn regressor, as DeepHyper requires. It predicts costs: smaller is better.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from orchestrator.samplers.cost_model_posterior import LAYOUT_RESIDUAL_SHARE

SHARED_RESIDUAL_SHARE = math.sqrt(1 - LAYOUT_RESIDUAL_SHARE**2)
"""Share of the residual that a layout has in common with its neighbours."""
LENGTH = 2.0
"""Length scale of the kernel: doublings of a count."""
_NOISE = 0.03
"""Relative noise of a measurement."""
_STEPS = np.linspace(-12.0, 12.0, 4801)


class Surrogate(RegressorMixin, BaseEstimator):
    """Prior mean and deviation of each candidate's cost, and a Gaussian process on the measurements.

    The fit probability enters as a worse mean: one at which the expected improvement is that of a fitting layout
    times the probability. `unexplained` is the model's residual, a standard deviation. Points are candidate numbers.
    """

    def __init__(
        self, cost: np.ndarray, deviation: np.ndarray, fits: np.ndarray, features: np.ndarray, unexplained: float
    ):
        self.cost = cost
        self.deviation = deviation
        self.fits = fits
        self.features = features
        self.unexplained = unexplained

    def fit(self, points: Any, costs: Any) -> Self:
        rows, measured = _rows(points), np.asarray(costs, dtype=float)
        self.rows_ = rows
        self.best_ = measured.min()
        own = (LAYOUT_RESIDUAL_SHARE * self.unexplained) ** 2 + _NOISE**2
        covariance = self._kernel(rows, rows) + own * np.eye(len(rows))
        self.weights_ = np.linalg.solve(covariance, measured - self.cost[rows])
        return self

    def predict(self, points: Any, return_std: bool = False) -> Any:
        rows = _rows(points)
        mean = self.cost[rows] + self._kernel(rows, self.rows_) @ self.weights_
        deviation = self.deviation[rows]
        mean = _mean_with_fit_probability(mean, deviation, self.fits[rows], self.best_)
        return (mean, deviation) if return_std else mean

    def expected_improvement(self, points: Any) -> np.ndarray:
        """Expected improvement on the best cost so far, times the fit probability."""
        mean, deviation = self.predict(points, return_std=True)
        steps = np.clip((self.best_ - mean) / deviation, _STEPS[0], _STEPS[-1])
        return deviation * np.exp(np.interp(steps, _STEPS, _LOG_IMPROVEMENT))

    def _kernel(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        apart = self.features[some][:, None, :] - self.features[others][None, :, :]
        return (SHARED_RESIDUAL_SHARE * self.unexplained) ** 2 * np.exp(-(apart**2).sum(axis=2) / (2 * LENGTH**2))


def _rows(points: Any) -> np.ndarray:
    return np.asarray(points, dtype=float).reshape(len(points), -1)[:, 0].astype(int)


def _mean_with_fit_probability(
    mean: np.ndarray, deviation: np.ndarray, probability: np.ndarray, best: float
) -> np.ndarray:
    """Mean at which the expected improvement on `best` is `probability` times that at `mean`."""
    wanted = np.log(np.maximum(probability, 1e-9)) + np.interp((best - mean) / deviation, _STEPS, _LOG_IMPROVEMENT)
    return best - deviation * np.interp(wanted, _LOG_IMPROVEMENT, _STEPS)


def _log_improvement(steps: np.ndarray) -> np.ndarray:
    """Logarithm of z Phi(z) + phi(z), the expected improvement in standard deviations."""
    from scipy.special import log_ndtr
    from scipy.stats import norm

    # Far below zero the sum cancels: there it is phi(z) / z^2.
    safe = np.where(steps > -6, steps * np.exp(log_ndtr(steps)) + norm.pdf(steps), 1.0)
    return np.where(steps > -6, np.log(safe), norm.logpdf(steps) - 2 * np.log(np.abs(steps) + 1e-12))


_LOG_IMPROVEMENT = np.maximum.accumulate(_log_improvement(_STEPS))
