"""What is written is its user's own, as of a command: the mask of new files, which all threads of a process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@contextmanager
def private_umask() -> Iterator[None]:
    """Within this block nobody else may read what is written, also where the process's default is careless. That comes
    back with the end of the last of several threads' blocks."""
    with _default.lock:
        if not _default.blocks:
            _default.mask = os.umask(0o077)
        _default.blocks += 1
    try:
        yield
    finally:
        with _default.lock:
            _default.blocks -= 1
            if not _default.blocks:
                os.umask(_default.mask)


@dataclass
class _Default:
    """The process's own mask, while so many blocks have another one."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: int = 0
    mask: int = 0o077


_default = _Default()
