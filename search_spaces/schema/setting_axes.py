"""Keys `env` and `launch` of the search file: axes over environment variables and options of the launch line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.layouts.axes import MAX_VALUES, axis_values
from search_spaces.layouts.settings import ENV, LAUNCH, LAUNCH_OPTIONS, VARIABLE_NAME, Settings, combinations

MAX_NAMES = 32
MAX_LENGTH = 1024
_NO_BLANKS = re.compile(r"[A-Za-z0-9_.,:=*/+-]{1,1024}")


def _text_of(value: Any) -> str | None:
    """A variable's value as text; InputError for what YAML does not have as text or a whole number."""
    if value is None or (isinstance(value, str) and len(value) <= MAX_LENGTH):
        return value
    if type(value) is int:
        return str(value)
    rule = f"text of at most {MAX_LENGTH} characters, a whole number, or null for a variable that is not set"
    raise InputError.of("type", f"is {format_value(value)}", rule=rule, fix="put it in quotes", value=value)


def _texts(value: Any) -> tuple[str | None, ...]:
    """Distinct values of an axis as text."""
    texts = tuple(_text_of(each) for each in axis_values(value))
    return axis_values(texts)  # 1 and "1" are one value


def _known_variables(given: dict[str, Any]) -> dict[str, Any]:
    _require_few(given)
    for name in given:
        if not VARIABLE_NAME.fullmatch(name):
            rule = "a variable's name is letters, digits and _, and begins with no digit"
            raise InputError.of("variable", f"is named {name[:80]!r}", rule=rule, fix="rename it", value=name)
    return given


def _known_options(given: dict[str, Any]) -> dict[str, Any]:
    for name, values in given.items():
        if name not in LAUNCH_OPTIONS:
            rule, fix = "one of " + ", ".join(LAUNCH_OPTIONS), did_you_mean(name, LAUNCH_OPTIONS) or "remove it"
            raise InputError.of("unknown_key", f"unknown option {name[:80]!r}", rule=rule, fix=fix, value=name)
        for value in values if isinstance(values, tuple) else (values,):
            if value is not None:
                require_option_value(name, value)
    return given


def require_option_value(name: str, value: str) -> None:
    """InputError unless the launch option of this name takes the value."""
    words = LAUNCH_OPTIONS[name].words
    if not (value in words if words else _NO_BLANKS.fullmatch(value)):
        rule = "one of " + ", ".join(words) if words else "letters, digits and _ . , : = * / + -"
        fix = did_you_mean(value, words) or "write one of these, or null for the launcher's own"
        raise InputError.of("choice", f"is {value!r}", rule=rule, fix=fix, key=name, value=value)


def _require_few(given: Mapping[str, Any]) -> None:
    if len(given) > MAX_NAMES:
        raise InputError.of("bounds", f"has {len(given)} variables", rule=f"at most {MAX_NAMES}", fix="name fewer")


_VALUE = {"anyOf": [{"type": "string", "maxLength": MAX_LENGTH}, {"type": "integer"}, {"type": "null"}]}
_AXIS = {"anyOf": [*_VALUE["anyOf"], {"type": "array", "items": _VALUE, "minItems": 1, "uniqueItems": True}]}


def _schema(value: Mapping[str, Any], names: Iterable[str] | None) -> WithJsonSchema:
    title = "axes by name" if value is _AXIS else "values by name"
    if names is None:
        named: dict[str, Any] = {
            "propertyNames": {"pattern": f"^{VARIABLE_NAME.pattern}$"},
            "additionalProperties": value,
        }
    else:
        named = {"properties": dict.fromkeys(names, value), "additionalProperties": False}
    return WithJsonSchema({"anyOf": [{"type": "object", "title": title, **named}, {"type": "null"}]})


_Axis = Annotated[tuple[str | None, ...], BeforeValidator(_texts)]
_Value = Annotated[str | None, BeforeValidator(_text_of)]
EnvAxes = Annotated[dict[str, _Axis] | None, AfterValidator(lambda v: v and _known_variables(v)), _schema(_AXIS, None)]
LaunchAxes = Annotated[
    dict[str, _Axis] | None, AfterValidator(lambda v: v and _known_options(v)), _schema(_AXIS, LAUNCH_OPTIONS)
]
EnvValues = Annotated[
    dict[str, _Value] | None, AfterValidator(lambda v: v and _known_variables(v)), _schema(_VALUE, None)
]
LaunchValues = Annotated[
    dict[str, _Value] | None, AfterValidator(lambda v: v and _known_options(v)), _schema(_VALUE, LAUNCH_OPTIONS)
]

ENV_FIELD = Field(
    default=None,
    description="Environment variables of the ranks by name, each an axis: {NCCL_ALGO: [null, Ring]}. null: not set,"
    " whatever the ranks would inherit.",
)
LAUNCH_FIELD = Field(
    default=None,
    description="Options of the launch line by name, each an axis; null: the launcher's own. "
    + " ".join(
        f"{name}: {option.description}" + (f" One of {', '.join(option.words)}." if option.words else "")
        for name, option in LAUNCH_OPTIONS.items()
    ),
)


def setting_texts(env: Mapping[str, Any] | None, launch: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Values of the axis `settings`: each combination of these axes; None without any."""
    if not env and not launch:
        return None
    axes = [*(env or {}).values(), *(launch or {}).values()]
    if (total := prod(map(len, axes))) > MAX_VALUES:
        rule = f"at most {MAX_VALUES} combinations of variables and launch options"
        raise InputError.of("bounds", f"have {total} combinations", rule=rule, fix="give fewer values", key="env")
    return tuple(combinations(env or {}, launch or {}))


def baseline_settings(
    env: Mapping[str, str | None] | None, launch: Mapping[str, str | None] | None, searched: Iterable[str]
) -> str:
    """Settings of a baseline: its own, else the only value that the search has; a searched variable with several
    values is not set, and an option the launcher's own."""
    texts = [Settings.parse(text).by_axis for text in searched]
    alone: dict[str, str | None] = {}
    for name in dict.fromkeys(name for values in texts for name in values):
        found = {values.get(name) for values in texts}
        alone[name] = found.pop() if len(found) == 1 else None
    given = {ENV + name: value for name, value in (env or {}).items()}
    values = alone | given | {LAUNCH + name: value for name, value in (launch or {}).items()}
    options = {n.removeprefix(LAUNCH): v for n, v in values.items() if n.startswith(LAUNCH) and v is not None}
    return Settings({n.removeprefix(ENV): v for n, v in values.items() if n.startswith(ENV)}, options).text
