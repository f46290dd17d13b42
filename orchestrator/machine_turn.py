"""Turns of one machine: who measures on it, where several of a user's processes want to."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol


class Turn(Protocol):
    """Held while something is measured."""

    def is_taken(self) -> bool:
        """Take the turn; False, at once, where another has it."""

    def give_back(self) -> None:
        """Let the next one have it."""


class NoTurn:
    """Of runs that nobody else disturbs, or that a batch system keeps apart."""

    def is_taken(self) -> bool:
        return True

    def give_back(self) -> None:
        pass


class MachineTurn:
    """The turn of this machine among the processes of one home of Parlay; who dies gives it back."""

    def __init__(self, home: Path):
        self._file = home / "measuring.lock"
        self._descriptor: int | None = None

    def is_taken(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._file, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def give_back(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
