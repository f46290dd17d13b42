"""Durations: Slurm's grammar, or a number with a unit."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from search_spaces.errors import InputError, format_value

GRAMMAR = "minutes, mm:ss, hh:mm:ss, d-hh, d-hh:mm or d-hh:mm:ss as in Slurm, or a number with s, m, h or d"
MAX_DURATION_S = 366 * 86400
JSON_FORMAT = "slurm-duration"

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,6})?) ?([smhd])")
_SLURM = re.compile(r"(?:([0-9]{1,30})-)?([0-9]{1,30})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")


def parse_duration_s(value: Any, *, key: str | None = None) -> float:
    """Seconds of `90s`, `10m`, `2h`, `1d`, or of Slurm's grammar, where a bare number is minutes.

    InputError, which names the key or option, for anything else, for 0 and for more than a year.
    """
    seconds = _in_minutes(value) if type(value) is int else _parse(value) if isinstance(value, str) else None
    if seconds is None:
        raise _bad(value, key, f"a duration is {GRAMMAR}")
    if not 0 < seconds <= MAX_DURATION_S:
        raise _bad(value, key, "a duration is longer than 0 and at most 366 days")
    return seconds


def format_duration(seconds: float) -> str:
    """A duration in seconds with its unit: `90s`."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration_s),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": ["string", "integer"], "format": JSON_FORMAT}),
]
"""A field given as a duration and stored as seconds."""


def _in_minutes(value: int) -> float:
    return 60.0 * value


def _parse(text: str) -> float | None:
    if match := _WITH_UNIT.fullmatch(text):
        return float(match[1]) * _UNITS_S[match[2]]
    if match := _SLURM.fullmatch(text):
        return _slurm_seconds(*match.groups())
    return None


def _slurm_seconds(days: str | None, first: str, second: str | None, third: str | None) -> float | None:
    """Seconds of Slurm's fields: after days the first is hours; else it is minutes, unless all three of hh:mm:ss are
    given."""
    if any(part is not None and int(part) > 59 for part in (second, third)):
        return None
    if days is not None:
        if int(first) > 23:
            return None
        return int(days) * 86400.0 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
    if third is not None:
        return int(first) * 3600.0 + int(second or 0) * 60 + int(third)
    return int(first) * 60.0 + int(second or 0)


def _bad(value: Any, key: str | None, rule: str) -> InputError:
    fix = "for example 10m, 2h or 01:30:00"
    return InputError.of("duration", f"is {format_value(value)}", key=key, rule=rule, fix=fix, value=value)
