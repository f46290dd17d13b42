"""Signal handlers that set a flag or stop the driver, and raise nothing into the code they interrupt."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator.common.exit_codes import ExitCode

if TYPE_CHECKING:
    from orchestrator.search.driver import Driver

_PR_SET_PDEATHSIG = 1


class DriverSignals:
    """Ctrl-C once waits for running trials, twice stops; SIGTERM stops. The driver stops at its next safe point."""

    def __init__(self) -> None:
        self.is_terminated = False
        self._interrupts = 0

    @contextmanager
    def handling(self, driver: Driver) -> Iterator[None]:
        """Send signals to the driver within this block, then restore the previous handlers."""

        def handle(number: int, frame: FrameType | None) -> None:
            self._interrupts += number == signal.SIGINT
            self.is_terminated |= number == signal.SIGTERM
            if number == signal.SIGTERM or self._interrupts > 1:
                driver.stop_now()
            else:
                driver.interrupt()

        with _handling(handle):
            yield


class CancelOnSignal:
    """Ctrl-C and SIGTERM request a stop: the running job is cancelled, and no submission is interrupted half-way.

    A second ctrl-C raises KeyboardInterrupt at once.
    """

    def __init__(self) -> None:
        self.is_terminated = False
        self._is_requested = False

    def is_requested(self) -> bool:
        return self._is_requested

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Record signals within this block, then restore the previous handlers."""
        with _handling(self._on_signal):
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._is_requested:
            raise KeyboardInterrupt
        self._is_requested = True
        self.is_terminated |= number == signal.SIGTERM


def code_after(signals: DriverSignals | CancelOnSignal) -> ExitCode:
    """Exit code of a command that was stopped by a signal."""
    return ExitCode.STOPPED_EARLY if signals.is_terminated else ExitCode.INTERRUPTED


def end_with(parent: int) -> bool:
    """Get SIGTERM when the thread of process `parent` that started this one ends; False if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


@contextmanager
def _handling(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle SIGINT and SIGTERM with `handle` within this block.

    Python delivers signals to its main thread only; in any other thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
