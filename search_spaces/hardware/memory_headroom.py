"""Memory that a rank's allocations may take, and how much of it a search keeps free. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.hardware.cluster import Accelerator

CONTEXT_GIB = 1.5
"""GiB of a device that the driver, the kernels and the communication libraries take outside of the allocator."""


def rank_memory_gib(accelerator: Accelerator, limit_gib: float | None) -> float | None:
    """GiB that a rank's allocations may take, under the search's own limit if any; None where it is unknown."""
    usable = accelerator.usable_memory_gib or accelerator.memory_gib
    room = None if usable is None else usable - CONTEXT_GIB
    return min((gib for gib in (room, limit_gib) if gib is not None), default=None)


@dataclass(frozen=True)
class MemoryHeadroom:
    """`constraints.min_free_memory_gib`: `min_free_gib` of the `capacity_gib` that a rank's allocations may take stay
    free."""

    capacity_gib: float
    min_free_gib: float

    @classmethod
    def of(cls, accelerator: Accelerator, limit_gib: float | None, min_free_gib: float | None) -> MemoryHeadroom | None:
        """The headroom; None where nothing has to stay free, or the capacity is unknown."""
        capacity_gib = rank_memory_gib(accelerator, limit_gib)
        return None if capacity_gib is None or min_free_gib is None else cls(capacity_gib, min_free_gib)

    @classmethod
    def of_search(cls, spec: Mapping[str, Any]) -> MemoryHeadroom | None:
        """The headroom of a search from its record, search.json, or a part of it."""
        min_free_gib = (spec.get("constraints") or {}).get("min_free_memory_gib")
        if min_free_gib is None:
            return None
        known = Accelerator(**spec["cluster"]["accelerator"])
        return cls.of(known, (spec.get("measure") or {}).get("memory_limit_gib"), min_free_gib)

    @property
    def max_peak_gib(self) -> float:
        """The highest peak that leaves enough free."""
        return self.capacity_gib - self.min_free_gib

    def is_satisfied(self, peak_gib: float | None) -> bool:
        """True if a layout with this peak leaves enough free; false for an unknown peak."""
        return peak_gib is not None and peak_gib <= self.max_peak_gib

    def describe(self, peak_gib: float | None) -> str:
        """Sentence on the memory that a layout with this peak leaves free and the memory that it has to."""
        left = "has an unknown peak" if peak_gib is None else f"leaves {self.format_free(peak_gib)} free"
        return f"{left}, constraints.min_free_memory_gib is {self.min_free_gib:g}"

    def format_free(self, peak_gib: float) -> str:
        """The memory that this peak leaves free, with its unit."""
        return f"{max(0.0, self.capacity_gib - peak_gib):.3g} GiB"
