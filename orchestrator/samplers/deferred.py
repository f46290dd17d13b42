"""Sampler that is made when it is first asked: by then the search knows its links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from orchestrator.samplers.base import Sampler, TrialFeedback
from search_spaces.layouts.layout import Layout


class DeferredSampler(Sampler):
    """The sampler that `make` returns, called once."""

    def __init__(self, name: str, make: Callable[[], Sampler]):
        self.name = name
        self._make = make

    @cached_property
    def _sampler(self) -> Sampler:
        return self._make()

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        return self._sampler.ask(count, history)

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        return self._sampler.has_converged(history)
