"""Calls that may hang, like a read from a file system that is gone: made in a thread that can be left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

FOLDER_TIMEOUT_S = 5.0
"""How long an attempt's folder may take to be read or written before its attempt has to wait and others go on."""


def submit_to_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Begin `work` in a daemon thread, which holds up no exit: where it hangs, nothing can end it."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # who waits may give up, and the thread still has where to put its answer
    threading.Thread(target=_answer, args=(answer, work), name=name, daemon=True).start()
    return answer


def result_with_timeout(answer: Future[T], limit_s: float, who: str) -> T:
    """What the work returned or raised; TimeoutError, which is an OSError, when it has not within `limit_s`."""
    try:
        return answer.result(limit_s)
    except TimeoutError:
        if answer.done():
            raise
        raise TimeoutError(f"{who}no answer within {limit_s:.0f} s") from None


class HangGuard:
    """Calls about things that may hang, each named by a key and given `limit_s`. For one thread.

    While a call hangs no other with its key is begun: that raises TimeoutError at once, so that one thing that hangs
    costs its callers one wait and one thread. Once it has come back, its answer is old, and the next call is made.
    """

    def __init__(self, limit_s: float):
        self._limit_s = limit_s
        self._hanging: dict[str, Future[Any]] = {}

    def call(self, key: str, work: Callable[[], T]) -> T:
        """What `work` returns or raises; TimeoutError, which is an OSError, where it hangs."""
        if key in self._hanging:
            if not self._hanging[key].done():
                raise TimeoutError(f"{key}: no answer yet")
            del self._hanging[key]
        answer = submit_to_thread(work, "in-time")
        try:
            return result_with_timeout(answer, self._limit_s, f"{key}: ")
        except TimeoutError:
            if not answer.done():
                self._hanging[key] = answer
            raise


def _answer(answer: Future[T], work: Callable[[], T]) -> None:
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)
