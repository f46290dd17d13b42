"""Samplers without a model: candidates in the given order, or shuffled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice

from orchestrator.samplers.base import Sampler, TrialFeedback, distinct, untried
from search_spaces.layouts.layout import Layout


class GridSampler(Sampler):
    """Proposes the candidates in the given order."""

    name = "grid"

    def __init__(self, candidates: Sequence[Layout]):
        self._candidates = distinct(candidates)

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        return list(islice(untried(self._candidates, history).values(), count))


class RandomSampler(GridSampler):
    """Proposes the candidates in a random order set by the seed alone."""

    name = "random"

    def __init__(self, candidates: Sequence[Layout], seed: int):
        shuffled = sorted(candidates, key=lambda layout: layout.key)
        random.Random(seed).shuffle(shuffled)
        super().__init__(shuffled)
