"""Bounded reads of regular files: those that a user names, and those in a folder of ours.

Reading a pipe or a terminal would block, a device may have no end, and a file may exceed the memory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from search_spaces.errors import InputError

MAX_BYTES = 64 * 2**20
"""Default bound on the size of a file."""

_OWN_DESCRIPTORS = ("/dev/fd", "/proc/self/fd")
_OF_THE_KERNEL = ("/proc", "/sys")
_NOT_REGULAR = "not a regular file"
_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_named(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file that the user named; links are followed.

    OSError, whose strerror gives the reason, for a file that cannot be read, is not regular or is larger.
    """
    with open_named(path) as stream:
        return _bounded(stream, path, most_bytes)


def read_referenced(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file that another file names; links are followed.

    OSError as for `read_named`, and also for a pipe and for what the kernel makes up (/proc, /sys).
    """
    with open_named(path, _is_saved) as stream:
        return _bounded(stream, path, most_bytes)


@contextmanager
def refusing_unreadable(path: Path) -> Iterator[None]:
    """Within this block a file that the user gave and that cannot be read is an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError.of(
            "file",
            f"cannot be read: {error.strerror or error}",
            file=str(path),
            value=str(path),
            rule="the file exists and is readable",
            fix="check its name; `parlay init > search.yaml` writes an example",
        ) from error


def _bounded(stream: BinaryIO, path: Path, most_bytes: int) -> bytes:
    content = stream.read(most_bytes + 1) or b""
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than the limit of {most_bytes} bytes", str(path))
    return content


def _is_nameable(path: Path, found: os.stat_result) -> bool:
    is_shells_pipe = stat.S_ISFIFO(found.st_mode) and str(path.parent) in _OWN_DESCRIPTORS
    return stat.S_ISREG(found.st_mode) or is_shells_pipe


def _is_saved(path: Path, found: os.stat_result) -> bool:
    of_the_kernel = {os.stat(folder).st_dev for folder in _OF_THE_KERNEL if os.path.ismount(folder)}
    return stat.S_ISREG(found.st_mode) and found.st_dev not in of_the_kernel


def open_named(path: Path, is_accepted: Callable[[Path, os.stat_result], bool] = _is_nameable) -> BinaryIO:
    """The file opened for reading; by default also a pipe that the shell opened for us, as with `<(...)`. OSError
    unless it is accepted."""
    with _odd_names_and_devices(path):
        descriptor = os.open(path, _READING)
    found = os.fstat(descriptor)
    if is_accepted(path, found):
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))


def read_plain(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file that belongs to its folder's owner.

    ValueError for a link, a pipe, a device, another user's file and a larger one, so that nobody who can write into the
    folder can redirect the read or block it. OSError where it cannot be read.
    """
    with open_plain(path) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"{path} has more than {most_bytes} bytes")
    return content


def open_plain(path: Path) -> BinaryIO:
    """The file opened for reading, with the checks of `read_plain`."""
    try:
        with _odd_names_and_devices(path):
            descriptor = os.open(path, _READING | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            raise ValueError(f"{path} is not a regular file") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.stat(path.parent).st_uid:
        os.close(descriptor)
        raise ValueError(f"{path} is not a regular file of its folder's owner")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _odd_names_and_devices(path: Path) -> Iterator[None]:
    """Within this block a name or a device that cannot be opened is an OSError with a reason for the user."""
    try:
        yield
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, _NOT_REGULAR, str(path)) from error
        raise
