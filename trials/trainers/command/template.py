"""Command lines and arguments with placeholders, for any trainer whose options can express a layout. Standard library
only.

`{name}` is replaced by a value, `{name=value:TEXT}` by TEXT where the value is this one and by nothing elsewhere; `{{`
and `}}` are braces. The first form is rejected for a layout in which the field has no value; the second may match
`none`. Words are split as by a shell, and no shell is run; so is an argument with a placeholder, and no other one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from search_spaces.errors import InputError, did_you_mean, format_value
from search_spaces.layouts.layout import AXES, LAYOUT_FIELDS, Layout
from search_spaces.model_shape import ModelShape
from trials.trainers.common.steps import train_iterations
from trials.trial import TrialSpec

_OTHER_NAMES = (
    "global_batch_size",
    "num_gpus",
    "gpus_per_node",
    "train_iterations",
    "seed",
    "python",
    "attempt_folder",
    "options",
)
_MODEL_FIELDS = tuple(ModelShape.__dataclass_fields__)
PLACEHOLDERS = (*LAYOUT_FIELDS, *_MODEL_FIELDS, *_OTHER_NAMES)

_MOST_LISTED = 8
_PART = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<name>\w+)(?:=(?P<value>[^:{}]*):(?P<text>[^{}]*))?\}|(?P<stray>[{}])")


def command_arguments(template: str, spec: TrialSpec, python: str, attempt_folder: str) -> list[str]:
    """The command of this trial, as a list of arguments; InputError for an invalid template, or one that does not fit
    this layout."""
    require_template(template)
    require_values(template, [spec.layout])
    values = placeholder_values(spec, python, attempt_folder)
    return shlex.split(_PART.sub(lambda part: _filled(part, values), template))


def filled_arguments(arguments: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Arguments of a script with these values of the placeholders; without the ones of which nothing is left."""
    return [word for argument in arguments for word in _argument_words(argument, values)]


def _argument_words(argument: str, values: Mapping[str, str]) -> list[str]:
    filled = _PART.sub(lambda part: _filled(part, values), argument)
    return shlex.split(filled) if placeholders_in(argument) else [filled]


def without_placeholders(word: str) -> str:
    """The argument whose braces stand for themselves."""
    return word.replace("{", "{{").replace("}", "}}")


def require_values(template: str, layouts: Sequence[Layout], key: str = "trainer.template") -> None:
    """InputError where a placeholder has no value in one of these layouts: a bucket of the trainer's own, or of a
    single data-parallel rank, which reduces no gradients. `key` is that of the text in the search file."""
    bare = {part["name"] for part in _PART.finditer(template) if part["value"] is None}
    for name in LAYOUT_FIELDS:
        without = [layout for layout in layouts if name in bare and getattr(layout, name) is None]
        if without:
            raise _without_value(template, name, without, layouts, key)


def _without_value(
    template: str, name: str, without: Sequence[Layout], layouts: Sequence[Layout], key: str
) -> InputError:
    values = sorted({value for layout in layouts if (value := getattr(layout, name)) is not None})
    others = f" and {len(without) - 1} more of {len(layouts)} layouts" if len(without) > 1 else ""
    by_value = "".join(f"{{{name}={value}:TEXT}}" for value in values[:_MOST_LISTED])
    return InputError.of(
        "template",
        f"has {{{name}}}, which has no value in {without[0].key}{others}",
        rule="{name} stands for a value in every layout; {name=value:TEXT} is left out where there is none",
        fix=f"write {by_value} in its place" if by_value else f"remove it, or give values in space.{name}",
        key=key,
        value=template,
    )


def require_distinct(texts: Mapping[str, str], layouts: Sequence[Layout], axes: Sequence[str], key: str) -> None:
    """InputError where two layouts differ in one of these axes and the trainer would be told the same.

    `texts` are all texts with placeholders; `key` is their key in the search file. Micro-batch and accumulation follow
    from each other where the global batch is told; the world and data parallelism come from the environment.
    """
    said = frozenset().union(*map(placeholders_in, texts.values()))
    computed = {name for name, others in _FOLLOWS_FROM.items() if others <= said}
    for name in axes:
        varies = len({getattr(layout, name) for layout in layouts}) > 1
        if varies and name not in computed and _is_chosen(name, layouts):
            told = {value: _told(texts.values(), name, value) for value in _values_with_effect(name, layouts)}
            if len(set(told.values())) < len(told):
                raise _untold(name, told, key)


_FOLLOWS_FROM = {
    "grad_accum_steps": {"global_batch_size", "micro_batch_size"},
    "micro_batch_size": {"global_batch_size", "grad_accum_steps"},
}
"""Placeholders that a trainer computes the field from."""


def _is_chosen(name: str, layouts: Sequence[Layout]) -> bool:
    """False where every layout has what its other fields imply, as interleaving the schedule of its name."""
    default = AXES[name].default
    return any(
        getattr(replace(layout, **{name: default}).canonical(), name) != getattr(layout, name) for layout in layouts
    )


def _values_with_effect(name: str, layouts: Sequence[Layout]) -> list[object]:
    found = {getattr(layout, name) for layout in layouts if layout.has_effect(name)}
    return sorted(found, key=lambda value: (value is not None, value))


def _told(texts: Iterable[str], name: str, value: object) -> tuple[str, ...]:
    """The text of each placeholder of this name for this value."""
    values = {name: _text(value)}
    return tuple(_filled(part, values) for text in texts for part in _PART.finditer(text) if part["name"] == name)


def _untold(name: str, told: Mapping[object, tuple[str, ...]], key: str) -> InputError:
    values = ", ".join(map(_text, list(told)[:_MOST_LISTED]))
    others = " and ".join(f"{{{other}}}" for other in sorted(_FOLLOWS_FROM.get(name, ())))
    instead = f" (or {others})" if others else ""
    return InputError.of(
        "template",
        f"says the same for several of {name} {values}" if any(told.values()) else f"has no {{{name}}}: it is {values}",
        rule="the trainer is told what differs between layouts, or it is credited with a layout that it does not train",
        fix=f"write {{{name}}}{instead} or {{{name}=value:TEXT}} for each value, or search a single value",
        key=key,
    )


def placeholder_values(spec: TrialSpec, python: str, attempt_folder: str) -> dict[str, str]:
    """The value of each placeholder as text: switches are true and false, a missing value is none."""
    known = {
        **spec.layout.to_json(),
        **asdict(spec.model),
        "global_batch_size": spec.global_batch_size,
        "num_gpus": spec.num_gpus,
        "gpus_per_node": spec.gpus_per_node,
        "train_iterations": train_iterations(spec),
        "seed": spec.seed,
        "python": shlex.quote(python),
        "attempt_folder": shlex.quote(attempt_folder),
        "options": shlex.join(spec.layout.of_trial.arguments),
    }
    return {name: _text(value) for name, value in known.items()}


def placeholders_in(template: str) -> frozenset[str]:
    """The placeholders' names in a template."""
    return frozenset(part["name"] for part in _PART.finditer(template) if part["name"])


def program_of(template: str) -> str | None:
    """The program that a valid template starts; None where a placeholder names it."""
    first = shlex.split(template)[0]
    return None if _PART.search(first) else first


def require_template(template: str) -> None:
    """InputError for an unknown placeholder, a value that its field never has, a stray brace, unbalanced quotes, an
    empty command."""
    for message, rule, fix in (*_part_faults(template), *_word_faults(template)):
        raise InputError.of("template", message, rule=rule, fix=fix, key="template", value=template)


def argument_faults(argument: str) -> Iterator[tuple[str, str, str]]:
    """(message, rule, fix) of each fault of an argument's placeholders."""
    yield from _part_faults(argument)
    if placeholders_in(argument):
        yield from _quote_faults(argument)


def _part_faults(template: str) -> Iterator[tuple[str, str, str]]:
    for part in _PART.finditer(template):
        if part["stray"]:
            around = template[max(0, part.start() - 10) : part.end() + 10]
            yield (
                f"has a {part['stray']} outside of a placeholder, in {format_value(around)}",
                "a placeholder is {name} or {name=value:TEXT}",
                "write {{ and }} for literal braces",
            )
        elif part["name"] and part["name"] not in PLACEHOLDERS:
            yield _unknown_placeholder(part["name"])
        elif part["value"] is not None:
            yield from _impossible_value(part["name"], part["value"])


def _word_faults(template: str) -> Iterator[tuple[str, str, str]]:
    faults = [*_quote_faults(template)]
    yield from faults
    if not faults and not shlex.split(_PART.sub("x", template)):
        yield "is empty", "a command begins with its program", "for example {python} train.py --tp {tensor_parallel}"


def _quote_faults(template: str) -> Iterator[tuple[str, str, str]]:
    try:
        shlex.split(_PART.sub("x", template))
        shlex.split(_PART.sub(lambda part: part["text"] or "x", template))
    except ValueError as error:
        yield (
            f"cannot be split into words: {error}",
            "quotes come in pairs",
            "close them, or write \\' for one of the text's",
        )


def _unknown_placeholder(name: str) -> tuple[str, str, str]:
    """Suggest a longer name: `{tensor}` is likely the beginning of one."""
    longer = next((known for known in PLACEHOLDERS if known.startswith(name)), name)
    fix = did_you_mean(longer, [f"{{{known}}}" for known in PLACEHOLDERS]) or "write one of these names"
    return f"has the placeholder {{{name}}}", "one of " + ", ".join(PLACEHOLDERS), fix


def _impossible_value(name: str, value: str) -> Iterator[tuple[str, str, str]]:
    """Reject a value that the field, a choice or a switch, never has: its text would never appear."""
    default = getattr(Layout(), name, None)
    if isinstance(default, bool) and value not in ("true", "false"):
        yield f"asks for {name} {format_value(value)}", "true or false", "correct the value before the colon"
    elif isinstance(default, str):
        try:
            Layout.from_json(Layout().to_json() | {name: value})
        except InputError as error:
            rule = error.problems[0].rule or "a value the field may have"
            yield f"asks for {name} {format_value(value)}", rule, "correct the value before the colon"


def _filled(part: re.Match[str], values: Mapping[str, str]) -> str:
    if part["brace"]:
        return part["brace"][0]
    value = values[part["name"]]
    if part["value"] is None:
        return value
    return part["text"] if value == part["value"] else ""


def _text(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
