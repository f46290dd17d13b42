"""Bayesian updates of the memory and step-time models: posteriors of their few constants. Pure; numpy.

Time: draws of all constants of `step_time.py` from their priors, weighted by the likelihood of each measurement, and
resampled and moved when few effective draws are left (sequential Monte Carlo with moves: Chopin 2002, doi
10.1093/biomet/89.3.539). Priors and noise are Student's t: most machines are close to typical, a few have a network
that is ten times slower, and an outlier moves no constant far.

Memory: one factor on the estimate, as weights on a grid. A measured peak, a layout that ran and one that ran out of
memory each constrain it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.cost_model.constants import CONSTANTS, PRIORS, Prior, typical_constants
from search_spaces.cost_model.step_time import StepTerms

UNKNOWN_SPEED = 2.0
"""Uncertainty of a machine without a data sheet: the standard deviation of `machine`'s logarithm."""
_MIN_UNKNOWN_SD = 1.5
"""Least uncertainty of the host's and the links' constants there."""
_COMPUTE = {"gemm", "low_precision", "experts", "memory_traffic", "offload", "step"}
_TRANSFER_WIDENING = 0.5
"""Share of a constant's prior uncertainty that remains after trials of another model or batch."""


@dataclass(frozen=True)
class TimePrior:
    """Prior of the time model: Student's t for the logarithms of its constants, in the order of CONSTANTS. `means` has
    shape (len(CONSTANTS),), `covariance` that squared."""

    means: np.ndarray
    covariance: np.ndarray

    @classmethod
    def default(cls, speed_is_known: bool = True) -> TimePrior:
        """The prior of a machine without trials; `speed_is_known`: its data sheet or calibration is."""
        deviations = {name: PRIORS[name].log_sd for name in CONSTANTS}
        if not speed_is_known:
            guessed = {name: max(sd, _MIN_UNKNOWN_SD) for name, sd in deviations.items() if name not in _COMPUTE}
            deviations |= {**guessed, "machine": UNKNOWN_SPEED}
        return cls(np.log(typical_constants()), np.diag(np.square([*deviations.values()])))

    @property
    def deviations(self) -> np.ndarray:
        return np.sqrt(np.diag(self.covariance))

    @property
    def constants(self) -> np.ndarray:
        """The median of each, in the order of CONSTANTS."""
        return np.exp(self.means)

    def log_deviation(self, terms: StepTerms) -> np.ndarray:
        """Standard deviation of the logarithm of each layout's step time, the model's residual included."""
        return np.sqrt(_variance(self._logs_around(terms)) + MODEL_ERROR**2)

    def probability_faster(self, terms: StepTerms, than: int = 0) -> np.ndarray:
        """Probability that each layout is faster than that of row `than`."""
        logs = self._logs_around(terms)
        ahead = logs[:, [than]] - logs
        own = np.where(np.arange(len(terms)) == than, 0, 2 * (LAYOUT_RESIDUAL_SHARE * MODEL_ERROR) ** 2)
        steps = ahead[0] / np.sqrt(np.maximum(_variance(ahead) + own, 1e-12))
        return np.array([0.5 * math.erfc(-step / math.sqrt(2)) for step in steps.tolist()])

    def _logs_around(self, terms: StepTerms) -> np.ndarray:
        """Logarithms of the step times at the prior's mean, then at a deviation along each of its axes, up and down: of
        shape (1 + 2 * len(CONSTANTS), layouts)."""
        axes = np.linalg.cholesky(self.covariance).T
        return _log_seconds(self.means + np.concatenate([np.zeros((1, len(axes))), axes, -axes]), terms)

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Samples of the logarithms, of shape (count, len(CONSTANTS))."""
        steps = _SCALE * rng.standard_t(_DEGREES_OF_FREEDOM, (count, len(self.means)))
        return self.means + steps @ np.linalg.cholesky(self.covariance).T

    def log_density(self, draws: np.ndarray) -> np.ndarray:
        """Logarithm of each draw's density, up to a constant."""
        off = np.linalg.solve(np.linalg.cholesky(self.covariance), (draws - self.means).T)
        return _log_student_t(off / _SCALE).sum(axis=0)

    def widened(self, terms: StepTerms, seconds: Sequence[float], seed: int) -> TimePrior:
        """The prior updated by trials of other models or batches on such a machine, and widened for the transfer."""
        found = StepTimePosterior(terms, seconds, seed, self).summary
        return TimePrior(found.means, found.covariance + np.diag((_TRANSFER_WIDENING * self.deviations) ** 2))


MODEL_ERROR = 0.12
"""Residual error of the model with the best constants: the standard deviation of the logarithm."""
LAYOUT_RESIDUAL_SHARE = 0.7
"""Share of the residual that is a layout's own, not shared with its neighbours."""
_DEGREES_OF_FREEDOM = 4
_SCALE = math.sqrt((_DEGREES_OF_FREEDOM - 2) / _DEGREES_OF_FREEDOM)
"""Scale of a Student's t with a standard deviation of 1."""
_DRAWS = 2000
_MIN_EFFECTIVE_SHARE = 0.1
_MOVES = (0.5, 0.3, 0.3, 0.15, 0.15, 0.1, 0.5, 0.2, 0.1, 0.05)
"""Widths of the random steps, in prior deviations: wide ones for unknown constants, narrow ones for known ones."""
_MOVED_SHARE = 0.4
_LAYOUTS_AT_ONCE = 2000


class StepTimePosterior:
    """Posterior of the time model's constants as weighted draws, updated by these measurements in order.

    `terms` and `seconds` are those of the measured layouts. All randomness comes from `seed`.
    """

    def __init__(self, terms: StepTerms, seconds: Sequence[float], seed: int, prior: TimePrior | None = None):
        self._rng = np.random.default_rng(seed)
        self._measured = terms
        self._log_seconds = np.log(np.asarray(seconds, dtype=float))
        self._prior = prior or TimePrior.default()
        self._draws = self._prior.draws(_DRAWS, self._rng)
        self._log_weights = np.zeros(_DRAWS)
        for count in range(1, len(self._log_seconds) + 1):
            self._reweight(count)

    @property
    def weights(self) -> np.ndarray:
        weights = np.exp(self._log_weights - self._log_weights.max())
        return weights / weights.sum()

    @property
    def summary(self) -> TimePrior:
        """Normal approximation of the draws."""
        means = self.weights @ self._draws
        return TimePrior(means, np.cov(self._draws.T, aweights=self.weights))

    @property
    def error(self) -> float:
        """Residual error between model and measurements: MODEL_ERROR until the measurements show more or less."""
        if not len(self._log_seconds):
            return MODEL_ERROR
        left = self._log_seconds - self.predict(self._measured)[0]
        squares = _DEGREES_OF_FREEDOM * MODEL_ERROR**2 + (left**2).sum()
        return math.sqrt(squares / (_DEGREES_OF_FREEDOM + len(left)))

    def predict(self, terms: StepTerms) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the logarithm of each layout's step time in seconds, from the constants'
        uncertainty alone."""
        # Many draws of many layouts at once would take gigabytes.
        chunks = np.array_split(np.arange(len(terms)), 1 + len(terms) // _LAYOUTS_AT_ONCE)
        parts = [self._predict(terms.take(rows)) for rows in chunks]
        means, deviations = zip(*parts, strict=True)
        return np.concatenate(means), np.concatenate(deviations)

    def _predict(self, terms: StepTerms) -> tuple[np.ndarray, np.ndarray]:
        logs = _log_seconds(self._draws, terms)
        mean = self.weights @ logs
        return mean, np.sqrt(self.weights @ (logs - mean) ** 2)

    def _reweight(self, count: int) -> None:
        """Weight the draws by the newest of the first `count` measurements."""
        newest = self._measured.take(np.array([count - 1]))
        self._log_weights += self._log_likelihood(self._draws, newest, self._log_seconds[count - 1 : count])
        if 1 / (self.weights**2).sum() < _MIN_EFFECTIVE_SHARE * _DRAWS:
            self._resample(count)

    def _resample(self, count: int) -> None:
        """Resample the draws by weight and separate the copies by Metropolis steps that keep the distribution."""
        draws = self._draws[self._rng.choice(_DRAWS, _DRAWS, p=self.weights)]
        terms, logs = self._measured.take(np.arange(count)), self._log_seconds[:count]
        fitness = self._log_posterior(draws, terms, logs)
        for width in _MOVES:
            moved = self._rng.random(draws.shape) < _MOVED_SHARE
            proposed = draws + width * self._prior.deviations * self._rng.standard_normal(draws.shape) * moved
            proposed_fitness = self._log_posterior(proposed, terms, logs)
            accepted = np.log(self._rng.random(_DRAWS)) < proposed_fitness - fitness
            draws[accepted], fitness[accepted] = proposed[accepted], proposed_fitness[accepted]
        self._draws, self._log_weights = draws, np.zeros(_DRAWS)

    def _log_posterior(self, draws: np.ndarray, terms: StepTerms, logs: np.ndarray) -> np.ndarray:
        return self._prior.log_density(draws) + self._log_likelihood(draws, terms, logs)

    def _log_likelihood(self, draws: np.ndarray, terms: StepTerms, logs: np.ndarray) -> np.ndarray:
        return _log_student_t((_log_seconds(draws, terms) - logs) / MODEL_ERROR).sum(axis=1)


def _variance(around: np.ndarray) -> np.ndarray:
    """Variance of each column from its values at the mean and around it, to second order."""
    up, down = np.split(around[1:], 2)
    return ((up - down) ** 2).sum(axis=0) / 4 + ((up + down - 2 * around[0]) ** 2).sum(axis=0) / 8


def _log_seconds(draws: np.ndarray, terms: StepTerms) -> np.ndarray:
    """Logarithms of the step times, of shape (draws, layouts)."""
    return np.log(terms.seconds(np.exp(draws)))


def _log_student_t(off: np.ndarray) -> np.ndarray:
    return -(_DEGREES_OF_FREEDOM + 1) / 2 * np.log1p(off**2 / _DEGREES_OF_FREEDOM)


@dataclass(frozen=True)
class MemoryEvidence:
    """A trial's evidence on memory: the estimate in GiB, whether it ran, and the peak where it is known."""

    estimated_gib: float
    ran: bool
    peak_gib: float | None = None


_GRID = np.linspace(-0.4, 0.9, 66)
MEMORY_FACTOR = Prior(math.exp(0.08), 0.15)
"""Allocators and libraries take a few percent more than the formulas."""
_MEMORY_TRANSFER_SD = 0.07
"""Uncertainty of the factor that remains after trials of another model: a standard deviation of its logarithm."""
_MEMORY_ERROR = 0.066
"""Error of the estimate with the best factor: the scale of the logarithm's logistic distribution, 12 % of deviation."""
_PEAK_ERROR = 0.1
_MIN_LIKELIHOOD = 0.01
"""Least likelihood of an outcome: a layout may fail, or run, for another reason."""


class MemoryPosterior:
    """Posterior of the ratio of memory to its estimate, given trials on devices of `capacity_gib` and the factor's
    `prior`. A layout fits if it takes at most `usable_gib`, by default the capacity."""

    def __init__(
        self,
        capacity_gib: float | None,
        evidence: Sequence[MemoryEvidence] = (),
        prior: Prior = MEMORY_FACTOR,
        usable_gib: float | None = None,
    ):
        self._capacity_gib = capacity_gib
        self._usable_gib = capacity_gib if usable_gib is None else usable_gib
        logs = -0.5 * ((_GRID - math.log(prior.median)) / prior.log_sd) ** 2
        for found in evidence:
            logs = logs + self._log_likelihood(found)
        weights = np.exp(logs - logs.max())
        self._weights = weights / weights.sum()

    @property
    def factor(self) -> float:
        """Ratio of memory to its estimate."""
        return float(np.exp(self._weights @ _GRID))

    @property
    def transferred(self) -> Prior:
        """Prior of the factor for another model or batch."""
        mean = self._weights @ _GRID
        return Prior(math.exp(mean), math.hypot(math.sqrt(self._weights @ (_GRID - mean) ** 2), _MEMORY_TRANSFER_SD))

    def fits(self, estimated_gib: np.ndarray) -> np.ndarray:
        """Probability that a layout with this estimate fits; 1 where the device's memory is unknown."""
        if self._usable_gib is None:
            return np.ones_like(estimated_gib)
        different, which = np.unique(estimated_gib, return_inverse=True)
        return (self._weights @ self._fits_by_factor(different, self._usable_gib))[which]

    def _fits_by_factor(self, estimated_gib: np.ndarray, limit_gib: float) -> np.ndarray:
        room = math.log(limit_gib) - np.log(estimated_gib)
        with np.errstate(over="ignore"):  # far above the limit: the probability is 0
            return 1 / (1 + np.exp(np.subtract.outer(_GRID, room) / _MEMORY_ERROR))

    def _log_likelihood(self, found: MemoryEvidence) -> np.ndarray:
        logs = np.zeros(len(_GRID))
        if self._capacity_gib is not None:
            fits = self._fits_by_factor(np.asarray(found.estimated_gib), self._capacity_gib)
            logs = np.log(np.maximum(fits if found.ran else 1 - fits, _MIN_LIKELIHOOD))
        if found.peak_gib is not None:
            logs = logs + _log_student_t((math.log(found.peak_gib / found.estimated_gib) - _GRID) / _PEAK_ERROR)
        return logs
