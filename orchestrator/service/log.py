"""Log of the service: its own file, and what its terminal shows."""

from __future__ import annotations

import logging
import os
from functools import partial
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from orchestrator.lifecycle.logs import format_line

MAX_SERVICE_LOG_BYTES = 16 * 2**20


class ServiceLogSink(RotatingFileHandler):
    """Appends messages to a service's log, with time and level, and passes them on to `terminal`.

    At MAX_SERVICE_LOG_BYTES the file becomes `<name>.1`, which replaces an earlier one. A file that cannot be written
    is not an error.
    """

    terminator = ""

    def __init__(self, path: Path, terminal: logging.Handler | None):
        super().__init__(path, maxBytes=MAX_SERVICE_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._terminal = terminal

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.INFO:
            super().emit(record)
        if self._terminal is not None and record.levelno >= self._terminal.level:
            self._terminal.handle(record)

    def format(self, record: logging.LogRecord) -> str:
        return format_line(record)

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=partial(os.open, mode=0o600))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the message."""
