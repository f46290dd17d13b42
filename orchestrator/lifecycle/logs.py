"""Log messages of Parlay's packages, each sent to the sink of the context that it is logged in.

Several searches may be driven in one process, each with a log of its own. So a sink belongs to a context
(`contextvars`), not to the process: `sending_to` sets it, and threads that work for a search are started in a copy of
its context. Without a sink a message is dropped, unless the program that uses Parlay has configured `logging` itself.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from dashboards.text import lines_for, printable_lines

PACKAGES = ("search_spaces", "slurm", "trials", "dashboards", "orchestrator")

_sink: ContextVar[logging.Handler | None] = ContextVar("sink", default=None)


class TerminalSink(logging.Handler):
    """Writes messages to standard error: the text alone, with `has_times` time and level before it, with `is_verbose`
    the logger too. A terminal that is gone, or a full disk, is not an error: from then on nothing is written.
    """

    def __init__(self, level: int = logging.INFO, is_verbose: bool = False):
        super().__init__(level)
        self.is_verbose = is_verbose
        self.has_times = False
        self._is_broken = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_broken:
            return
        try:
            sys.stderr.write(lines_for(sys.stderr, self._text(record)))
            sys.stderr.flush()
        except OSError:
            self._is_broken = True

    def _text(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if self.is_verbose:
            message = f"{record.name}: {message}"
        return f"{_time_and_level(record)} {message}" if self.is_verbose or self.has_times else message


class ListSink(logging.Handler):
    """Collects messages."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def sending_to(sink: logging.Handler | None) -> Iterator[None]:
    """Send what is logged within this block to `sink`; drop it if None."""
    token = _sink.set(sink)
    try:
        yield
    finally:
        _sink.reset(token)


def current_sink() -> logging.Handler | None:
    """Return the sink of this context."""
    return _sink.get()


def use_times_in(log: Path) -> None:
    """Write messages with time and level if standard error is this file, the log of a driver in the background."""
    sink = _sink.get()
    with suppress(OSError, ValueError):  # no such file, or a stream without a descriptor
        if isinstance(sink, TerminalSink) and os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat()):
            sink.has_times = True


def logs_to_driver_log() -> bool:
    """True if messages of this context go to the log of a driver in the background."""
    return isinstance(sink := _sink.get(), TerminalSink) and sink.has_times


def is_quiet() -> bool:
    """True if informational messages are not shown in this context."""
    sink = _sink.get()
    return sink is None or sink.level > logging.INFO


class _Router(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        sink = _sink.get()
        if sink is not None and record.levelno >= sink.level:
            sink.handle(record)


def format_line(record: logging.LogRecord) -> str:
    """The message as a line of a log file, with time and level."""
    return printable_lines(f"{_time_and_level(record)} {record.getMessage()}")


def _time_and_level(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(record.created))} {record.levelname:<7}"


def _install_router() -> None:
    router = _Router()
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.addHandler(router)
        logger.setLevel(logging.DEBUG)


_install_router()
