"""How much each axis matters for the speed: exact Shapley values of a small surrogate. Pure; numpy.

A kernel ridge regression of the logarithm of the speed stands in for the layouts that were not measured. Its kernel is
a product over the axes, so the value of every coalition of axes, the others averaged over what was measured, is again
a product, and the Shapley values follow from the coefficients of a polynomial instead of 2^axes evaluations (after
Mohammadi et al., arXiv 2505.16516, whose absent axes are ones where ours are averages). How well it foretells a layout
that it was not shown is known in closed form, and where that is poor nothing is said.
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
_MOST_LAYOUTS = 300
_MOST_AXES = 10
_LENGTHS = (0.3, 0.6, 1.2)
"""How far apart values of an axis may lie and still be alike, in parts of its range."""
_NOISES = (0.003, 0.03, 0.3)


@dataclass(frozen=True)
class Importance:
    """`effects`: by how much an axis moves the speed, up or down, on the average layout: 0.1 is 10 %; largest first.

    They rest on `num_layouts`; `explained` is the share of the variance of the logarithm of the speed that the
    surrogate foretells of layouts left out.
    """

    effects: Mapping[str, float]
    num_layouts: int
    explained: float

    @property
    def is_telling(self) -> bool:
        return self.explained >= LEAST_EXPLAINED


def axis_importance(layouts: Sequence[Mapping[str, Any]], speeds: Sequence[float]) -> Importance | None:
    """Of these layouts, by field, and their speeds; None of fewer than ten, or where no field or no speed differs."""
    if len(layouts) < FEWEST_LAYOUTS:
        return None
    if len(layouts) > _MOST_LAYOUTS:
        rows = np.linspace(0, len(layouts) - 1, _MOST_LAYOUTS).astype(int).tolist()
        layouts, speeds = [layouts[row] for row in rows], [speeds[row] for row in rows]
    logs = np.log(np.asarray(speeds, dtype=float))
    distances = _distances(layouts)
    if not distances or not logs.std() > 0:
        return None
    surrogate = _fitted(distances, logs - logs.mean())
    values = _shapley(surrogate)
    effects = {axis: math.expm1(float(np.abs(v).mean())) for axis, v in zip(distances, values, strict=True)}
    ordered = dict(sorted(effects.items(), key=lambda item: -item[1]))
    return Importance(ordered, len(layouts), surrogate.explained)


def _distances(layouts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """How far apart each two layouts are along each axis that differs, 0 to 1, of shape (layouts, layouts).

    Counts are doubled, not added, so their logarithms are taken; words are the same or are not.
    """
    found = {}
    for axis in layouts[0]:
        values = [layout[axis] for layout in layouts]
        if len(set(values)) > 1:
            found[axis] = _distance(values)
    # Of more axes than can be told apart the ones with the most values stay.
    kept = sorted(found, key=lambda axis: -len({layout[axis] for layout in layouts}))[:_MOST_AXES]
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


def _fitted(distances: Mapping[str, np.ndarray], targets: np.ndarray) -> _Surrogate:
    """The one of a few widths and noises that foretells left-out layouts best."""
    stacked = np.stack(list(distances.values()))
    tried = (_ridge(np.exp(-0.5 * (stacked / length) ** 2), noise, targets) for length, noise in _GRID)
    return max(tried, key=lambda surrogate: surrogate.explained)


_GRID = tuple(product(_LENGTHS, _NOISES))


def _ridge(kernels: np.ndarray, noise: float, targets: np.ndarray) -> _Surrogate:
    inverse = np.linalg.inv(kernels.prod(axis=0) + noise * np.eye(len(targets)))
    weights = inverse @ targets
    left_out = weights / np.diag(inverse)  # what is wrong of each, foretold from all others
    return _Surrogate(kernels, weights, float(1 - (left_out**2).sum() / (targets**2).sum()))


def _shapley(surrogate: _Surrogate) -> np.ndarray:
    """Of shape (axes, layouts): what each axis adds to the prediction of each layout, in logarithms."""
    kernels = surrogate.kernels
    averages = np.broadcast_to(kernels.mean(axis=1, keepdims=True), kernels.shape)
    axes = len(kernels)
    sizes = [math.factorial(size) * math.factorial(axes - size - 1) / math.factorial(axes) for size in range(axes)]
    found = []
    for axis in range(axes):
        others = [other for other in range(axes) if other != axis]
        by_size = _by_size(kernels[others], averages[others])
        joined = sum(weight * terms for weight, terms in zip(sizes, by_size, strict=True))
        found.append(((kernels[axis] - averages[axis]) * joined) @ surrogate.weights)
    return np.stack(found)


def _by_size(inside: np.ndarray, outside: np.ndarray) -> list[np.ndarray]:
    """By the number of axes in a coalition: the sum over such coalitions of the product of `inside` of its axes and
    `outside` of the others; the coefficients of the product over axes of (outside + inside x)."""
    terms = [np.ones(inside.shape[1:])]
    for one, other in zip(inside, outside, strict=True):
        shifted = [np.zeros_like(one), *(term * one for term in terms)]
        kept = [*(term * other for term in terms), np.zeros_like(one)]
        terms = [a + b for a, b in zip(kept, shifted, strict=True)]
    return terms
