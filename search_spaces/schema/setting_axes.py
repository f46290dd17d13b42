"""Keys `env`, `launch` and `options` of the search file: axes over environment variables, options of the launch line
and options of the trainer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.layouts.axes import MAX_VALUES, axis_values
from search_spaces.layouts.settings import (
    ENV,
    IS_GIVEN,
    LAUNCH,
    LAUNCH_OPTIONS,
    OPTION_NAME,
    OPTIONS,
    VARIABLE_NAME,
    Settings,
    combinations,
    without_absent,
)

SETTING_KEYS = tuple(prefix.removesuffix(".") for prefix in (ENV, LAUNCH, OPTIONS))
"""Keys of a space or baseline that give settings."""
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


def _option_text(name: str, value: Any) -> str | None:
    """A trainer's option as text. On its command line true is an option without a value."""
    if type(value) is bool and name.startswith("--"):
        if value:
            return IS_GIVEN
        rule, fix = "true for an option without a value, null where it is not given", "write null"
        raise InputError.of("type", "is false", rule=rule, fix=fix, key=name, value=value)
    if type(value) is bool:
        return str(value).lower()
    try:
        return _text_of(str(value) if type(value) is float else value)
    except InputError as error:
        raise InputError(*(replace(problem, key=name) for problem in error.problems)) from None


def _option_axes(given: Any) -> Any:
    """Axes over a trainer's options as texts."""
    values = _named_options(given)
    return {name: axis_values(tuple(_option_text(name, v) for v in axis_values(of))) for name, of in values.items()}


def _option_values(given: Any) -> Any:
    return {name: _option_text(name, value) for name, value in _named_options(given).items()}


def _named_options(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        rule, fix = "options by name", "write {--name: [null, value]}"
        raise InputError.of("type", f"is {format_value(given)}", rule=rule, fix=fix, value=given)
    _require_few(given)
    for name in given:
        if not (isinstance(name, str) and OPTION_NAME.fullmatch(name)):
            rule = "--name for an option of the trainer's command line, a.b for a key of its configuration"
            raise InputError.of("option", f"is named {str(name)[:80]!r}", rule=rule, fix="rename it", value=name)
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
        raise InputError.of("bounds", f"has {len(given)} names", rule=f"at most {MAX_NAMES}", fix="name fewer")


_VALUE = {"anyOf": [{"type": "string", "maxLength": MAX_LENGTH}, {"type": "integer"}, {"type": "null"}]}
_OF_OPTION = {"anyOf": [*_VALUE["anyOf"], {"type": "number"}, {"type": "boolean"}]}


def _axis_of(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"anyOf": [*value["anyOf"], {"type": "array", "items": value, "minItems": 1, "uniqueItems": True}]}


def _schema(value: Mapping[str, Any], names: Iterable[str] | re.Pattern[str]) -> WithJsonSchema:
    """JSON schema of values by name: of any name of a form, or of these names."""
    named: dict[str, Any] = (
        {"propertyNames": {"pattern": f"^{names.pattern}$"}, "additionalProperties": value}
        if isinstance(names, re.Pattern)
        else {"properties": dict.fromkeys(names, value), "additionalProperties": False}
    )
    return WithJsonSchema({"anyOf": [{"type": "object", "title": "values by name", **named}, {"type": "null"}]})


_Axis = Annotated[tuple[str | None, ...], BeforeValidator(_texts)]
_Value = Annotated[str | None, BeforeValidator(_text_of)]
_are_variables = AfterValidator(lambda given: given and _known_variables(given))
_are_options = AfterValidator(lambda given: given and _known_options(given))
EnvAxes = Annotated[dict[str, _Axis] | None, _are_variables, _schema(_axis_of(_VALUE), VARIABLE_NAME)]
LaunchAxes = Annotated[dict[str, _Axis] | None, _are_options, _schema(_axis_of(_VALUE), LAUNCH_OPTIONS)]
OptionAxes = Annotated[
    dict[str, tuple[str | None, ...]] | None,
    BeforeValidator(lambda given: given and _option_axes(given)),
    _schema(_axis_of(_OF_OPTION), OPTION_NAME),
]
EnvValues = Annotated[dict[str, _Value] | None, _are_variables, _schema(_VALUE, VARIABLE_NAME)]
LaunchValues = Annotated[dict[str, _Value] | None, _are_options, _schema(_VALUE, LAUNCH_OPTIONS)]
OptionValues = Annotated[
    dict[str, str | None] | None,
    BeforeValidator(lambda given: given and _option_values(given)),
    _schema(_OF_OPTION, OPTION_NAME),
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
OPTIONS_FIELD = Field(
    default=None,
    description="Options of the trainer by name, each an axis, passed on as they are: --name of its command line (true:"
    " without a value; null: not given), or a.b of its configuration (null: as in trainer.template).",
)


def setting_texts(section: Any) -> tuple[str, ...] | None:
    """Values of the axis `settings`: each combination of a space's axes; None without any."""
    axes = _by_axis(section)
    if not axes:
        return None
    if (total := prod(map(len, axes.values()))) > MAX_VALUES:
        rule = f"at most {MAX_VALUES} combinations of variables, launch options and the trainer's options"
        raise InputError.of("bounds", f"have {total} combinations", rule=rule, fix="give fewer values", key="env")
    return tuple(combinations(axes))


def baseline_settings(section: Any, searched: Iterable[str]) -> str:
    """Settings of a baseline: its own, else the only value that the search has; a searched variable with several
    values is not set, and an option the launcher's or the trainer's own."""
    texts = [Settings.parse(text).by_axis for text in searched]
    alone: dict[str, str | None] = {}
    for name in dict.fromkeys(name for values in texts for name in values):
        found = {values.get(name) for values in texts}
        alone[name] = found.pop() if len(found) == 1 else None
    return Settings.of_axes(without_absent(alone | _by_axis(section))).text


def _by_axis(section: Any) -> dict[str, Any]:
    """The values of a section by the names of `Settings.by_axis`."""
    return {f"{key}.{name}": value for key in SETTING_KEYS for name, value in (getattr(section, key) or {}).items()}
