"""Importance of each axis for the speed: exact Shapley values of a surrogate. Pure; numpy.

A kernel ridge regression of the log speed stands in for layouts that were not measured. Its kernel is a product over
the axes, so the value of every coalition of axes, with the others averaged over the measured layouts, is again a
product, and the Shapley values follow from the coefficients of a polynomial instead of 2^axes evaluations (after
Mohammadi et al., arXiv 2505.16516, whose absent axes are ones where ours are averages). The error on left-out layouts
has a closed form; a surrogate with a large error is not shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

FEWEST_LAYOUTS = 10
LEAST_EXPLAINED = 0.3
_MAX_LAYOUTS = 300
_MAX_AXES = 10
_LENGTHS = (0.3, 0.6, 1.2)
"""Length scales of the kernel, as fractions of an axis's range."""
_NOISES = (0.003, 0.03, 0.3)


@dataclass(frozen=True)
class Importance:
    """Mean absolute Shapley values by axis as relative changes of the speed (0.1 is 10 %), largest first.

    Based on `num_layouts`; `explained` is the share of the variance of log speed in left-out layouts that the surrogate
    explains.
    """

    effects: Mapping[str, float]
    num_layouts: int
    explained: float

    @property
    def is_reliable(self) -> bool:
        return self.explained >= LEAST_EXPLAINED


def axis_importance(layouts: Sequence[Mapping[str, Any]], speeds: Sequence[float]) -> Importance | None:
    """Importance by field of these layouts; None with fewer than ten, or where no field or no speed differs."""
    if len(layouts) < FEWEST_LAYOUTS:
        return None
    if len(layouts) > _MAX_LAYOUTS:
        rows = np.linspace(0, len(layouts) - 1, _MAX_LAYOUTS).astype(int).tolist()
        layouts, speeds = [layouts[row] for row in rows], [speeds[row] for row in rows]
    logs = np.log(np.asarray(speeds, dtype=float))
    distances = _distances(layouts)
    if not distances or not logs.std() > 0:
        return None
    surrogate = _fit(distances, logs - logs.mean())
    values = _shapley(surrogate)
    effects = {axis: math.expm1(float(np.abs(v).mean())) for axis, v in zip(distances, values, strict=True)}
    ordered = dict(sorted(effects.items(), key=lambda item: -item[1]))
    return Importance(ordered, len(layouts), surrogate.explained)


def _distances(layouts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Distances between layouts along each varying axis, 0 to 1, of shape (layouts, layouts).

    Counts are compared by their logarithms, since they are doubled; names are equal or not.
    """
    found = {}
    for axis in layouts[0]:
        values = [layout[axis] for layout in layouts]
        if len(set(values)) > 1:
            found[axis] = _distance(values)
    # Of too many axes those with the most values are kept.
    kept = sorted(found, key=lambda axis: -len({layout[axis] for layout in layouts}))[:_MAX_AXES]
    return {axis: distance for axis, distance in found.items() if axis in kept}


def _distance(values: Sequence[Any]) -> np.ndarray:
    if all(isinstance(value, int) for value in values):
        places = np.log2(1.0 + np.array(values, dtype=float))
        return np.abs(places[:, None] - places[None, :]) / np.ptp(places)
    names = {value: place for place, value in enumerate(dict.fromkeys(values))}
    codes = np.array([names[value] for value in values])
    return (codes[:, None] != codes[None, :]).astype(float)


@dataclass(frozen=True)
class _Surrogate:
    """`kernels` of shape (axes, layouts, layouts); `weights` of shape (layouts,)."""

    kernels: np.ndarray
    weights: np.ndarray
    explained: float


def _fit(distances: Mapping[str, np.ndarray], targets: np.ndarray) -> _Surrogate:
    """Surrogate with the length scale and noise that predict left-out layouts best."""
    stacked = np.stack(list(distances.values()))
    tried = (_ridge(np.exp(-0.5 * (stacked / length) ** 2), noise, targets) for length, noise in _GRID)
    return max(tried, key=lambda surrogate: surrogate.explained)


_GRID = tuple(product(_LENGTHS, _NOISES))


def _ridge(kernels: np.ndarray, noise: float, targets: np.ndarray) -> _Surrogate:
    inverse = np.linalg.inv(kernels.prod(axis=0) + noise * np.eye(len(targets)))
    weights = inverse @ targets
    residuals = weights / np.diag(inverse)  # leave-one-out residuals
    return _Surrogate(kernels, weights, float(1 - (residuals**2).sum() / (targets**2).sum()))


def _shapley(surrogate: _Surrogate) -> np.ndarray:
    """Shapley values of shape (axes, layouts): contribution of each axis to each layout's predicted log speed."""
    kernels = surrogate.kernels
    averages = np.broadcast_to(kernels.mean(axis=1, keepdims=True), kernels.shape)
    axes = len(kernels)
    sizes = [math.factorial(size) * math.factorial(axes - size - 1) / math.factorial(axes) for size in range(axes)]
    found = []
    for axis in range(axes):
        others = [other for other in range(axes) if other != axis]
        by_size = _sums_by_size(kernels[others], averages[others])
        joined = sum(weight * terms for weight, terms in zip(sizes, by_size, strict=True))
        found.append(((kernels[axis] - averages[axis]) * joined) @ surrogate.weights)
    return np.stack(found)


def _sums_by_size(inside: np.ndarray, outside: np.ndarray) -> list[np.ndarray]:
    """Sum by coalition size of the product of `inside` over a coalition's axes and `outside` over the others.

    These are the coefficients of the product over axes of (outside + inside x).
    """
    terms = [np.ones(inside.shape[1:])]
    for one, other in zip(inside, outside, strict=True):
        shifted = [np.zeros_like(one), *(term * one for term in terms)]
        kept = [*(term * other for term in terms), np.zeros_like(one)]
        terms = [a + b for a, b in zip(kept, shifted, strict=True)]
    return terms
