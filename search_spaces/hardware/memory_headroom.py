"""How much of a rank's memory there is, and how much of it a search wants left free. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.hardware.cluster import Accelerator

CONTEXT_GIB = 1.5
"""What the driver, the kernels and the communication libraries take of a device beside what the allocator counts."""


def rank_memory_gib(accelerator: Accelerator, limit_gib: float | None) -> float | None:
    """GiB that a rank's own allocations may take, under a limit of the search's own; None where nobody knows."""
    usable = accelerator.usable_memory_gib or accelerator.memory_gib
    room = None if usable is None else usable - CONTEXT_GIB
    return min((gib for gib in (room, limit_gib) if gib is not None), default=None)


@dataclass(frozen=True)
class MemoryHeadroom:
    """`constraints.min_free_memory_gib`: of the `capacity_gib` that a rank's allocations may take, `min_free_gib` have
    to stay free."""

    capacity_gib: float
    min_free_gib: float

    @classmethod
    def of(cls, accelerator: Accelerator, limit_gib: float | None, min_free_gib: float | None) -> MemoryHeadroom | None:
        """None where nothing has to stay free, or nobody knows of how much."""
        capacity_gib = rank_memory_gib(accelerator, limit_gib)
        return None if capacity_gib is None or min_free_gib is None else cls(capacity_gib, min_free_gib)

    @classmethod
    def of_search(cls, spec: Mapping[str, Any]) -> MemoryHeadroom | None:
        """Of a search as its record holds it, search.json, or as much of that as there is."""
        min_free_gib = (spec.get("constraints") or {}).get("min_free_memory_gib")
        if min_free_gib is None:
            return None
        accelerator = spec["cluster"]["accelerator"]
        known = Accelerator(**accelerator | {"peak_flops": tuple(accelerator["peak_flops"].items())})
        return cls.of(known, (spec.get("measure") or {}).get("memory_limit_gib"), min_free_gib)

    @property
    def max_peak_gib(self) -> float:
        """The highest peak that leaves enough."""
        return self.capacity_gib - self.min_free_gib

    def is_satisfied(self, peak_gib: float | None) -> bool:
        """Whether a layout with this peak leaves enough; one whose peak nobody knows is not known to."""
        return peak_gib is not None and peak_gib <= self.max_peak_gib

    def describe(self, peak_gib: float | None) -> str:
        """What a layout with this peak leaves, and what it has to."""
        leaves = "its peak is not known" if peak_gib is None else f"leaves {self.format_free(peak_gib)}"
        return f"{leaves}, constraints.min_free_memory_gib asks {self.min_free_gib:g}"

    def format_free(self, peak_gib: float) -> str:
        """What is left beside this peak."""
        return f"{max(0.0, self.capacity_gib - peak_gib):.3g} GiB"
