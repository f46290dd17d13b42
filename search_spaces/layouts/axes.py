"""Axes: the values of a layout field in a search, as the search file gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from search_spaces.errors import InputError, format_value
from search_spaces.layouts.axis import Axis, Kind
from search_spaces.layouts.layout import DERIVED, LAYOUT_FIELDS, Layout

MAX_COUNT = 1_000_000
MAX_VALUES = 10_000


def axis_values(value: Any) -> tuple[Any, ...]:
    """Expand a value, a list, `{min, max, step}` or `{min, max, factor}` to distinct values.

    InputError for an empty list, repeats, min > max, a step below 1, a factor below 2. The values' type is checked by
    the field.
    """
    if isinstance(value, dict):
        return _range(value)
    if not isinstance(value, (list, tuple)):
        return (value,)
    if not value:
        raise _bad("axis", "is an empty list", "an axis has at least one value", fix="add a value, or remove the key")
    if len(value) > MAX_VALUES:
        raise _bad("bounds", f"has {len(value)} values", f"at most {MAX_VALUES} values an axis")
    _require_no_repeats(value)
    return tuple(value)


def complete_axes(given: Mapping[str, Sequence[Any]], num_nodes: int) -> dict[str, tuple[Any, ...]]:
    """Every searchable field with its values, in the order of the layout fields; the default for those not given.

    `grad_accum_steps` is included only when given; otherwise it is derived, as `data_parallel` always is.
    """
    default = Layout(num_nodes=num_nodes)
    derived = set(DERIVED) - set(given)
    return {f: tuple(given.get(f, (getattr(default, f),))) for f in LAYOUT_FIELDS if f not in derived}


def _require_no_repeats(values: list[Any] | tuple[Any, ...]) -> None:
    seen = set()
    for value in values:
        # With the type, since 1 == True in Python.
        if (type(value), repr(value)) in seen:
            details = {"fix": "give each value once", "value": value}
            raise _bad("repeat", f"has {format_value(value)} twice", "the values of an axis are distinct", **details)
        seen.add((type(value), repr(value)))


def _range(given: dict[str, Any]) -> tuple[int, ...]:
    if set(given) not in ({"min", "max", "step"}, {"min", "max", "factor"}):
        rule, fix = "{min, max, step} or {min, max, factor}", "for example {min: 1, max: 8, factor: 2}"
        raise _bad("range", f"has the keys {', '.join(given) or 'none'}", rule, fix=fix, value=given)
    for name, number in given.items():
        least = 2 if name == "factor" else 0 if name == "min" and "step" in given else 1
        if type(number) is not int or not least <= number <= MAX_COUNT:
            rule = f"{name} is a whole number from {least} to {MAX_COUNT}"
            fix = "for example {min: 1, max: 8, factor: 2}"
            raise _bad("range", f"{name} is {format_value(number)}", rule, key=name, value=number, fix=fix)
    low, high = given["min"], given["max"]
    if low > high:
        what = f"min {low} is more than max {high}"
        raise _bad("range", what, "min is at most max", fix="swap them", value=given)
    values = range(low, high + 1, given["step"]) if "step" in given else _multiplied(low, high, given["factor"])
    if len(values) > MAX_VALUES:
        raise _bad(
            "bounds", f"has {len(values)} values", f"at most {MAX_VALUES} values an axis", fix="use a larger step"
        )
    return tuple(values)


def _multiplied(low: int, high: int, factor: int) -> list[int]:
    values = [low]
    while values[-1] * factor <= high:
        values.append(values[-1] * factor)
    return values


def _bad(code: str, message: str, rule: str, **details: Any) -> InputError:
    return InputError.of(code, message, rule=rule, **details)


def value_type(axis: Axis) -> Any:
    """Pydantic type of one value of an axis."""
    if axis.kind is Kind.WORD:
        return _joined_words(axis) if axis.parts else Literal[axis.words]
    if axis.kind is Kind.SWITCH:
        return bool
    number: Any = Annotated[int, Field(ge=axis.least, le=_most(axis))]
    return number | None if axis.default is None else number


def _joined_words(axis: Axis) -> Any:
    def known(word: str) -> str:
        if word not in axis.words:
            expected = {"expected": axis.choice_of(axis.words, last=", ")}
            raise PydanticCustomError("literal_error", "one of {expected}", expected)
        return word

    return Annotated[str, AfterValidator(known), WithJsonSchema(_value_schema(axis))]


def axis_type(axis: Axis) -> Any:
    """Pydantic type of the distinct values of an axis, given as `axis_values` takes them."""
    value: Any = value_type(axis)
    values = tuple[value, ...] | None
    expanded = axis_values if axis.is_number else _listed_values
    return Annotated[values, BeforeValidator(expanded), WithJsonSchema(_axis_schema(axis))]


def _listed_values(value: Any) -> tuple[Any, ...]:
    """`axis_values` of words and switches, which have no ranges."""
    if isinstance(value, dict):
        what, rule = f"has the keys {', '.join(map(str, value)) or 'none'}", "a value or a list: ranges are of numbers"
        raise _bad("range", what, rule, fix="write a list", value=value)
    return axis_values(value)


def _most(axis: Axis) -> int:
    return min(axis.most, MAX_COUNT)


def _axis_schema(axis: Axis) -> dict[str, Any]:
    """JSON schema of an axis: one value, a list of them, and for numbers a range."""
    value = _value_schema(axis)
    forms = [value, {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}]
    return {"anyOf": forms + (_RANGES if axis.is_number else [])}


def _value_schema(axis: Axis) -> dict[str, Any]:
    if axis.kind is Kind.WORD:
        alone = {"enum": list(axis.single_words)}
        return {"anyOf": [alone, _joined_schema(axis)]} if axis.parts else alone
    if axis.kind is Kind.SWITCH:
        return {"type": "boolean"}
    number = {"type": "integer", "minimum": axis.least, "maximum": _most(axis)}
    return {"anyOf": [number, {"type": "null"}]} if axis.default is None else number


def _joined_schema(axis: Axis) -> dict[str, Any]:
    part = "|".join(axis.parts)
    return {"type": "string", "pattern": rf"^({part})(\+({part}))+$"}


def _range_schema(by: str, least: int) -> dict[str, Any]:
    number = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
    return {
        "type": "object",
        "properties": {"min": number, "max": number, by: number | {"minimum": least}},
        "required": ["min", "max", by],
        "additionalProperties": False,
    }


_RANGES = [_range_schema("step", 1), _range_schema("factor", 2)]
