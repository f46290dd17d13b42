"""The codec: dataclasses as JSON and back by the types of their fields, and JSON of others parsed within bounds.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

MOST_LEVELS = 60
"""Levels of nesting, far above those of Parlay's own files: code that walks a value may recurse."""
LARGEST_NUMBER = 1e100
"""Far above any measurement, and so far below what overflows a float that a few may be multiplied."""
_LARGEST_WHOLE = 2**63 - 1

T = TypeVar("T")


@dataclass(frozen=True)
class Bound:
    """Condition on a value besides its type, in `Annotated`. The words end the error: `x is -1, not 0 or more`."""

    words: str
    fulfils: Callable[[Any], bool]


@dataclass(frozen=True)
class WrittenAs:
    """Form of a value in JSON, in `Annotated`. `read` raises ValueError for any other."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


UNWRITTEN: Mapping[str, bool] = MappingProxyType({"is_written": False})
"""Metadata of a dataclass's field, with a default, that JSON does not have."""

_NOT_NEGATIVE = Bound("0 or more", lambda value: value >= 0)
Count = Annotated[int, _NOT_NEGATIVE]
Amount = Annotated[float, _NOT_NEGATIVE]
Positive = Annotated[float, Bound("above 0", lambda value: value > 0)]


class JsonObject:
    """A dataclass that is a JSON object: its fields by name, beside the `schema` if it has one.

    With `OMITS_UNKNOWN` a field that is None is absent.
    """

    SCHEMA: ClassVar[str | None] = None
    OMITS_UNKNOWN: ClassVar[bool] = False

    def to_json(self) -> dict[str, Any]:
        return encode(self)

    @classmethod
    def from_json(cls: type[T], data: Any) -> T:
        """The inverse of `to_json`; ValueError as `decode`."""
        return decode(cls, data)


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


def encode(value: Any, *names: str) -> Any:
    """The value as plain JSON; of a dataclass these fields or properties, or all fields.

    A field whose class has a `to_json` is encoded by that.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Enum):
        return value.value
    for plain in (str, int, float):
        if isinstance(value, plain):  # a class of its own, such as torch's of its version
            return plain(value)
    if isinstance(value, Mapping):
        return {key: part if type(part) in _PLAIN else encode(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [part if type(part) in _PLAIN else encode(part) for part in value]
    if is_dataclass(value) and (names or isinstance(value, JsonObject) or not hasattr(value, "to_json")):
        return _encode_fields(value, names)
    return value.to_json() if hasattr(value, "to_json") else value


_PLAIN = {str, int, float, bool, NoneType}


def _encode_fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a dataclass, beside its schema; or those that are named, without."""
    kind: Any = type(value)
    forms = _forms_of(kind)
    data = {}
    for name in names or _fields_of(kind)[0]:
        part = getattr(value, name)
        if name in forms and part is not None:
            part = forms[name].write(part)
        elif type(part) not in _PLAIN:  # most are
            part = encode(part)
        data[name] = part
    if not names and getattr(kind, "OMITS_UNKNOWN", False):
        data = {name: part for name, part in data.items() if part is not None}
    schema = None if names else getattr(kind, "SCHEMA", None)
    return data if schema is None else {"schema": schema, **data}


@cache
def _forms_of(kind: type) -> Mapping[str, WrittenAs]:
    """Forms in JSON of a dataclass's fields that have one, by name."""
    forms = {name: _form_of(one) for name, one in _types_of(kind).items()}
    return {name: form for name, form in forms.items() if form is not None}


def _form_of(kind: Any) -> WrittenAs | None:
    inner = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return next((form for one in inner if (form := _form_of(one)) is not None), None)
    return next((one for one in inner if isinstance(one, WrittenAs)), None)


def encode_fields(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, those that are numbers and have the name of a field of this dataclass in the form of that."""
    forms = _forms_of(kind)
    is_new = {name: name in forms and isinstance(value, (int, float)) for name, value in values.items()}
    return {name: forms[name].write(value) if is_new[name] else value for name, value in values.items()}


def decode(kind: type[T], data: Any) -> T:
    """The dataclass with these fields. A field whose class has a `from_json` is decoded by that.

    ValueError for what is no object, another schema, a missing or unknown field, and a value whose type or bound is not
    the field's; the message names it.
    """
    if (schema := getattr(kind, "SCHEMA", None)) is not None:
        require_schema(data, schema)
        data = {name: value for name, value in data.items() if name != "schema"}
    types = require_fields(kind, data)
    return kind(**{name: decode_value(types[name], value, name) for name, value in data.items()})


def require_schema(data: Any, schema: str) -> None:
    """ValueError unless `data` is an object of this kind and version."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r:.80} is not an object")
    if data.get("schema") != schema:
        raise ValueError(f"schema is {str(data.get('schema'))!r}, this Parlay reads {schema}")


def decode_fields(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these fields of a dataclass, which may be some of them. ValueError as `decode`."""
    types = _fields_of(kind)[0]
    return {name: decode_value(types[name], value, name) for name, value in data.items()}


def require_fields(kind: type, data: Any) -> Mapping[str, Any]:
    """Types of the fields of a dataclass, by name; ValueError unless the data is an object with them."""
    types, required = _fields_of(kind)
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r:.80} is not an object")
    if not data.keys() <= types.keys():
        unknown = next(name for name in data if name not in types)
        raise ValueError(f"{unknown!r:.80} is not one of {', '.join(types)}")
    if not required <= data.keys():
        raise ValueError(f"{next(name for name in types if name in required - data.keys())} is missing")
    return types


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _fields_of(kind: type) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Types of a dataclass's fields, and the names of those without a default."""
    types = _types_of(kind)
    given = [field for field in fields(kind) if field.init and field.metadata.get("is_written", True)]
    required = [field.name for field in given if field.default is MISSING and field.default_factory is MISSING]
    return {field.name: types[field.name] for field in given}, frozenset(required)


def decode_value(kind: Any, value: Any, name: str) -> Any:
    """The value of a type that a field may have; a TypedDict that may lack keys may have others. ValueError with the
    name for any other."""
    if type(value) is kind and kind in _PLAIN and (kind is not float or abs(value) <= LARGEST_NUMBER):
        return value
    origin, inner = _parts_of(kind)
    if origin is Annotated:
        return _decode_annotated(kind, value, name)
    if kind is Any or (value is None and NoneType in inner):
        return value
    if origin in (Union, UnionType):
        return _decode_one_of(_alternatives(kind), value, name)
    if is_typeddict(kind) and isinstance(value, Mapping):
        return _decode_typed_dict(kind, value, name)
    if origin is list and isinstance(value, (list, tuple)):
        return [decode_value(inner[0], part, name) for part in value]
    if origin is tuple and isinstance(value, (list, tuple)):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            return tuple(decode_value(one, part, name) for one, part in zip(kinds, value, strict=True))
    elif origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        parts = {decode_value(inner[0], key, f"a name of {name}"): part for key, part in value.items()}
        return {key: decode_value(inner[1], part, f"{name}.{key:.40}") for key, part in parts.items()}
    elif origin is None and hasattr(kind, "from_json") and not issubclass(kind, JsonObject):
        return kind.from_json(value)
    elif isinstance(kind, type) and is_dataclass(kind):
        return _decode_inner(kind, value, name)
    elif origin is None and issubclass(kind, Enum):
        with suppress(ValueError):
            return kind(value)
    elif kind is float:
        if type(value) in (int, float) and abs(value) <= LARGEST_NUMBER:
            return value
    elif type(value) is kind:
        return value
    raise ValueError(f"{name} is {value!r:.80}, not {getattr(kind, '__name__', kind)}")


@cache
def _parts_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@cache
def _alternatives(union: Any) -> tuple[Any, ...]:
    return tuple(one for one in get_args(union) if one is not NoneType)


@cache
def _annotation_of(kind: Any) -> tuple[Any, WrittenAs | None, tuple[Bound, ...]]:
    """Type, form and bounds of an `Annotated`."""
    plain, *extras = get_args(kind)
    form = next((extra for extra in extras if isinstance(extra, WrittenAs)), None)
    return plain, form, tuple(extra for extra in extras if isinstance(extra, Bound))


def _decode_annotated(kind: Any, value: Any, name: str) -> Any:
    plain, form, bounds = _annotation_of(kind)
    try:
        found = decode_value(plain, value, name) if form is None else form.read(value)
    except ValueError as error:
        raise error if form is None else ValueError(f"{name}: {error}") from error
    for bound in bounds:
        if not bound.fulfils(found):
            raise ValueError(f"{name} is {value!r:.80}, not {bound.words}")
    return found


def _decode_typed_dict(kind: Any, value: Mapping[str, Any], name: str) -> dict[str, Any]:
    types, required = _types_of(kind), kind.__required_keys__
    for key in required:
        if key not in value:
            raise ValueError(f"{name}.{key} is missing")
    for key in value:
        if required and key not in types:
            raise ValueError(f"{name}.{key:.40} is not one of {', '.join(types)}")
    return {key: decode_value(types.get(key, Any), part, f"{name}.{key:.40}") for key, part in value.items()}


def _decode_inner(kind: type[T], value: Any, name: str) -> T:
    try:
        return decode(kind, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _decode_one_of(kinds: Sequence[Any], value: Any, name: str) -> Any:
    for kind in kinds[:-1]:
        with suppress(ValueError):
            return decode_value(kind, value, name)
    return decode_value(kinds[-1], value, name)
