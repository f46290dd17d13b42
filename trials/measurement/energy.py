"""Energy of a measurement from that of each rank's GPU. Pure; standard library only; docs/measuring.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trials.measurement.protocol import MIN_ENERGY_TIME_S

COUNTER_PERIOD_S = 0.1
"""Longest time between two updates of a GPU's counter; NVIDIA's are updated every 20 to 100 ms."""


@dataclass(frozen=True)
class RankEnergy:
    """Joules that a rank's GPU used over some seconds. `gpu` identifies it in the world; None is unknown."""

    gpu: str | None
    joules: float | None = None
    seconds: float = 0.0


def energy_fields(ranks: Sequence[RankEnergy], tokens: int) -> dict[str, Any]:
    """`joules_per_token` and its interval for this many tokens; empty with an `energy_fault`."""
    if energy_fault(ranks) is not None:
        return {}
    joules = sum(rank.joules or 0.0 for rank in ranks)
    share = COUNTER_PERIOD_S / min(rank.seconds for rank in ranks)
    per_token = joules / tokens
    return {
        "joules_per_token": per_token,
        "joules_per_token_low": per_token * (1 - share),
        "joules_per_token_high": per_token * (1 + share),
    }


def energy_fault(ranks: Sequence[RankEnergy]) -> str | None:
    """The reason why the energy of the measured steps is not known; None where it is."""
    silent = [number for number, rank in enumerate(ranks) if not rank.joules or rank.joules < 0]
    if silent:
        return f"rank {silent[0]}: the driver of its device reports no energy (NVML or AMD SMI)"
    if len({rank.gpu for rank in ranks}) < len(ranks):
        return "several ranks share a GPU, whose energy cannot be told apart"
    shortest_s = min(rank.seconds for rank in ranks)
    if shortest_s < MIN_ENERGY_TIME_S:
        return (
            f"the measured steps took {shortest_s:.2g} s, and counters of energy need {MIN_ENERGY_TIME_S:g} s:"
            " raise measure.time_limit"
        )
    return None
