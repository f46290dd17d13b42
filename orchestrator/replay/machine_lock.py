"""Lock of a machine, so that a user's replays measure on it one after another."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

from search_spaces.errors import InputError


class MeasurementLock(Protocol):
    """Lock held during a measurement."""

    def try_acquire(self) -> bool:
        """Take the lock without waiting; True if it is now held here, False if another process holds it."""

    def release(self) -> None:
        """Release the lock if it is held here."""


class NullLock:
    """No lock: for runs whose nodes the batch system allocates exclusively."""

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class MachineLock:
    """Lock of this machine among the processes of one Parlay home (flock); released when its process ends."""

    def __init__(self, home: Path):
        self._file = home / "measuring.lock"
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """As above. InputError when Parlay's home cannot be written."""
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
    """Error for a Parlay home that cannot be written."""
    return InputError.of(
        "home",
        f"{error.filename or home} cannot be written: {error.strerror or error}",
        key="PARLAY_HOME",
        value=str(home),
        rule="Parlay's home holds a user's files that belong to no search, such as the lock for measuring",
        fix="set PARLAY_HOME to a folder of yours on local disk",
    )
