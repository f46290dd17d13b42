"""Time that torch's compiler takes in this process."""

from __future__ import annotations


def compile_s() -> float | None:
    """Seconds so far for graphs of forward and backward passes, by the compiler's own counters; None for a release of
    torch without them."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, KeyError):
        return None
