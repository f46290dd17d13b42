"""Process-wide umask for private files. All threads of a process share its umask."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@contextmanager
def private_umask() -> Iterator[None]:
    """Set umask 077 within this block. When the last of several threads leaves its block the old umask is restored."""
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
    """The umask to restore, and the number of open blocks."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: int = 0
    mask: int = 0o077


_default = _Default()
