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

from orchestrator.lifecycle.exit_codes import ExitCode

if TYPE_CHECKING:
    from orchestrator.search.driver import Driver

_PR_SET_PDEATHSIG = 1


class StopSignals:
    """SIGINT and SIGTERM as requests to stop, which raise nothing into the code that they interrupt.

    A driver stops at its next safe point; after one ctrl-C it waits for running trials first. Without a driver the
    running job is cancelled, no submission is interrupted half-way, and a second ctrl-C raises KeyboardInterrupt.
    Without a terminal nobody presses ctrl-C: SIGINT is as SIGTERM.
    """

    def __init__(self, has_terminal: bool = True) -> None:
        self.received: list[int] = []
        self._has_terminal = has_terminal
        self._driver: Driver | None = None

    def is_requested(self) -> bool:
        return bool(self.received)

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of a command that was stopped by them."""
        return ExitCode.STOPPED_EARLY if signal.SIGTERM in self.received else ExitCode.INTERRUPTED

    @contextmanager
    def handling(self, *more: signal.Signals) -> Iterator[None]:
        """Note these signals and `more` within this block, then restore the previous handlers.

        Python delivers signals to its main thread only; in any other thread nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with signals_handled_by(self._on_signal, signal.SIGINT, signal.SIGTERM, *more):
            yield

    @contextmanager
    def stopping(self, driver: Driver) -> Iterator[None]:
        """Stop the driver by signals within this block, also by those before it."""
        self._driver = driver
        self._stop()
        try:
            yield
        finally:
            self._driver = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        is_ctrl_c = self._has_terminal and number == signal.SIGINT
        if is_ctrl_c and self._driver is None and number in self.received:
            raise KeyboardInterrupt
        self.received.append(number)
        self._stop()

    def _stop(self) -> None:
        if self._driver is None or not self.received:
            return
        if self._has_terminal and self.received == [signal.SIGINT]:
            self._driver.interrupt()
        else:
            self._driver.stop_now()


@contextmanager
def signals_handled_by(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals so within this block, then restore the previous handlers. For the main thread."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def end_with(parent: int) -> bool:
    """Get SIGTERM when the thread of process `parent` that started this one ends; False if it has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent
