"""Expected speed of one training as a 95 % interval. Pure; numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from search_spaces.cost_model.constants import CONSTANTS
from search_spaces.cost_model.posterior import TimePrior
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape

DENSE_SHARE, EXCHANGE_SHARE = 0.72, 0.8
"""Spread of published rates around the model's over that of a machine of which nothing is known, whose prior covers
faults and odd machines: of dense layouts, and of those that exchange tokens of experts or parts of sequences. Between
90 and 98 % of each family's rows lie in their interval (`python -m benchmarks.expect_coverage`)."""
Z = 1.96


@dataclass(frozen=True)
class Training:
    """A model in a layout on a cluster."""

    model: ModelShape
    cluster: Cluster
    layout: Layout

    @cached_property
    def terms(self) -> StepTerms:
        return StepTerms.of(self.model, self.cluster, LayoutTable.of([self.layout]))

    @property
    def spread(self) -> float:
        """Share of the prior's spread that its interval has."""
        exchanges = self.model.num_experts is not None or self.layout.context_parallel > 1
        return EXCHANGE_SHARE if exchanges else DENSE_SHARE

    @property
    def tokens_per_step(self) -> int:
        return self.layout.global_batch_size * self.model.seq_length

    @property
    def tflops_per_token(self) -> float:
        """Model TFLOP of a token, recomputation and masks not counted."""
        return self.model.model_flops_per_token / 1e12


@dataclass(frozen=True)
class Expected:
    """Expected tokens/s of a training: the logarithm of its median, and the deviation around it."""

    log_median: float
    log_sd: float

    @classmethod
    def of(cls, training: Training, slower: Mapping[str, float] | None = None) -> Expected:
        """The rate, with these constants of the time model that many times as slow."""
        prior, factors = TimePrior.default(training.cluster.speed_is_known), slower or {}
        terms = training.terms
        constants = prior.constants * np.array([factors.get(name, 1.0) for name in CONSTANTS])
        seconds = float(terms.seconds(constants)[0])
        sd = training.spread * float(prior.log_deviation(terms)[0])
        return cls(math.log(training.tokens_per_step / seconds), sd)

    @property
    def interval(self) -> tuple[float, float, float]:
        """Tokens/s: the lower end of the 95 % interval, the median, and the upper end."""
        low, high = (math.exp(self.log_median + sign * Z * self.log_sd) for sign in (-1, 1))
        return low, math.exp(self.log_median), high

    def deviations(self, tokens_per_sec: float) -> float:
        """A rate's distance from the median, in deviations."""
        return (math.log(tokens_per_sec) - self.log_median) / self.log_sd
