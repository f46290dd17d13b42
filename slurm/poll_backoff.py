"""How often Slurm may be asked. Pure."""

from __future__ import annotations

LONGEST_INTERVAL_S = 300.0
BUSY_FACTOR = 5.0
"""A question that takes the controller two seconds is asked every ten: at most a fifth of its time is ours."""


class PollBackoff:
    """The seconds between the beginnings of two questions, from how long the last ones took. Never below `floor_s`.

    While Slurm does not answer, each failure doubles the interval, up to LONGEST_INTERVAL_S (or the floor, where that
    is longer); the first answer ends that.
    """

    def __init__(self, floor_s: float):
        self._floor_s = floor_s
        self._interval_s = floor_s

    @property
    def interval_s(self) -> float:
        return self._interval_s

    def answered(self, took_s: float) -> None:
        """The last question was answered after `took_s` seconds."""
        self._interval_s = max(self._floor_s, BUSY_FACTOR * took_s)

    def failed(self, took_s: float = 0.0) -> None:
        """The last question was not answered, which took `took_s` seconds."""
        longest = max(self._floor_s, LONGEST_INTERVAL_S)
        self._interval_s = min(longest, max(2 * self._interval_s, BUSY_FACTOR * took_s))
