"""YAML documents with positions: every value knows its file and line.

The parser's events are turned into plain mappings, lists, numbers and text, so that no tag can name an object, no alias
can multiply a value and no key can occur twice. Plain scalars are read as in YAML 1.2: only true and false are
booleans, `08`, `1_000` and `12:30:00` stay text.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from search_spaces.errors import InputError, Problem, format_value
from search_spaces.plain_file import open_named, refusing_unreadable
from search_spaces.schema.unsafe_text import PRINTABLE, is_printable, looks_secret, secret_problem

MAX_BYTES = 2**20
MAX_DEPTH = 20
MAX_VALUES = 50_000

KeyPath = tuple[str | int, ...]


class SourceLocation(NamedTuple):
    """File and line of a value; `line` counts from 1 and is None for a value from the command line."""

    file: str | None
    line: int | None


@dataclass(frozen=True)
class Document:
    """A YAML mapping as plain data, and the location of every key and list element in it.

    `file` is its name in errors, `folder` the base of relative paths in it, `text` the YAML as read.
    """

    data: Mapping[str, Any]
    locations: Mapping[KeyPath, SourceLocation]
    file: str | None
    folder: Path
    text: str = ""

    def location(self, path: KeyPath) -> SourceLocation:
        """The location of this path, or of the nearest enclosing value."""
        while path and path not in self.locations:
            path = path[:-1]
        return self.locations.get(path, SourceLocation(self.file, None))

    def value(self, path: KeyPath) -> Any:
        """The value at this path; None where there is none."""
        value: Any = self.data
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def read_document(path: Path) -> Document:
    """The mapping in this file; InputError with the line of the first syntax error."""
    with refusing_unreadable(path), open_named(path) as stream:
        raw = stream.read(MAX_BYTES + 1)
    return parse_document(raw, str(path), path.absolute().parent)


def parse_document(raw: bytes, file: str | None, folder: Path) -> Document:
    """The mapping in `raw`; `file` is its name in errors, None where the caller fills it in."""
    text = _decode(raw, file)
    builder = _Builder(file)
    data = builder.root(text)
    if not isinstance(data, dict):
        what = "a list or a single value, where keys are expected"
        _refuse(what, SourceLocation(file, 1), rule=_KEYS, fix="write `key: value` lines")
    document = Document(data, builder.locations, file, folder, text)
    _require_safe(document)
    return document


class Override(NamedTuple):
    """A change to a document, `a.b=value` with the value in YAML, and its location: the option that gave it, None where
    a program did."""

    text: str
    source: str | None = "--set"


def with_overrides(document: Document, overrides: Iterable[Override | str]) -> Document:
    """The document after each change; a plain text is one of `--set`."""
    for override in overrides:
        document = _apply_override(document, Override(override) if isinstance(override, str) else override)
    _require_safe(document)
    return document


def format_key_path(path: KeyPath) -> str:
    """The path as text: `space.tensor_parallel[2]`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def parse_key_path(text: str) -> KeyPath:
    """The inverse of `format_key_path`."""
    parts = re.finditer(r"\[([0-9]+)\]|([^.\[\]]+)", text)
    return tuple(part[2] if part[1] is None else int(part[1]) for part in parts)


_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SCALARS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
}
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KEY_WITHOUT_COLON = re.compile(r"([A-Za-z_][\w-]{0,80})(?:\s(?!.*:(?:\s|$))(.+))?")
_YAML = "a file is YAML"
_KEYS = "a file holds keys and values"
_PLAIN = "a file is plain UTF-8"
_NO_TAGS = "tags (!) are not supported"
_SMALL = (
    "a configuration file is small",
    "check the file name; put lists of layouts into a table (space.candidates)",
)


def _decode(raw: bytes, file: str | None) -> str:
    if len(raw) > MAX_BYTES:
        rule, fix = _SMALL
        _refuse(f"larger than the limit of {MAX_BYTES} bytes", SourceLocation(file, None), rule=rule, fix=fix)
    if raw.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        _refuse(
            "begins with a byte order mark", SourceLocation(file, 1), rule=_PLAIN, fix="save the file as plain UTF-8"
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        _refuse(what, SourceLocation(file, line), rule=_PLAIN, fix="save the file as UTF-8")
    for line, content in enumerate(text.split("\n"), start=1):
        _require_plain_line(content, SourceLocation(file, line))
    return text


def _require_plain_line(content: str, location: SourceLocation) -> None:
    indent = content[: len(content) - len(content.lstrip(" \t"))]
    if "\t" in indent and content.strip():
        _refuse("a tab in the indentation", location, rule="YAML is indented with spaces", fix="indent with spaces")
    if content.startswith("%TAG"):
        _refuse("a %TAG directive", location, rule=_NO_TAGS, fix="remove it")
    if not is_printable(content.rstrip("\r").replace("\t", " ")):
        _refuse("a control character", location, rule=PRINTABLE, fix="remove it")


class _Builder:
    """Builds plain data from the parser's events and records where each value begins."""

    def __init__(self, file: str | None):
        self.file = file
        self.locations: dict[KeyPath, SourceLocation] = {}
        self._num_values = 0

    def root(self, text: str) -> Any:
        try:
            return self._only_document(yaml.parse(text, Loader=_Loader))
        except yaml.MarkedYAMLError as error:
            self._refuse_syntax(error, text)
        except yaml.YAMLError as error:
            _refuse(
                f"not YAML: {error}", SourceLocation(self.file, None), rule=_YAML, fix="`parlay init` writes an example"
            )

    def _refuse_syntax(self, error: yaml.MarkedYAMLError, text: str) -> NoReturn:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        if error.context_mark and "expected ':'" in (error.problem or ""):  # the mark of the problem is a line late
            line = error.context_mark.line + 1
            self._refuse_missing_colon(text, line)
        why = " ".join(part for part in (error.context, error.problem) if part)
        fix = _quotes_for(text, line) or "check its brackets, colons and indentation"
        _refuse(f"not YAML: {why}", SourceLocation(self.file, line), rule=_YAML, fix=fix)

    def _refuse_missing_colon(self, text: str, line: int) -> None:
        """Raise for a line that begins with a key; it repeats nothing but the key, and nothing that may be a secret."""
        *above, content = map(_without_comment, text.split("\n")[:line])
        if not (found := _KEY_WITHOUT_COLON.fullmatch(content)):
            return
        word, value = found[1], (found[2] or "").strip()
        location = SourceLocation(self.file, line)
        if looks_secret(content, None) or looks_secret(value, word):
            raise InputError(secret_problem(**location._asdict()))
        before = next(filter(None, reversed(above)), "").rstrip("|>+-0123456789 ")
        if not looks_secret(f"{before} {content}", None):  # a value may begin on the line after its key
            fix = f"write `{word}: ...`, the value after the colon" if value else f"write `{word}:`"
            _refuse(f"`{word}` needs a colon", location, rule=_KEYS, fix=fix)

    def _only_document(self, events: Iterator[Any]) -> Any:
        starts = (event for event in events if isinstance(event, yaml.DocumentStartEvent))
        if next(starts, None) is None:
            fix = "`parlay init` writes an example"
            _refuse("the file is empty", SourceLocation(self.file, 1), rule=_KEYS, fix=fix)
        data = self._value(next(events), events, ())
        if (second := next(starts, None)) is not None:
            fix = "remove the `---` and what follows"
            self._refuse(second, "a second document", "a file is one document", fix)
        return data

    def _value(self, event: Any, events: Iterator[Any], path: KeyPath) -> Any:
        self._require_plain_node(event, path)
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._refuse(event, f"more than {MAX_VALUES} values", *_SMALL)
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            what, rule = f"nested more than {MAX_DEPTH} deep", "the nesting depth is limited"
            self._refuse(event, what, rule, "remove brackets, or the indentation", path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(events, path)
        return self._mapping(events, path)

    def _require_plain_node(self, event: Any, path: KeyPath) -> None:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            what, rule = f"anchor or alias {event.anchor!r}", "anchors (&) and aliases (*) are not supported"
            fix = "write the value out, or quote text that begins with & or *"
            self._refuse(event, what, rule, fix, path, value=event.anchor)
        if event.tag is not None and not (isinstance(event, yaml.ScalarEvent) and event.implicit[1]):
            fix = "remove the tag, or quote text that begins with !"
            self._refuse(event, f"tag {event.tag!r}", _NO_TAGS, fix, path, value=event.tag)

    def _list(self, events: Iterator[Any], path: KeyPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            here = (*path, len(values))
            self.locations[here] = self._location(event)
            values.append(self._value(event, events, here))
        return values

    def _mapping(self, events: Iterator[Any], path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._key(event, path)
            here = (*path, key)
            if key in values:
                what = f"given twice, first on line {self.locations[here].line}"
                self._refuse(event, what, "keys are unique", "remove one of them", here, code="duplicate_key")
            self.locations[here] = self._location(event)
            values[key] = self._value(next(events), events, here)
        return values

    def _key(self, event: Any, path: KeyPath) -> str:
        self._require_plain_node(event, path)
        key = _scalar(event) if isinstance(event, yaml.ScalarEvent) else None
        if not isinstance(key, str):
            found = event.value if isinstance(event, yaml.ScalarEvent) else "a list or mapping"
            fix = "write a word before the colon, in quotes where it is one like true or 8"
            self._refuse(event, f"{found!r} as a key", "a key is a word", fix, path)
        return key

    def _refuse(self, event: Any, what: str, rule: str, fix: str, path: KeyPath = (), **details: Any) -> NoReturn:
        key = format_key_path(path) or None
        _refuse(what, self._location(event), rule=rule, fix=fix, key=key, **details)

    def _location(self, event: Any) -> SourceLocation:
        return SourceLocation(self.file, event.start_mark.line + 1)


def _without_comment(line: str) -> str:
    return f" {line}".replace("\t", " ").partition(" #")[0].strip()


def _quotes_for(text: str, line: int | None) -> str | None:
    """Advice to quote the value in this line, counted from 1, that begins with a YAML indicator; None elsewhere."""
    sign = None if line is None else _YAML_INDICATOR.search("\n".join(text.split("\n")[line - 1 : line]))
    return None if sign is None else f"put the whole value in quotes: text does not begin with {sign[1]}"


_YAML_INDICATOR = re.compile(r":\s+([{\[@`%])")


def _scalar(event: yaml.ScalarEvent) -> Any:
    """A plain scalar by YAML 1.2's core schema; quoted text unchanged."""
    text = event.value
    if not event.implicit[0]:
        return text
    if text in _SCALARS:
        return _SCALARS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _apply_override(document: Document, override: Override) -> Document:
    name, equals, text = override.text.partition("=")
    path, source = tuple(name.split(".")), override.source
    if looks_secret(override.text, None) or looks_secret(text, path[-1]):
        raise InputError(secret_problem(key=name if equals else "--set", file=source))
    if not equals or len(path) > MAX_DEPTH or not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in path):
        raise InputError.of(
            "override",
            f"{override.text!r} is not of the form key.key=value",
            key="--set",
            value=override.text,
            rule="--set takes key.key=value, the value as in the file",
            fix="for example --set search.max_trials=20",
            file=source,
        )
    builder = _Builder(source)
    try:
        value = builder.root(text) if text.strip() else None
    except InputError as error:
        quoted = f"if it is text, quote it: --set {shlex.quote(f'{name}={json.dumps(text)}')}"
        raise InputError(*(_override_problem(problem, override, quoted) for problem in error.problems)) from None
    from_here = SourceLocation(source, None)
    locations = {key: location for key, location in document.locations.items() if key[: len(path)] != path}
    locations |= {path[:depth]: document.locations.get(path[:depth], from_here) for depth in range(1, len(path))}
    locations |= {path: from_here} | {path + inner: from_here for inner in builder.locations}
    return replace(document, data=_with_value(document.data, path, value, override), locations=locations)


def _override_problem(problem: Problem, override: Override, quoted: str) -> Problem:
    """The problem of a value; invalid YAML may be text without its quotes."""
    fix, (name, _, text) = quoted if problem.rule == _YAML else problem.fix, override.text.partition("=")
    return Problem("override", problem.message, problem.rule, fix, key=name, value=text, file=override.source)


def _with_value(data: Mapping[str, Any], path: tuple[str, ...], value: Any, override: Override) -> dict[str, Any]:
    key, *rest = path
    if not rest:
        return {**data, key: value}
    inner = data.get(key)
    if inner is not None and not isinstance(inner, dict):
        name = override.text.partition("=")[0]
        above = name.removesuffix("." + ".".join(rest))
        raise InputError.of(
            "override",
            f"{above} is {format_value(inner)}, which has no keys to set",
            rule="--set can only set a key of a mapping",
            fix=f"set {above} as a whole, or write its keys out in the file",
            key=name,
            value=inner,
            file=override.source,
        )
    return {**data, key: _with_value(inner or {}, tuple(rest), value, override)}


def _require_safe(document: Document) -> None:
    problems = list(_unsafe_values(document, document.data, ()))
    if problems:
        raise InputError(*problems)


def _unsafe_values(document: Document, value: Any, path: KeyPath, name: str | None = None) -> Iterator[Problem]:
    """Values that look like a secret, without showing them, and text that a terminal would act on. `name` is the key
    of the value or of its list, or the option before it in a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _unsafe_text(key, name, path, document.location((*path, key)))
            yield from _unsafe_values(document, inner, (*path, key), key)
    elif isinstance(value, list):
        for index, (before, inner) in enumerate(zip([None, *value], value, strict=False)):
            option = before if isinstance(before, str) and before.startswith("--") else name
            yield from _unsafe_values(document, inner, (*path, index), option)
    elif isinstance(value, (str, int, float)):
        yield from _unsafe_text(str(value), name, path, document.location(path))


def _unsafe_text(text: str, name: str | None, path: KeyPath, location: SourceLocation) -> Iterator[Problem]:
    where: dict[str, Any] = {"key": format_key_path(path) or None, **location._asdict()}
    if looks_secret(text, name):
        yield secret_problem(**where)
    elif not is_printable(text):
        yield Problem(
            "control_character",
            f"{text!a} holds a control character",
            rule=PRINTABLE,
            fix="remove it",
            value=ascii(text),
            **where,
        )


def _refuse(message: str, location: SourceLocation, code: str = "yaml", **details: Any) -> NoReturn:
    raise InputError.of(code, message, **details, **location._asdict())
