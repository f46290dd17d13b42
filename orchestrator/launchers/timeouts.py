"""Runs blocking calls (for example on a dead NFS mount) in a daemon thread with a timeout."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

FOLDER_TIMEOUT_S = 5.0
"""Timeout of reads and writes in an attempt's folder; after it the other attempts go on."""


class ThreadCall(threading.Thread, Generic[T]):
    """A call in a daemon thread, which does not delay the process's exit; `start` begins it. One that hangs cannot be
    ended."""

    def __init__(self, work: Callable[[], T], name: str):
        super().__init__(name=name, daemon=True)
        self.answer: Future[T] = Future()
        self.answer.set_running_or_notify_cancel()  # a caller may stop waiting; the thread still sets its result
        self._work = work
        self._variables = contextvars.copy_context()

    def run(self) -> None:
        try:
            self.answer.set_result(self._variables.run(self._work))
        except BaseException as error:
            self.answer.set_exception(error)


def submit_to_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Start `work` in such a thread."""
    call = ThreadCall(work, name)
    call.start()
    return call.answer


def result_with_timeout(answer: Future[T], limit_s: float, who: str) -> T:
    """Wait for the result or exception of a call; TimeoutError, an OSError, after `limit_s`. `who` begins its text."""
    try:
        return answer.result(limit_s)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"{who}no answer within {limit_s:.0f} s") from None


class HangGuard:
    """Runs calls that may hang, each with a key and a timeout of `limit_s`. Not thread-safe.

    While a call hangs, another one with its key raises TimeoutError at once: a resource that hangs costs one wait and
    one thread. The late result of a call that returns after its timeout is dropped.
    """

    def __init__(self, limit_s: float):
        self._limit_s = limit_s
        self._hanging: dict[str, Future[Any]] = {}

    def call(self, key: str, work: Callable[[], T]) -> T:
        """Return or raise what `work` does; TimeoutError, an OSError, when it hangs."""
        if key in self._hanging:
            if not self._hanging[key].done():
                raise TimeoutError(f"{key}: no answer yet")
            del self._hanging[key]
        thread = ThreadCall(work, "in-time")
        thread.start()
        answer = thread.answer
        try:
            return result_with_timeout(answer, self._limit_s, f"{key}: ")
        except TimeoutError:
            if not answer.done():
                self._hanging[key] = answer
            raise
