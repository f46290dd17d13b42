"""Fields declared once, in a dataclass: their description in a file, and their bounds or words.

A file's section is made from the dataclass (search_spaces/schema/declared_section.py); values from elsewhere are
checked against the same declaration. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from search_spaces.errors import InputError, format_value


def declared(description: str, default: Any = MISSING, *, compare: bool = True, **about: Any) -> Any:
    """A dataclass's field that a file may give; a callable `default` makes the value.

    `about` has its bounds as pydantic names them (`ge`, `gt`, `le`, `min_length`, `max_length`), the `words` of a text,
    the `keys` of a mapping with their descriptions and that `of_keys`, its `alias` in the file, `in_file`, what counts
    where the file leaves it out, if that is not the default, and `needs`, the field without which it has its default.
    """
    given = {"default_factory": default} if callable(default) else {"default": default}
    return field(**given, compare=compare, metadata={"description": description, **about})


@cache
def declared_fields(kind: type) -> Mapping[str, Field[Any]]:
    """Fields of a dataclass that a file may give."""
    return {f.name: f for f in fields(kind) if "description" in f.metadata}


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """Type of each field of a dataclass, without the None that it may be, too."""
    hints = get_type_hints(kind)
    return {one.name: _without_none(hints[one.name]) for one in fields(kind)}


def _without_none(hint: Any) -> Any:
    inner = get_args(hint)
    return next(kind for kind in inner if kind is not NoneType) if NoneType in inner else hint


def require_declared(of: Any, code: str, prefix: str = "", fix: str | None = None) -> None:
    """InputError unless switches and values with bounds or words, of a mapping each, are as declared."""
    declaring: type = type(of)
    for name, kind, about, is_optional in _checked_fields(declaring):
        value = getattr(of, name)
        if value is None and is_optional:
            continue
        inner = {f"{name}.{key}": each for key, each in value.items()} if "keys" in about else {name: value}
        for key, each in inner.items():
            if not _is_valid(kind, about, each):
                message, rule = f"{key} is {format_value(each):.80}", _rule(kind, about)
                raise InputError.of(code, message, key=prefix + key, value=each, rule=rule, fix=fix)


@cache
def _checked_fields(kind: type) -> list[tuple[str, Any, Mapping[str, Any], bool]]:
    types = field_types(kind)
    rows = [(f.name, types[f.name], f.metadata, f.default is None) for f in fields(kind)]
    return [row for row in rows if row[1] is bool or {"words", "ge", "gt"} & row[2].keys()]


def _is_valid(kind: Any, about: Mapping[str, Any], value: Any) -> bool:
    if kind is bool:
        return type(value) is bool
    if words := about.get("words"):
        return value in words
    if type(value) is not int and (kind is int or type(value) is not float):
        return False
    is_enough = value > about["gt"] if "gt" in about else value >= about["ge"]
    return is_enough and value <= about.get("le", math.inf) and value < math.inf


def _rule(kind: Any, about: Mapping[str, Any]) -> str:
    if kind is bool:
        return "true or false"
    if words := about.get("words"):
        return "one of " + ", ".join(words)
    if kind is int:
        return f"a whole number from {about['ge']} to {about['le']}"
    bound = f"more than {about['gt']}" if "gt" in about else f"at least {about['ge']}"
    return f"{bound}, at most {about['le']}" if "le" in about else bound
