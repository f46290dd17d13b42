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
    return {name: _without_none(hint) for name, hint in get_type_hints(kind).items()}


def _without_none(hint: Any) -> Any:
    inner = get_args(hint)
    return next(kind for kind in inner if kind is not NoneType) if NoneType in inner else hint


def require_declared(of: Any, code: str, prefix: str = "", fix: str | None = None) -> None:
    """InputError unless each declared value, or each of a mapping's, is of its type, bounds and words."""
    for name, found in declared_fields(type(of)).items():
        value, kind = getattr(of, name), field_types(type(of))[name]
        inner = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, Mapping) else {name: value}
        for key, each in inner.items():
            rule = None if each is None and found.default is None else _violated_rule(kind, found.metadata, each)
            if rule is not None:
                message = f"{key} is {format_value(each):.80}"
                raise InputError.of(code, message, key=prefix + key, value=each, rule=rule, fix=fix)


def _violated_rule(kind: Any, about: Mapping[str, Any], value: Any) -> str | None:
    if kind is bool:
        return None if type(value) is bool else "true or false"
    if words := about.get("words"):
        return None if value in words else "one of " + ", ".join(words)
    least, most = about.get("ge", about.get("gt")), about.get("le", math.inf)
    if least is None:
        return None
    is_number = type(value) is int or (kind is not int and type(value) is float)
    if is_number and (value > least if "gt" in about else value >= least) and value <= most and value < math.inf:
        return None
    if kind is int:
        return f"a whole number from {least} to {most}"
    bound = f"more than {least}" if "gt" in about else f"at least {least}"
    return bound if most == math.inf else f"{bound}, at most {most}"
