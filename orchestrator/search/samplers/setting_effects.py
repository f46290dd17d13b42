"""Effects of settings on the step time: one that all layouts share, and one that depends on the layout.

Part of the Gaussian process in residual_gp.py. Both effects are in it from the first trial on, so that each trial of
any layout says something of its settings, and a setting that suits one kind of layout alone is found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from search_spaces.layouts.settings import as_numbers, setting_axes
from search_spaces.layouts.table import LayoutTable


@dataclass(frozen=True)
class EffectSizes:
    """Standard deviations of the logarithm of step time: an effect in all layouts, and in those that are alike."""

    shared: float
    of_layout: float

    @property
    def variance(self) -> float:
        return self.shared**2 + self.of_layout**2


_NONE = EffectSizes(0.0, 0.0)
_SIZES = tuple(EffectSizes(*sizes) for sizes in product((0.01, 0.03, 0.1, 0.3), (0.005, 0.015, 0.05, 0.15)))
_USUAL = EffectSizes(0.05, 0.02)
_DOUBT = math.log(3)
"""Standard deviation of the prior of a size's logarithm, around the usual one."""


class SettingEffects:
    """Likeness of the candidates' settings. `layout_of` numbers each candidate's layout."""

    def __init__(self, table: LayoutTable, texts: Sequence[str]):
        columns = [column for name, column in table.columns.items() if name != "settings"]
        self.layout_of = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        self._values = [_places(values) for values in setting_axes(texts).values()]

    @property
    def has_any(self) -> bool:
        """False where all candidates have the same settings."""
        return bool(self._values)

    def covariance(self, sizes: EffectSizes, some: np.ndarray, others: np.ndarray, alike: np.ndarray) -> np.ndarray:
        """Covariance of the effects; `alike` is the likeness of the layouts."""
        if not self.has_any:
            return np.zeros_like(alike)
        return self._likeness(some, others) * (sizes.shared**2 + sizes.of_layout**2 * alike)

    def most_likely_sizes(
        self, of_layouts: np.ndarray, rows: np.ndarray, alike: np.ndarray, residual: np.ndarray
    ) -> EffectSizes:
        """Sizes under which these residuals are most likely, given the covariance of everything else."""
        if not self.has_any:
            return _NONE
        of_sizes = [self.covariance(sizes, rows, rows, alike) for sizes in _SIZES]
        scores = [
            _log_likelihood(of_layouts + effect, residual) + _log_prior(sizes)
            for sizes, effect in zip(_SIZES, of_sizes, strict=True)
        ]
        return _SIZES[int(np.argmax(scores))]

    def _likeness(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Likeness of settings, 0 to 1: the mean over their axes and the product, which is of combinations alone."""
        of_axes = np.stack([_alike(places[some][:, None], places[others][None, :]) for places in self._values])
        return (of_axes.mean(axis=0) + of_axes.prod(axis=0)) / 2


def _places(values: Sequence[str | None]) -> np.ndarray:
    """Places of an axis's values: numbers by their logarithm, so that neighbours are alike, words far from another; NaN
    where it is not set."""
    numbers = as_numbers(values)
    if all(value is None or isinstance(value, int) for value in numbers):
        return np.array([math.nan if value is None else math.log2(1 + int(value)) for value in numbers])
    words = {
        word: 1000.0 * place for place, word in enumerate(sorted({value for value in values if value is not None}))
    }
    return np.array([math.nan if value is None else words[value] for value in values])


def _alike(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    neither = np.isnan(some) & np.isnan(others)
    return np.where(neither, 1.0, np.nan_to_num(np.exp(-((some - others) ** 2) / 2), nan=0.0))


def _log_likelihood(covariance: np.ndarray, residual: np.ndarray) -> float:
    _, log_determinant = np.linalg.slogdet(covariance)
    return float(-0.5 * (residual @ np.linalg.solve(covariance, residual) + log_determinant))


def _log_prior(sizes: EffectSizes) -> float:
    pairs = ((sizes.shared, _USUAL.shared), (sizes.of_layout, _USUAL.of_layout))
    return -0.5 * sum((math.log(size / usual) / _DOUBT) ** 2 for size, usual in pairs)
