"""Fallback for a sampler that raises or hangs: it must not end a search that has cost node-hours."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from threadpoolctl import threadpool_limits

from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from orchestrator.search import background_imports
from orchestrator.search.samplers.base import Sampler, TrialFeedback
from search_spaces.layouts.layout import Layout

_log = logging.getLogger(__name__)


_T = TypeVar("_T")

# An iteration of the driver asks twice (stop? what next?) and cannot renew its lease of 120 s meanwhile. An answer
# takes seconds, the first one including its imports.
_TIME_LIMIT_S = 50.0


class FallbackSampler(Sampler):
    """Asks `first` until it raises or takes longer than `time_limit_s`, then `second`.

    That is logged once. A resumed driver starts with `first` again.
    """

    def __init__(self, first: Sampler, second: Sampler, time_limit_s: float = _TIME_LIMIT_S):
        self.name = first.name
        self.first: Sampler | None = first
        self._second = second
        self._time_limit_s = time_limit_s

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        return self._call(lambda sampler: sampler.ask(count, history))

    def has_converged(self, history: Sequence[TrialFeedback]) -> bool:
        return self._call(lambda sampler: sampler.has_converged(history))

    def _call(self, question: Callable[[Sampler], _T]) -> _T:
        if self.first is not None:
            try:
                return self._with_timeout(partial(question, self.first))
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                _log.warning(f"sampler {self.name} failed ({reason}); continuing with {self._second.name}")
                self.first = None
        return question(self._second)

    def _with_timeout(self, answer: Callable[[], _T]) -> _T:
        """The answer of a thread that is abandoned after the time limit."""
        return result_with_timeout(submit_to_thread(partial(_on_one_core, answer), "sampler"), self._time_limit_s, "")


def _on_one_core(answer: Callable[[], _T]) -> _T:
    """Run on one core: a driver on a login node is one of many, and its matrices are small."""
    background_imports.wait()
    with _blas_limit, threadpool_limits(limits=1, user_api="openmp"):  # OpenMP's limit is the thread's own
        return answer()


class _BlasLimit:
    """Limit of BLAS to one thread in this process. The last of several samplers asked at once restores what was."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        self._limits: threadpool_limits | None = None

    def __enter__(self) -> None:
        with self._lock:
            self._num_users += 1
            if self._limits is None:
                self._limits = threadpool_limits(limits=1, user_api="blas")

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0 and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_blas_limit = _BlasLimit()
