"""Ending a verb that has something in flight: signals only leave word."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.cli.exit_codes import ExitCode


class Stop:
    """Ctrl-C and SIGTERM have the run in flight cancelled. They only leave word, so that no submission is torn in two;
    ctrl-C again leaves at once."""

    def __init__(self) -> None:
        self.code = ExitCode.INTERRUPTED
        self._is_asked = False

    def is_asked(self) -> bool:
        return self._is_asked

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within this block signals are heard; the handlers from before come back after it."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._hear) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: object) -> None:
        if number == signal.SIGINT and self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        if number == signal.SIGTERM:
            self.code = ExitCode.STOPPED_EARLY
