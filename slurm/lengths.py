"""Lengths of time as Slurm's commands print limits. Pure."""

from __future__ import annotations

import math
import re

_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-9]{2}):([0-9]{2})")


def clock_s(text: str) -> float:
    """Seconds of `[days-]hh:mm:ss`; infinite for UNLIMITED, and for what is no such time."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds
