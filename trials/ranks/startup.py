"""Startup time of a rank, by parts. Standard library only."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from trials.ranks.environment import process_age_s


class Startup:
    """Breakdown of the seconds from the start of this process to the first measured step."""

    def __init__(self) -> None:
        self._ends_s: dict[str, float] = {}

    def end_of(self, part: str, at_s: float | None = None) -> None:
        """End `part`, which began at the end of the one before, now or at this age of the process."""
        self._ends_s[part] = process_age_s() if at_s is None else at_s

    def fields(self) -> dict[str, Any]:
        """The contract's `startup_s` and `startup_parts_s`."""
        ends = [0.0, *self._ends_s.values()]
        lengths = (end - begin for begin, end in pairwise(ends))
        return {"startup_s": ends[-1], "startup_parts_s": dict(zip(self._ends_s, lengths, strict=True))}
