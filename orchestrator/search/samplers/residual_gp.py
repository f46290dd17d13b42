"""Surrogate for DeepHyper: the cost model's prediction, corrected by a Gaussian process on its residuals.

A scikit-learn regressor, as DeepHyper requires. It predicts costs: smaller is better.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from orchestrator.search.samplers.setting_effects import SettingEffects
from search_spaces.cost_model.posterior import LAYOUT_RESIDUAL_SHARE

SHARED_RESIDUAL_SHARE = math.sqrt(1 - LAYOUT_RESIDUAL_SHARE**2)
"""Share of the residual that a layout has in common with its neighbours."""
LENGTH = 2.0
"""Length scale of the kernel: doublings of a count."""
_NOISE = 0.03
"""Relative noise of a measurement."""
_NOISE_OF_SETTINGS = 0.01
"""The same between settings of a layout. With more of it, settings without effect would be tried with each layout that
is the best so far (docs/settings.md)."""
_STEPS = np.linspace(-12.0, 12.0, 4801)


class Surrogate(RegressorMixin, BaseEstimator):
    """Prior mean and deviation of each candidate's cost, and a Gaussian process on the measurements.

    The fit probability enters as a worse mean: one at which the expected improvement is that of a fitting layout
    times the probability. `unexplained` is the model's residual, a standard deviation. Points are candidate numbers.
    Candidates of one layout share its residual; `effects` tell their settings apart, and are learnt from the trials of
    all layouts.
    """

    def __init__(
        self,
        cost: np.ndarray,
        deviation: np.ndarray,
        fits: np.ndarray,
        features: np.ndarray,
        unexplained: float,
        effects: SettingEffects,
    ):
        self.cost = cost
        self.deviation = deviation
        self.fits = fits
        self.features = features
        self.unexplained = unexplained
        self.effects = effects

    def fit(self, points: Any, costs: Any) -> Self:
        rows, measured = _rows(points), np.asarray(costs, dtype=float)
        self.rows_ = rows
        self.best_ = measured.min()
        residual = measured - self.cost[rows]
        of_layouts = self._of_layouts(rows, rows) + self._noise**2 * np.eye(len(rows))
        self.sizes_ = self.effects.most_likely_sizes(of_layouts, rows, self._alike(rows, rows), residual)
        self.inverse_ = np.linalg.inv(of_layouts + self._of_settings(rows, rows))
        self.weights_ = self.inverse_ @ residual
        return self

    def predict(self, points: Any, return_std: bool = False) -> Any:
        rows = _rows(points)
        of_layouts, of_settings = self._of_layouts(rows, self.rows_), self._of_settings(rows, self.rows_)
        mean = self.cost[rows] + (of_layouts + of_settings) @ self.weights_
        deviation = self._deviation(rows, of_layouts, of_settings)
        mean = _mean_with_fit_probability(mean, deviation, self.fits[rows], self.best_)
        return (mean, deviation) if return_std else mean

    def _deviation(self, rows: np.ndarray, of_layouts: np.ndarray, of_settings: np.ndarray) -> np.ndarray:
        """Standard deviation of each candidate: that of its layout until a trial of the layout is known, and what
        remains of its settings' effect."""
        if not self.effects.has_any:
            return self.deviation[rows]
        is_known = np.isin(self.effects.layout_of[rows], self.effects.layout_of[self.rows_])
        known = of_settings + of_layouts * is_known[:, None]
        prior = self.sizes_.variance + self.unexplained**2 * is_known
        left = prior - np.einsum("ij,jk,ik->i", known, self.inverse_, known)
        return np.sqrt(
            np.maximum(left, _NOISE_OF_SETTINGS**2 / 10) + np.where(is_known, 0.0, self.deviation[rows] ** 2)
        )

    def expected_improvement(self, points: Any) -> np.ndarray:
        """Expected improvement on the best cost so far, times the fit probability."""
        mean, deviation = self.predict(points, return_std=True)
        steps = np.clip((self.best_ - mean) / deviation, _STEPS[0], _STEPS[-1])
        return deviation * np.exp(np.interp(steps, _STEPS, _LOG_IMPROVEMENT))

    @property
    def _noise(self) -> float:
        return _NOISE_OF_SETTINGS if self.effects.has_any else _NOISE

    def _of_layouts(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Covariance of the layouts' residuals: what neighbours share, and a layout's own."""
        own = self.effects.layout_of[some][:, None] == self.effects.layout_of[others][None, :]
        shared = SHARED_RESIDUAL_SHARE**2 * self._alike(some, others)
        return self.unexplained**2 * (shared + LAYOUT_RESIDUAL_SHARE**2 * own)

    def _of_settings(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        return self.effects.covariance(self.sizes_, some, others, self._alike(some, others))

    def _alike(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Likeness of layouts, 0 to 1."""
        apart = self.features[some][:, None, :] - self.features[others][None, :, :]
        return np.exp(-(apart**2).sum(axis=2) / (2 * LENGTH**2))


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
