"""Types of JSON values: predicates, and a check of an object's values by their names. Standard library only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

Predicate = Callable[[Any], bool]
FieldTypes = Mapping[str, tuple[tuple[str, ...], Predicate]]
"""Names of fields and the predicate that their values must fulfil, by a description of the type."""


def require_types(data: Mapping[str, Any], types: FieldTypes, owner: str) -> None:
    """ValueError for a field whose value has another type; `owner` begins the message. Absent fields are accepted."""
    for kind, (names, fits) in types.items():
        for name in names:
            if name in data and not fits(data[name]):
                raise ValueError(f"{owner} {name} is {data[name]!r:.80}, not {kind}")


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, float)


def is_finite_number(value: Any) -> bool:
    """True for a finite number; integers too large for a float are none."""
    return is_number(value) and abs(value) <= sys.float_info.max


def is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_list_of(fits: Predicate) -> Predicate:
    return lambda value: isinstance(value, (list, tuple)) and all(map(fits, value))


def or_null(fits: Predicate) -> Predicate:
    return lambda value: value is None or fits(value)
