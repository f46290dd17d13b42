"""Messages that are logged once."""

from __future__ import annotations

import logging


class LogOnce:
    """Logs one message per key; later ones with the same key are dropped."""

    def __init__(self, log: logging.Logger):
        self._log = log
        self.keys: set[str] = set()

    def info(self, message: str, key: str | None = None) -> None:
        """Log `message`; its key is `key`, by default the message itself."""
        self._once(logging.INFO, message, key)

    def warning(self, message: str, key: str | None = None) -> None:
        """The same for what a user should look at."""
        self._once(logging.WARNING, message, key)

    def _once(self, level: int, message: str, key: str | None) -> None:
        key = message if key is None else key
        if key not in self.keys:
            self.keys.add(key)
            self._log.log(level, message)
