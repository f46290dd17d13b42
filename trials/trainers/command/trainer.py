"""Any trainer, started by the command line of a template, which decides what it runs. Standard library only.

Command lines and arguments have placeholders: `{name}` is replaced by a value, `{name=value:TEXT}` by TEXT where the
value is this one and by nothing elsewhere; `{{` and `}}` are braces. The first form is rejected for a layout in which
the field has no value; the second may match `none`. Words are split as by a shell, and no shell is run; so is an
argument with a placeholder, and no other one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from search_spaces.errors import InputError, Problem, did_you_mean, format_value
from search_spaces.layouts.layout import AXES, LAYOUT_FIELDS, SEARCHED, Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import some_layers_recomputed
from search_spaces.rules.rule import engine_limits
from trials.trainers.base import Invocation, Trainer, train_iterations
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
    problems = [*_part_problems(template, "template"), *_quote_problems(template, "template")]
    if not problems and not shlex.split(_PART.sub("x", template)):
        fix = "for example {python} train.py --tp {tensor_parallel}"
        problems.append(_problem(template, "template", "is empty", "a command begins with its program", fix))
    if problems:
        raise InputError(problems[0])


def argument_problems(argument: str, key: str) -> Iterator[Problem]:
    """Each fault of an argument's placeholders; `key` is the argument's in the section `trainer`."""
    yield from _part_problems(argument, key)
    if placeholders_in(argument):
        yield from _quote_problems(argument, key)


def _problem(text: str, key: str, message: str, rule: str, fix: str) -> Problem:
    return Problem("template", message, rule, fix, key=key, value=text)


def _part_problems(text: str, key: str) -> Iterator[Problem]:
    for part in _PART.finditer(text):
        if part["stray"]:
            around = format_value(text[max(0, part.start() - 10) : part.end() + 10])
            message = f"has a {part['stray']} outside of a placeholder, in {around}"
            rule, fix = "a placeholder is {name} or {name=value:TEXT}", "write {{ and }} for literal braces"
            yield _problem(text, key, message, rule, fix)
        elif part["name"] and part["name"] not in PLACEHOLDERS:
            fix = _longer_name(part["name"]) or "write one of these names"
            rule = "one of " + ", ".join(PLACEHOLDERS)
            yield _problem(text, key, f"has the placeholder {{{part['name']}}}", rule, fix)
        elif part["value"] is not None and (broken := _broken_rule(part["name"], part["value"])):
            message = f"asks for {part['name']} {format_value(part['value'])}"
            yield _problem(text, key, message, broken, "correct the value before the colon")


def _quote_problems(text: str, key: str) -> Iterator[Problem]:
    try:
        shlex.split(_PART.sub("x", text))
        shlex.split(_PART.sub(lambda part: part["text"] or "x", text))
    except ValueError as error:
        fix = "close them, or write \\' for one of the text's"
        yield _problem(text, key, f"cannot be split into words: {error}", "quotes come in pairs", fix)


def _longer_name(name: str) -> str | None:
    """Suggest a longer name: `{tensor}` is likely the beginning of one."""
    longer = next((known for known in PLACEHOLDERS if known.startswith(name)), name)
    return did_you_mean(longer, [f"{{{known}}}" for known in PLACEHOLDERS])


def _broken_rule(name: str, value: str) -> str | None:
    """The rule of a field, a choice or a switch, that never has this value, so that its text would never appear."""
    default = getattr(Layout(), name, None)
    if isinstance(default, bool):
        return None if value in ("true", "false") else "true or false"
    if isinstance(default, str):
        try:
            Layout.from_json(Layout().to_json() | {name: value})
        except InputError as error:
            return error.problems[0].rule or "a value the field may have"
    return None


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


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    return Invocation(tuple(command_arguments(spec.trainer["template"], spec, python, folder)))


TRAINER = Trainer(
    rules={"command": (some_layers_recomputed, *engine_limits("command"))},
    required_keys=("template", "patterns"),
    optional_keys=("python", "log_rank", "observe"),
    has_command_line=True,
    placeholder_axes=tuple(name for name in SEARCHED if name != "num_nodes"),
    invocation=_invocation,
    is_observed=True,
    shows_layout=True,
)
