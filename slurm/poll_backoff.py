"""Interval between queries of Slurm. Pure."""

from __future__ import annotations

LONGEST_INTERVAL_S = 300.0
BUSY_FACTOR = 5.0
"""Interval per second that a query takes: at most a fifth of the controller's time is used."""


class PollBackoff:
    """Seconds between the starts of two queries, never below `floor_s`.

    The interval is `BUSY_FACTOR` times what the last query took. Each failure doubles it, up to LONGEST_INTERVAL_S or
    the floor, whichever is longer; the first answer resets it.
    """

    def __init__(self, floor_s: float):
        self._floor_s = floor_s
        self._interval_s = floor_s

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def answered(self, took_s: float) -> None:
        """Record a query that was answered after `took_s` seconds."""
        self._interval_s = max(self._floor_s, BUSY_FACTOR * took_s)

    def failed(self, took_s: float = 0.0) -> None:
        """Record a query that failed after `took_s` seconds."""
        longest = max(self._floor_s, LONGEST_INTERVAL_S)
        self._interval_s = min(longest, max(2 * self._interval_s, BUSY_FACTOR * took_s))
