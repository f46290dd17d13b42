"""Plain files, and nothing else, opened for reading: those that a person names, and those that lie in a folder of ours.

A pipe or a terminal would be waited for, a device may have no end, and a file may be larger than the memory. Standard
library only.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 64 * 2**20
"""Of a file whose reader knows no smaller bound."""

_OWN_DESCRIPTORS = ("/dev/fd", "/proc/self/fd")
_NO_PLAIN_FILE = "it is no plain file"


def read_named(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """What stands in a plain file that a person named.

    Links are followed: what the name leads to is theirs to say. OSError, whose strerror says why, for whatever cannot
    be read, is no plain file or has more bytes.
    """
    with open_named(path) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes, the most that is read", str(path))
    return content


def open_named(path: Path) -> BinaryIO:
    """The same file, opened for reading; or a pipe that a shell has opened for us, as `<(...)` does."""
    descriptor = _opened(path)
    found = os.fstat(descriptor)
    is_shells_pipe = stat.S_ISFIFO(found.st_mode) and str(path.parent) in _OWN_DESCRIPTORS
    if stat.S_ISREG(found.st_mode) or is_shells_pipe:
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, _NO_PLAIN_FILE, str(path))


def read_plain(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """What stands in a plain file of whoever the folder around it belongs to.

    ValueError for a link, a pipe, a device, another user's file and one of more bytes: whatever else can write into a
    folder must not decide what is read there, nor hold its reader up. OSError where it cannot be read.
    """
    with open_plain(path) as stream:
        content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"{path} has more than {most_bytes} bytes")
    return content


def open_plain(path: Path) -> BinaryIO:
    """The same file, opened for reading."""
    try:
        descriptor = _opened(path, os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL):
            raise ValueError(f"{path} is no plain file") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.stat(path.parent).st_uid:
        os.close(descriptor)
        raise ValueError(f"{path} is no plain file of its folder's owner")
    return os.fdopen(descriptor, "rb")


def _opened(path: Path, flags: int = 0) -> int:
    """A descriptor of whatever lies there; what would have to be waited for is not."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a device without a driver
            raise OSError(errno.EINVAL, _NO_PLAIN_FILE, str(path)) from error
        raise
