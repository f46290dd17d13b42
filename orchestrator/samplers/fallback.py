"""A sampler that raises must not end a search that has cost node-hours: another one goes on in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.samplers.base import Sampler, Told
from search_spaces.layout import Layout


class FallbackSampler(Sampler):
    """Asks `first` until it raises, and `second` from then on; `note` hears of it, once.

    A driver that resumes tries `first` again: what it raised may have been cured.
    """

    def __init__(self, first: Sampler, second: Sampler, note: Callable[[str], None]):
        self.name = first.name
        self._current = first
        self._second = second
        self._note = note

    def ask(self, count: int, history: Sequence[Told]) -> list[Layout]:
        try:
            return self._current.ask(count, history)
        except Exception as error:
            if self._current is self._second:
                raise
            self._note(
                f"sampler {self.name} failed ({type(error).__name__}: {error}); going on with {self._second.name}"
            )
            self._current = self._second
            return self._second.ask(count, history)
