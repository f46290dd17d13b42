"""glibc's allocator in a rank on a CPU, whose torch keeps no pool of its own. Standard library only.

What torch frees stays in the process unless it was mapped by itself, and buffers of many sizes and lifetimes leave
holes that the next ones do not fit. A rank with ZeRO 1 grew by 1.3 MiB a step, one of a pipeline of tensor ranks by
2.5, for a hundred steps, and neither its peak nor its trend nor a memory limit meant anything.
"""

from __future__ import annotations

import ctypes
from typing import Any

LARGE_BUFFER_BYTES = 2**20
"""What is larger is mapped by itself. A smaller limit would leave no holes, and small models would spend their steps on
mapping."""
STEPS_A_TRIM = 4
"""After so many steps the free pages go back, between two steps. The next one maps anew what it needs of them, which a
median over steps does not see as long as most steps follow no trim."""

_M_MMAP_THRESHOLD = -3  # mallopt(3)


def map_large_buffers() -> None:
    """Have every large buffer mapped by itself from here on; by default glibc learns to keep them in its heaps."""
    _call("mallopt", _M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)


def trim_heap() -> None:
    """Return what is free in the heaps to the kernel, holes included."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: Any) -> None:
    """Other C libraries have none of these."""
    if (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*arguments)
