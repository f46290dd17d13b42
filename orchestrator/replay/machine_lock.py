"""Turns of one machine: who measures on it, where several of a user's processes want to."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from search_spaces.errors import InputError


class MeasurementLock(Protocol):
    """Held while something is measured."""

    def try_acquire(self) -> bool:
        """Whether the turn is ours from now on, or was before; False, at once, where another has it."""

    def release(self) -> None:
        """Let the next one have it."""


class NullLock:
    """Of runs that nobody else disturbs, or that a batch system keeps apart."""

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class MachineLock:
    """The turn of this machine among the processes of one home of Parlay; who dies gives it back."""

    def __init__(self, home: Path):
        self._file = home / "measuring.lock"
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """InputError where the home cannot be written."""
        return self._is_acquired or self._try_lock()

    @property
    def _is_acquired(self) -> bool:
        return self._descriptor is not None

    def _try_lock(self) -> bool:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self._file, flags, 0o600)
        except OSError as error:
            raise home_error(self._file.parent, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def home_error(home: Path, error: OSError) -> InputError:
    """Of a home of Parlay in which something could not be written."""
    return InputError.of(
        "home",
        f"{error.filename or home} cannot be written: {error.strerror or error}",
        key="PARLAY_HOME",
        value=str(home),
        rule="what belongs to a user and not to one search lies there, also whose turn it is to measure",
        fix="set PARLAY_HOME to a folder of yours on local disk",
    )
