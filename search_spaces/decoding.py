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
    kind: Any = type(value)
    return _encode_fields(value, names) if names else _encoder(kind)(value)


_PLAIN = {str, int, float, bool, NoneType}


@cache
def _encoder(kind: type) -> Callable[[Any], Any]:
    """What makes plain JSON of the values of a class."""
    if issubclass(kind, Enum):
        return lambda value: value.value
    for plain in (str, int, float):
        if issubclass(kind, plain) and kind not in _PLAIN:  # a class of its own, such as torch's of its version
            return plain
    if issubclass(kind, Mapping):
        return lambda value: {key: part if type(part) in _PLAIN else encode(part) for key, part in value.items()}
    if issubclass(kind, (list, tuple)):
        return lambda value: [part if type(part) in _PLAIN else encode(part) for part in value]
    if is_dataclass(kind) and (issubclass(kind, JsonObject) or not hasattr(kind, "to_json")):
        return _encode_fields
    to_json: Callable[[Any], Any] = getattr(kind, "to_json", lambda value: value)
    return to_json


def _encode_fields(value: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
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
    require_fields(kind, data)
    return kind(**decode_fields(kind, data))


def require_schema(data: Any, schema: str) -> None:
    """ValueError unless `data` is an object of this kind and version."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{data!r:.80} is not an object")
    if data.get("schema") != schema:
        raise ValueError(f"schema is {str(data.get('schema'))!r}, this Parlay reads {schema}")


def decode_fields(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The values of these fields of a dataclass, which may be some of them. ValueError as `decode`."""
    decoders = _decoders_of(kind)
    return {name: decoders[name](value, name) for name, value in data.items()}


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
    return _decoder(kind)(value, name)


Decoder = Callable[[Any, str], Any]
"""Gives a value its type, or raises ValueError with the name of its field."""


@cache
def _decoders_of(kind: type) -> Mapping[str, Decoder]:
    """Decoders of a dataclass's fields, by name."""
    return {name: _decoder(one) for name, one in _fields_of(kind)[0].items()}


@cache
def _decoder(kind: Any) -> Decoder:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, name: value
    if origin is Annotated:
        return _decoder_within(*inner)
    if origin in (Union, UnionType):
        return _decoder_of_one(inner)
    if is_typeddict(kind):
        return _decoder_of_typed_dict(kind)
    if origin is list:
        return _decoder_of_list(kind, _decoder(inner[0]))
    if origin is tuple:
        return _decoder_of_tuple(kind, inner)
    if origin is not None:
        return _decoder_of_mapping(kind, *map(_decoder, inner))
    if hasattr(kind, "from_json") and not issubclass(kind, JsonObject):
        return lambda value, name: kind.from_json(value)
    if is_dataclass(kind):
        return _decoder_of_dataclass(kind)
    return _decoder_of_enum(kind) if issubclass(kind, Enum) else _decoder_of_plain(kind)


def _decoder_of_plain(kind: type) -> Decoder:
    def decode_number(value: Any, name: str) -> Any:
        if type(value) in (int, float) and abs(value) <= LARGEST_NUMBER:
            return value
        raise _wrong_type(kind, value, name)

    def decode_plain(value: Any, name: str) -> Any:
        if type(value) is kind:
            return value
        raise _wrong_type(kind, value, name)

    return decode_number if kind is float else decode_plain


def _wrong_type(kind: Any, value: Any, name: str) -> ValueError:
    return ValueError(f"{name} is {value!r:.80}, not {getattr(kind, '__name__', kind)}")


def _decoder_of_enum(kind: type[Enum]) -> Decoder:
    def decode_member(value: Any, name: str) -> Enum:
        try:
            return kind(value)
        except ValueError:
            raise _wrong_type(kind, value, name) from None

    return decode_member


def _decoder_of_list(kind: Any, decode_part: Decoder) -> Decoder:
    def decode_list(value: Any, name: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _wrong_type(kind, value, name)
        return [decode_part(part, name) for part in value]

    return decode_list


def _decoder_of_tuple(kind: Any, inner: tuple[Any, ...]) -> Decoder:
    parts = [_decoder(one) for one in inner if one is not ...]

    def decode_tuple(value: Any, name: str) -> tuple[Any, ...]:
        if isinstance(value, (list, tuple)):
            decoders = parts * len(value) if inner[1:] == (...,) else parts
            if len(decoders) == len(value):
                return tuple(decode_part(part, name) for decode_part, part in zip(decoders, value, strict=True))
        raise _wrong_type(kind, value, name)

    return decode_tuple


def _decoder_of_mapping(kind: Any, decode_key: Decoder, decode_part: Decoder) -> Decoder:
    def decode_mapping(value: Any, name: str) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _wrong_type(kind, value, name)
        parts = {decode_key(key, f"a name of {name}"): part for key, part in value.items()}
        return {key: decode_part(part, f"{name}.{key:.40}") for key, part in parts.items()}

    return decode_mapping


def _decoder_of_typed_dict(kind: Any) -> Decoder:
    decoders = {key: _decoder(one) for key, one in _types_of(kind).items()}
    required, decode_any = kind.__required_keys__, _decoder(Any)

    def decode_typed_dict(value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong_type(kind, value, name)
        for key in required:
            if key not in value:
                raise ValueError(f"{name}.{key} is missing")
        for key in value:
            if required and key not in decoders:
                raise ValueError(f"{name}.{key:.40} is not one of {', '.join(decoders)}")
        return {key: decoders.get(key, decode_any)(part, f"{name}.{key:.40}") for key, part in value.items()}

    return decode_typed_dict


def _decoder_of_dataclass(kind: Any) -> Decoder:
    def decode_inner(value: Any, name: str) -> Any:
        try:
            return decode(kind, value)
        except ValueError as error:
            if type(error) is not ValueError:  # one of its own class names its field already
                raise
            raise ValueError(f"{name}: {error}") from error

    return decode_inner


def _decoder_of_one(kinds: Sequence[Any]) -> Decoder:
    """Decoder of a union: the first type that the value has."""
    *others, last = (_decoder(one) for one in kinds if one is not NoneType)
    may_be_none = NoneType in kinds

    def decode_one(value: Any, name: str) -> Any:
        if value is None and may_be_none:
            return None
        for decode_other in others:
            with suppress(ValueError):
                return decode_other(value, name)
        return last(value, name)

    return decode_one


def _decoder_within(plain: Any, *extras: Any) -> Decoder:
    """Decoder of an `Annotated`: by its form if it has one, within its bounds."""
    form = next((extra for extra in extras if isinstance(extra, WrittenAs)), None)
    decode_unbound = _decoder(plain) if form is None else _decoder_of_form(form)
    bounds = tuple(extra for extra in extras if isinstance(extra, Bound))

    def decode_within(value: Any, name: str) -> Any:
        found = decode_unbound(value, name)
        for bound in bounds:
            if not bound.fulfils(found):
                raise ValueError(f"{name} is {value!r:.80}, not {bound.words}")
        return found

    return decode_within


def _decoder_of_form(form: WrittenAs) -> Decoder:
    def decode_form(value: Any, name: str) -> Any:
        try:
            return form.read(value)
        except ValueError as error:
            if type(error) is not ValueError:  # one of its own class names its field already
                raise
            raise ValueError(f"{name}: {error}") from error

    return decode_form
