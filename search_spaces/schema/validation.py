"""Validation of a section against its schema: all mistakes at once, with file, line, key, value, rule and fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo

from search_spaces.errors import InputError, Problem, did_you_mean, format_value
from search_spaces.schema.yaml_document import Document, KeyPath, format_key_path, parse_key_path

FILL_IN = "FILL_IN"
"""Placeholder for a value that only the user knows; no field accepts it."""


MAX_PROBLEMS = 100
"""Mistakes of one file that are reported."""


class Section(BaseModel):
    """Base of every section: strict types, no unknown key, frozen. Each field's description is its documentation.

    A validator raises InputError; its problem's `key` is relative to the section, and file and line are filled in.
    `refused` maps a key that users may expect here to the reason why it is not accepted, `hints` of the whole file a
    key that users may write anywhere to the one that is meant.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    refused: ClassVar[Mapping[str, str]] = {}
    hints: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads, with all defaults that are not None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The inverse of `to_json`: InputError for anything else, ValueError where a default is missing."""
        section = restore(cls, data)
        for key in section.to_json():
            if key not in data:
                raise ValueError(f"{cls.__name__} lacks {key}")
        return section


S = TypeVar("S", bound=Section)


def validate(section: type[S], document: Document) -> S:
    """The document as this section; InputError with every problem found, in the order of the file."""
    left = [_located(_LEFT, path, document) for path in _placeholders(document.data, ())]
    try:
        found = section.model_validate(document.data, context={"folder": document.folder})
        if left:
            raise InputError(*left)
        return found
    except ValidationError as error:
        details = sorted(
            error.errors(), key=lambda detail: document.location(_path_in(document, detail["loc"])).line or 0
        )
        problems = [
            _with_placeholder_fix(p) for detail in details[:MAX_PROBLEMS] for p in _problems(detail, section, document)
        ]
        named = {p.key for p in problems}
        problems += [problem for problem in left if problem.key not in named]
        problems.sort(key=lambda p: (p.file or "", p.line or 0))
        raise InputError(*problems, *_more(len(details) - MAX_PROBLEMS, document)) from None


_LEFT = Problem("value", f"is {FILL_IN!r}", rule="only you know this value", fix="fill this in", value=FILL_IN)


def _placeholders(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Paths of the values that are left to fill in."""
    if value == FILL_IN:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from _placeholders(each, (*path, key))


def _more(count: int, document: Document) -> Iterator[Problem]:
    if count > 0:
        fix = "correct the reported mistakes first"
        yield Problem("more", f"{count} more mistakes", fix=fix, file=document.file)


def restore(section: type[S], data: Any) -> S:
    """The section that `model_dump(mode="json", by_alias=True)` wrote; InputError for anything else."""
    return validate(section, Document(data, {}, None, Path()))


def folder_from_context(info: ValidationInfo) -> Path:
    """Base folder of relative paths in the file being validated."""
    return (info.context or {}).get("folder", Path())


def _problems(detail: Any, section: type[Section], document: Document) -> Iterator[Problem]:
    path = _path_in(document, detail["loc"])
    raised = detail.get("ctx", {}).get("error")
    if isinstance(raised, InputError):
        for problem in raised.problems:
            yield _located(problem, path, document)
    elif detail["type"] == "extra_forbidden":
        yield _located(_unknown_key(path, section), (), document)
    else:
        yield _located(_pydantic_problem(detail), path, document)


def _with_placeholder_fix(problem: Problem) -> Problem:
    """The problem itself; for the FILL_IN placeholder, with the rule as its fix."""
    return replace(problem, fix=f"fill this in: {problem.rule}") if problem.value == FILL_IN else problem


def _path_in(document: Document, location: KeyPath) -> KeyPath:
    """The path without indices of lists that the file does not have: a single value may stand for a list."""
    path = location
    while path and isinstance(path[-1], int) and not isinstance(document.value(path[:-1]), list):
        path = path[:-1]
    return path


def _located(problem: Problem, path: KeyPath, document: Document) -> Problem:
    """The problem with its full key, and that key's file and line unless the problem names another file."""
    if problem.file is not None:
        return problem
    above = format_key_path(path)
    key = problem.key or above
    if above and key != above and not key.startswith((above + ".", above + "[")):
        key = f"{above}.{key}"
    whole = parse_key_path(key) if key != above else path
    location = document.location(whole)
    return replace(problem, key=key or None, file=location.file, line=location.line)


def _unknown_key(path: KeyPath, root: type[Section]) -> Problem:
    section = _section_at(root, path[:-1])
    key = str(path[-1])
    if key in section.refused:
        rule = section.refused[key]
        return Problem("refused_key", "is not accepted here", rule=rule, fix="remove it", key=format_key_path(path))
    fix = _suggestion(key, section, root) or "remove it"
    rule = f"near keys: {', '.join(difflib.get_close_matches(key.lower(), list(_keys(section)), n=3, cutoff=0.0))}"
    return Problem("unknown_key", f"unknown key {key!r}", rule=rule, fix=fix, key=format_key_path(path), value=key)


def _suggestion(key: str, section: type[Section], root: type[Section]) -> str | None:
    """The same key in another section, else a similar one here or in another section."""
    # A key of several sections is suggested in the required one: space rather than baseline.
    sections = sorted(sections_of(root), key=lambda named: _keys(root)[named[0]].is_required())
    elsewhere = {inner: f"{name}.{inner}" for name, found in sections for inner in _keys(found)} | dict(root.hints)
    if key in elsewhere:
        return f"did you mean {elsewhere[key]}?"
    close = difflib.get_close_matches(key.lower(), list(elsewhere), n=1)
    return did_you_mean(key, _keys(section)) or (f"did you mean {elsewhere[close[0]]}?" if close else None)


def _section_at(root: type[Section], path: KeyPath) -> type[Section]:
    for key in path:
        root = dict(sections_of(root)).get(str(key), root)
    return root


def sections_of(section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """The sections directly inside this one, by key."""
    for key, field in _keys(section).items():
        for candidate in _types_in(field.annotation):
            if isinstance(candidate, type) and issubclass(candidate, Section):
                yield key, candidate


def _types_in(annotation: Any) -> Iterator[Any]:
    """The type itself, and the types that it is made of."""
    yield annotation
    for inner in get_args(annotation):
        yield from _types_in(inner)


def _keys(section: type[Section]) -> dict[str, Any]:
    return {field.alias or name: field for name, field in section.model_fields.items()}


_TYPES = {
    "missing": ("missing_key", "required, but missing", "add it"),
    "int_type": ("type", "a whole number", "write digits only, without a point, quotes or underscores"),
    "int_from_float": ("type", "a whole number", "write it without a fraction or exponent"),
    "float_type": ("type", "a number", "write it without quotes"),
    "finite_number": ("bounds", "a finite number", "write a number"),
    "bool_type": ("type", "true or false", "write true or false; yes, no, on and off are plain text"),
    "string_type": ("type", "text", "put it in quotes if it is meant as text"),
    "tuple_type": ("type", "a list", "write [a, b]"),
    "list_type": ("type", "a list", "write [a, b]"),
    "dict_type": ("type", "keys and values", "write `key: value` lines below it, or remove the key"),
    "model_type": ("type", "keys and values", "write `key: value` lines below it, or remove the key"),
    "greater_than": ("bounds", "more than {gt}", "write a larger number, or remove the key"),
    "greater_than_equal": ("bounds", "at least {ge}", "write a larger number, or remove the key"),
    "less_than": ("bounds", "less than {lt}", "write a smaller number"),
    "less_than_equal": ("bounds", "at most {le}", "write a smaller number"),
    "string_too_long": ("bounds", "at most {max_length} characters", "write less"),
    "string_too_short": ("bounds", "at least {min_length} characters", "write something, or remove the key"),
    "literal_error": ("choice", "one of {expected}", "write one of these"),
    "enum": ("choice", "one of {expected}", "write one of these"),
}


_PERCENT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?%")


def _pydantic_problem(detail: Any) -> Problem:
    """pydantic's error for a wrong type, size or choice as a problem with rule and fix."""
    value, context = detail["input"], detail.get("ctx", {})
    if detail["type"] not in _TYPES:  # pydantic's message may contain braces, so it is not formatted
        return Problem("value", f"is {format_value(value)}", rule=detail["msg"], fix="correct the value", value=value)
    code, rule, fix = _TYPES[detail["type"]]
    if code == "missing_key":
        return Problem(code, rule, fix=fix)
    if detail["type"] == "float_type" and isinstance(value, str) and (share := _PERCENT.fullmatch(value)):
        fix = f"write {float(share[1]) / 100:g}"
    rule = rule.format(**context)
    if code == "choice":
        rule = rule.replace(" or ", ", ").replace("'", "")
        fix = did_you_mean(value, rule.removeprefix("one of ").split(", ")) or fix
    return Problem(code, f"is {format_value(value)}", rule=rule, fix=fix, value=value)
