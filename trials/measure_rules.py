"""Rules of a measurement, which a trial's spec carries. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeasureRules:
    """Rules of a measurement; docs/measuring.md. Times in seconds, memory in GiB of one rank.

    `ci_relative_width` is the full width of the 95 % interval of the median step time over the median; measuring stops
    at `min_steps` or later once it is reached. A finalist is measured for `finalist_steps` at least, or until its
    measured steps took `finalist_time_s` together. `memory_limit_gib` None sets no limit.

    `early_stopping`: a trial that cannot be the best ends itself. `profile`: a few more steps after the measurement
    show where the time goes. `warm_start`: ranks are forked after their imports; None where launcher and trainer can.
    `routing` is that of experts, as `Routing.of` parses it; None without experts. `energy`: a trial whose energy is
    not known fails, since it is an objective.
    """

    min_steps: int = 8
    max_steps: int = 40
    max_warmup_steps: int = 20
    ci_relative_width: float = 0.05
    time_limit_s: float = 600.0
    memory_limit_gib: float | None = None
    early_stopping: bool = True
    finalist_steps: int = 200
    finalist_time_s: float = 300.0
    profile: bool = False
    warm_start: bool | None = None
    routing: str | None = None
    energy: bool = False
