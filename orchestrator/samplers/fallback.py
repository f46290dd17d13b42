"""A sampler that raises or hangs must not end a search that has cost node-hours: another one goes on in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.in_time import in_thread, result_in_time
from orchestrator.samplers.base import Sampler, Told
from search_spaces.layout import Layout

# Half of a driver's lease, which nobody renews meanwhile; an ask takes seconds, the first one with its imports.
_TIME_LIMIT_S = 60.0


class FallbackSampler(Sampler):
    """Asks `first` until it raises or takes longer than `time_limit_s`, and `second` from then on.

    `note` hears of it, once. A driver that resumes tries `first` again: what it raised may have been cured.
    """

    def __init__(
        self, first: Sampler, second: Sampler, note: Callable[[str], None], time_limit_s: float = _TIME_LIMIT_S
    ):
        self.name = first.name
        self._first: Sampler | None = first
        self._second = second
        self._note = note
        self._time_limit_s = time_limit_s

    def ask(self, count: int, history: Sequence[Told]) -> list[Layout]:
        if self._first is not None:
            try:
                return self._ask_in_time(self._first, count, history)
            except Exception as error:
                words = f"{type(error).__name__}: {error}"
                self._note(f"sampler {self.name} failed ({words}); going on with {self._second.name}")
                self._first = None
        return self._second.ask(count, history)

    def has_converged(self, history: Sequence[Told]) -> bool:
        return (self._first or self._second).has_converged(history)

    def _ask_in_time(self, sampler: Sampler, count: int, history: Sequence[Told]) -> list[Layout]:
        """Its answer from a thread that is left behind after the time limit."""
        answer = in_thread(partial(sampler.ask, count, history), "sampler")
        return result_in_time(answer, self._time_limit_s, "")
