"""JSON that others may have written: parsed within bounds, decoded by a dataclass's types. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

MOST_LEVELS = 60
"""Levels of nesting, far above those of Parlay's own files: code that walks a value may recurse."""
LARGEST_NUMBER = 1e100
"""Far above any measurement, and so far below what overflows a float that a few may be multiplied."""
_LARGEST_WHOLE = 2**63 - 1

T = TypeVar("T")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError for any other text, for a number that is not finite or beyond any of ours,
    and for more than `MOST_LEVELS` levels."""
    try:
        value = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_whole)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [value]
    for _ in range(MOST_LEVELS):
        if not (level := [inner for outer in level for inner in _inside(outer) if isinstance(inner, (dict, list))]):
            return value
    raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"it has more than {MOST_LEVELS} levels"


def _number(text: str) -> float:
    value = float(text)
    if not abs(value) <= LARGEST_NUMBER:
        raise ValueError(f"{text:.80} is not a number of at most {LARGEST_NUMBER:g}")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > _LARGEST_WHOLE:
        raise ValueError(f"{text:.80} is not a whole number of at most {_LARGEST_WHOLE}")
    return value


def _inside(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def decode(kind: type[T], data: Any) -> T:
    """The dataclass with these fields. A field whose class has a `from_json` is decoded by that.

    ValueError for what is no object, a missing or unknown field, and a value whose type is not the field's.
    """
    types = require_fields(kind, data)
    return kind(**{name: decode_value(types[name], value, name) for name, value in data.items()})


def require_fields(kind: type, data: Any) -> Mapping[str, Any]:
    """Types of the fields of a dataclass, by name; ValueError unless the data is an object with them."""
    types, required = _fields_of(kind)
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r:.80} is not an object")
    for name in data:
        if name not in types:
            raise ValueError(f"{name!r:.80} is not one of {', '.join(types)}")
    for name in types:
        if name in required and name not in data:
            raise ValueError(f"{name} is missing")
    return types


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


@cache
def _fields_of(kind: type) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Types of a dataclass's fields, and the names of those without a default."""
    types, given = _types_of(kind), [field for field in fields(kind) if field.init]
    required = [field.name for field in given if field.default is MISSING and field.default_factory is MISSING]
    return {field.name: types[field.name] for field in given}, frozenset(required)


def decode_value(kind: Any, value: Any, name: str) -> Any:
    """The value of a type that a field may have; a TypedDict may lack keys and have others. ValueError with the name
    for any other."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and NoneType in inner):
        return value
    if origin in (Union, UnionType):
        return _decode_one_of([one for one in inner if one is not NoneType], value, name)
    if is_typeddict(kind) and isinstance(value, Mapping):
        types = _types_of(kind)
        return {key: decode_value(types.get(key, Any), part, f"{name}.{key:.40}") for key, part in value.items()}
    if origin is list and isinstance(value, (list, tuple)):
        return [decode_value(inner[0], part, name) for part in value]
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(decode_value(one, part, name) for one, part in zip(kinds, value, strict=True))
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {key: decode_value(inner[1], part, f"{name}.{key:.40}") for key, part in value.items()}
    elif origin is None and hasattr(kind, "from_json"):
        return kind.from_json(value)
    elif isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value)
    elif origin is None and issubclass(kind, Enum):
        if value in [member.value for member in kind]:
            return kind(value)
    elif kind is float:
        if type(value) in (int, float) and abs(value) <= LARGEST_NUMBER:
            return value
    elif type(value) is kind:
        return value
    raise ValueError(f"{name} is {value!r:.80}, not {getattr(kind, '__name__', kind)}")


def _decode_one_of(kinds: list[Any], value: Any, name: str) -> Any:
    for kind in kinds[:-1]:
        with suppress(ValueError):
            return decode_value(kind, value, name)
    return decode_value(kinds[-1], value, name)
