"""Lock of a machine, so that a user's replays measure on it one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

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
    """Machine-wide lock among the processes of one home of Parlay; the lock of a process that dies is free."""

    def __init__(self, home: Path):
        self._lock = FileLock(
            home / "measuring.lock", mode=0o600, thread_local=False, blocking=False, fallback_to_soft=False
        )

    def try_acquire(self) -> bool:
        """InputError where the home cannot be written."""
        try:
            return self._lock.is_locked or self._lock.acquire().lock.is_locked
        except Timeout:
            return False
        except OSError as error:
            raise home_error(Path(self._lock.lock_file).parent, error) from error

    def release(self) -> None:
        self._lock.release()


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
