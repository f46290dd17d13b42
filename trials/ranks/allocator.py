"""Settings of glibc's allocator for a rank on a CPU, whose torch keeps no pool. Standard library only.

Memory that torch frees stays in the process unless it was mapped separately, and buffers of many sizes and lifetimes
leave holes that the next ones do not fit. A rank with ZeRO 1 grew by 1.3 MiB a step, one of a pipeline of
tensor-parallel ranks by 2.5, for a hundred steps, which made its peak, its trend and memory limits meaningless.
"""

from __future__ import annotations

import ctypes
from typing import Any

LARGE_BUFFER_BYTES = 2**20
"""Threshold for separate mappings. A smaller one would leave no holes, but cost small models most of a step."""
STEPS_PER_TRIM = 4
"""Steps between two trims. The step after a trim maps pages anew; a median over steps does not see that while most
steps follow no trim."""

_M_MMAP_THRESHOLD = -3  # mallopt(3)


def map_large_buffers() -> None:
    """Have large buffers mapped separately from here on; by default glibc learns to keep them in its heaps."""
    _call("mallopt", _M_MMAP_THRESHOLD, LARGE_BUFFER_BYTES)


def trim_heap() -> None:
    """Return free heap pages to the kernel, holes included."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the C library, if it has one of this name."""
    if (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*arguments)
