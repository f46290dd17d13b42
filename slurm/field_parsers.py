"""Parsers of single values in the output of Slurm's commands: fields, counts, durations. Pure."""

from __future__ import annotations

import math
import re

_CLOCK = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6}):([0-9]{2}):([0-9]{2})")


def field_of(line: str, key: str) -> str:
    """Return the value of ` key=value` in a line of scontrol's, or ""."""
    match = re.search(rf" {key}=(\S*)", line)
    return match[1] if match else ""


def whole_number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def limit(text: str, none: float = math.inf) -> float:
    """Parse a limit; `none` where it is not a number, such as UNLIMITED."""
    found = whole_number(text)
    return none if found is None else float(found)


def clock_s(text: str) -> float:
    """Return the seconds of `[days-]hh:mm:ss`; infinite for UNLIMITED and for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def billing_units(tres: str) -> float | None:
    """Return the billing units in `billing=40,cpu=8,gres/gpu=4,node=2`; None without them."""
    match = re.search(r"(?:^|,)billing=([0-9]{1,18})(?:,|$)", tres)
    return float(match[1]) if match else None
