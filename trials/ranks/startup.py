"""Startup time of a rank, by parts. Standard library only."""

from __future__ import annotations

from typing import Any

from trials.ranks.environment import process_age_s
from trials.trial import LowerStrEnum


class StartupPart(LowerStrEnum):
    """Part of the seconds from the start of rank 0's process to its first measured step. One that cannot be known is
    absent; in the order of the parts."""

    IMPORT = "import"
    """Python's start, and all modules of the training. Absent for other trainers."""
    RENDEZVOUS = "rendezvous"
    """The device, the process groups, and the probe of the devices."""
    BUILD = "build"
    """Model, optimizer and data. Of another trainer all that it does before its first step, imports included."""
    COMPILE = "compile"
    """torch's compiler, by its own counters, up to the first measured step. Absent without `torch_compile`, but for
    engine megatron-core on GPUs, and for other trainers."""
    FIRST_STEP = "first_step"
    """The first step, without `compile`."""
    WARMUP = "warmup"
    """The other steps that do not count, without `compile`."""


class Startup:
    """Breakdown of the seconds from the start of this process to the first measured step."""

    def __init__(self) -> None:
        self._seconds: dict[StartupPart, float] = {}
        self._booked_s = 0.0
        self._compile_s = 0.0

    def end_of(self, part: StartupPart, at_s: float | None = None, compile_s: float | None = None) -> None:
        """Book the time since the last call on `part`, until now or this age of the process.

        `compile_s` are the seconds that torch's compiler has taken so far in this process: those since the last call
        are booked on `compile` instead.
        """
        until_s = process_age_s() if at_s is None else at_s
        spent_s, self._booked_s = until_s - self._booked_s, until_s
        if compile_s is not None:
            compiled_s = min(compile_s - self._compile_s, spent_s)
            self._compile_s = compile_s
            self._add(StartupPart.COMPILE, compiled_s)
            spent_s -= compiled_s
        self._add(part, spent_s)

    def _add(self, part: StartupPart, seconds: float) -> None:
        self._seconds[part] = self._seconds.get(part, 0.0) + seconds

    def fields(self) -> dict[str, Any]:
        """The contract's `startup_s` and `startup_parts_s`."""
        parts = {part.value: self._seconds[part] for part in StartupPart if part in self._seconds}
        return {"startup_s": self._booked_s, "startup_parts_s": parts}
