"""Slow imports of a driver, made in a thread of their own once its first trials are launched.

One thread makes them all, one after the other, and whoever needs such a package waits for it first: two threads that
import packages which import each other could see a half of one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

_lock = threading.Lock()
_thread: threading.Thread | None = None


def start(imports: Iterable[Callable[[], object]]) -> None:
    """Call these in a daemon thread, unless this process has begun some before. Their errors are raised where the
    packages are used."""
    global _thread
    with _lock:
        if _thread is not None:
            return
        thread = threading.Thread(target=_import, args=(tuple(imports),), name="imports", daemon=True)
        with suppress(RuntimeError):  # the user may have reached a limit of threads: they are imported where used
            thread.start()
            _thread = thread


def wait() -> None:
    """Return once no import is under way; at once where none was started."""
    if (thread := _thread) is not None:
        thread.join()


def _import(imports: Iterable[Callable[[], object]]) -> None:
    for package in imports:
        with suppress(Exception):
            package()
