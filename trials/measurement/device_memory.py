"""Memory of the ranks' devices over a trial: what takes it, what is left, and whether it grows. Pure; standard library
only.

Three amounts are told apart: allocated to tensors, reserved by the allocator (with what it keeps free), and used of the
device by anything, which has the driver's context, communication libraries and captured graphs besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trials.measurement.step_log import StepPhase, StepRecord
from trials.measurement.trend import slope_of
from trials.outcome_types import FullestRank

LEAST_GROWTH_MIB = 0.25
"""Growth per step and rank from which memory leaks. The host memory of a young process still grows by 0.06 MiB a step,
and by 0.002 after a thousand steps."""
MIB_PER_GIB = 1024

_SLOPES = {
    "allocated_memory_slope_mib_per_step": "memory_allocated_gib",
    "reserved_memory_slope_mib_per_step": "memory_reserved_gib",
    "device_memory_slope_mib_per_step": "memory_device_gib",
}
"""Metrics by the field of a step's record whose slope they are."""


@dataclass(frozen=True)
class RankMemory:
    """Peaks of one rank's memory in GiB; those of a device are None on a CPU.

    `peak_gib` is reserved on a GPU, resident on a CPU. `outside_gib` is used of the device but not reserved, the
    largest after any step. `inactive_split_gib` is free in blocks of which another part is in use. `alloc_retries` are
    allocations that failed until the allocator had given back what it kept.
    """

    peak_gib: float
    peak_allocated_gib: float | None = None
    outside_gib: float | None = None
    total_gib: float | None = None
    inactive_split_gib: float | None = None
    alloc_retries: int | None = None

    def free_gib(self, limit_gib: float | None) -> float | None:
        """GiB that the rank may still take, of its device and of the allocator's limit; None without either."""
        of_limit = math.inf if limit_gib is None else limit_gib - self.peak_gib
        of_device = math.inf if self.total_gib is None else self.total_gib - self.peak_gib - (self.outside_gib or 0.0)
        free_gib = min(of_limit, of_device)
        return free_gib if math.isfinite(free_gib) else None


def fullest_rank(ranks: Sequence[RankMemory], hosts: Sequence[str], limit_gib: float | None) -> FullestRank:
    """The rank that has least memory left, or else uses most, and what takes it. `limit_gib` is
    `measure.memory_limit_gib`."""

    def room(rank: int) -> tuple[float, float]:
        free_gib = ranks[rank].free_gib(limit_gib)
        return (math.inf if free_gib is None else free_gib, -ranks[rank].peak_gib)

    rank = min(range(len(ranks)), key=room)
    memory = ranks[rank]
    found = {
        "rank": rank,
        "host": hosts[rank],
        "device_gib": memory.total_gib,
        "limit_gib": limit_gib,
        "used_gib": memory.peak_gib + (memory.outside_gib or 0.0),
        "free_gib": memory.free_gib(limit_gib),
        "allocated_gib": memory.peak_allocated_gib,
        "cached_gib": None if memory.peak_allocated_gib is None else memory.peak_gib - memory.peak_allocated_gib,
        "outside_gib": memory.outside_gib,
        "inactive_split_gib": memory.inactive_split_gib,
        "alloc_retries": memory.alloc_retries,
    }
    return FullestRank(**{name: value for name, value in found.items() if value is not None})  # type: ignore[typeddict-item]


def device_memory_fields(records: Sequence[StepRecord], fullest: FullestRank) -> dict[str, Any]:
    """Metrics of the devices' memory over the measured steps; {} on a CPU."""
    used = [r.memory_device_gib for r in records if r.memory_device_gib is not None]
    fields: dict[str, Any] = {"peak_device_memory_gib": max(used)} if used else {}
    for name, slope in _slopes(records):
        fields[name] = slope * MIB_PER_GIB
    if (full_at := _full_at_step(records, fullest)) is not None:
        fields["device_memory_full_at_step"] = full_at
    return fields


def _slopes(records: Sequence[StepRecord], least_gib: float | None = None) -> Iterator[tuple[str, float]]:
    """Known slopes in GiB a step by the metric's name; with `least_gib` those that lie above it."""
    measured = [r for r in records if r.phase is StepPhase.MEASURED]
    for name, field in _SLOPES.items():
        found = slope_of([(r.step, value) for r in measured if (value := getattr(r, field)) is not None])
        if found is not None and (least_gib is None or found.is_above(least_gib)):
            yield name, found.value


def _full_at_step(records: Sequence[StepRecord], fullest: FullestRank) -> int | None:
    """The step at which a device would be full; None where nothing grows, or what is free is unknown.

    Tensors may still take what the allocator keeps, the allocator what is free, by its own limit, too; what is used
    outside of it has the device's room.
    """
    growing = dict(_slopes(records, LEAST_GROWTH_MIB / MIB_PER_GIB))
    if not growing or "free_gib" not in fullest or "device_gib" not in fullest:
        return None
    free_gib = max(0.0, fullest["free_gib"])
    rooms_gib = {
        "allocated_memory_slope_mib_per_step": free_gib + fullest.get("cached_gib", 0.0),
        "reserved_memory_slope_mib_per_step": free_gib,
        "device_memory_slope_mib_per_step": max(0.0, fullest["device_gib"] - fullest["used_gib"]),
    }
    return records[-1].step + min(math.floor(rooms_gib[name] / slope) for name, slope in growing.items())
