"""Settings: the named values of a command or a configuration, read against the options of its trainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeVar

from orchestrator.config.importers.bash.placeholders import has_placeholder_form
from search_spaces.errors import InputError, Problem, format_value
from search_spaces.schema.unsafe_text import hidden, is_printable
from search_spaces.schema.validation import FILL_IN
from search_spaces.schema.yaml_document import Document, KeyPath
from trials.trainers.table import Table

T = TypeVar("T")
CODE = "import"
"""Code of the problems with a file that `parlay init --from` reads."""
DO_WITHOUT = "remove it from a copy of the file if a search without it helps you"
"""Fix for an option or value that no search file expresses."""

FieldReaders = Mapping[str, Callable[["FileSettings"], Any]]
"""Reader of each field of the search file; None for a value that the settings do not have."""


class ValueRule(NamedTuple):
    """Rule for a setting that is read: whether a search file expresses its value; otherwise the rule and the fix."""

    name: str
    is_expressed: Callable[[FileSettings], bool]
    rule: str
    fix: str = DO_WITHOUT


ValueRules = tuple[ValueRule, ...]


@dataclass(frozen=True)
class Setting:
    """A value as the file has it: an option's text, True for a flag, or a value of YAML or JSON.

    `line` is where it is written, `variable` the variable that holds it there. `doubt` is the reason why the value is
    not known, for example that the script does not set it. `origin` says where it is from if not from the file itself.
    `words` are those of a command: the option, and the value's. `key` is its name in the file, where it is read by
    another.
    """

    value: Any
    line: int | None = None
    variable: str | None = None
    doubt: str | None = None
    origin: str | None = None
    words: tuple[str, ...] = ()
    key: str | None = None


class FileSettings:
    """The settings of a file, the notes made while reading them, and what was read for which field.

    `in_doubt` are the fields that a setting decides whose value is not known: no default stands for them. Where it
    `leaves_open`, another file of the training decides absent settings, and null stands for the trainer's default.
    """

    def __init__(
        self,
        given: Mapping[str, Setting],
        table: Table,
        notes: list[str] | None = None,
        leaves_open: bool = False,
    ):
        self.given = given
        self.leaves_open = leaves_open
        self.table = table
        self.notes: list[str] = [] if notes is None else notes
        self.in_doubt: list[str] = []
        self._asked: list[str] = []

    def problems(self, rules: ValueRules = ()) -> Iterator[Problem]:
        """Problems with the settings that no search file expresses, or not with their value, where that is known."""
        for name, setting in self.given.items():
            is_of_adapters = self.table.is_of_unknown_adapters(name)  # whatever they are, and be it one
            is_known = setting.doubt is None or is_of_adapters
            is_off = _is_off(setting.value) and not (is_of_adapters and str(setting.value) == "1")
            reason = self.table.refusal(name) if is_known and not is_off else None
            if reason is not None:
                yield self.problem(name, rule=reason, fix=DO_WITHOUT)
        for name, is_expressed, rule, fix in rules:
            if self.has(name) and not self.is_in_doubt(name) and not is_expressed(self):
                yield self.problem(name, rule, fix)

    def unread(self, kept: Container[str] = ()) -> list[str]:
        """Settings that no reader has asked for, all but the `kept` ones, those that are empty, and those that would be
        refused if they were on."""
        return [
            name
            for name, setting in self.given.items()
            if name not in self._asked and name not in kept and setting.value not in (None, "", [], {})
            if setting.doubt is not None or self.table.refusal(name) is None
        ]

    def not_read(self, kept: Container[str] = ()) -> Iterator[str]:
        """The note that names all unread settings but the `kept` ones, by name only, as a value may be a secret."""
        if names := self.unread(kept):
            yield f"Not read: {', '.join(dict.fromkeys(map(self.key, names)))}."

    def in_template(self) -> Iterator[str]:
        """The note on unread settings that stay in a template, by section: by name at the top and beside settings that
        are read, by number in a section of which nothing is read."""
        sections: dict[str, list[str]] = {}
        for name in self.unread():
            section, _, last = name.rpartition(".")
            sections.setdefault(section, []).append(last)
        shown = sections.pop("", [])
        for section, names in sections.items():
            is_read = any(asked.startswith(f"{section}.") for asked in self._asked)
            several = f"{section} ({', '.join(names) if is_read else len(names)})"
            shown.append(f"{section}.{names[0]}" if len(names) == 1 else several)
        if shown:
            yield f"Not read, kept in the template: {', '.join(shown)}."

    def words_of(self, names: Container[str]) -> Iterator[str]:
        """The words of a command's options with these names, as given; FILL_IN for a value that is not known, or may be
        a secret."""
        for name, setting in self.given.items():
            if name in names:
                option, *values = setting.words
                yield option
                is_told = setting.doubt is None and self.shown(name) == setting.value
                yield from values if is_told and all(map(is_printable, values)) else (FILL_IN,)

    @property
    def unnamed(self) -> list[str]:
        """Options whose name is not known, such as `--$DTYPE`; each may be any flag."""
        return [name for name in self.given if re.search(r"[$`]", name)]

    def problem(self, name: str, rule: str, fix: str = "correct it in the file") -> Problem:
        """The problem that this setting breaks a rule."""
        setting = self.given[name]
        is_set = setting.value is True
        value = None if is_set else self.shown(name)
        message = "cannot be read" if is_set else f"is {format_value(value):.60}"
        return Problem(CODE, message, rule, fix, key=self.key(name), value=value, line=setting.line)

    def key(self, name: str) -> str:
        """The setting as its file names it."""
        given = self.given.get(name)
        return (given.key if given else None) or self.table.prefix + name

    def has(self, *names: str) -> bool:
        """True if one of these settings is given and is not false or null."""
        self._asked += names
        return any(found.value not in (None, False) for name in names if (found := self.given.get(name)))

    def value(self, name: str) -> Any:
        """The setting's value; None where it is absent or null, and, with a note, where it is not known."""
        self._asked.append(name)
        setting = self.given.get(name)
        if setting is None or setting.doubt is None:
            return setting.value if setting else None
        is_flag, shown = len(setting.words) == 1, f"{format_value(self.shown(name)):.60}"
        given = setting.words[0] if is_flag else f"{self.key(name)} is {shown}, which"
        self.notes.append(f"{given} was not used: {setting.doubt}.")
        return None

    def shown(self, name: str) -> Any:
        """The setting's value for a message."""
        setting = self.given[name]
        return hidden(setting.value, name, setting.variable)

    def text(self, name: str) -> str | None:
        """The setting's text; None as for `value`. InputError for anything but text and numbers."""
        value = self.value(name)
        if value is None or (isinstance(value, (str, int, float)) and not isinstance(value, bool)):
            return None if value is None else str(value)
        raise InputError(self.problem(name, rule="a word or a number"))

    def listed(self, name: str) -> list[Any]:
        """The setting's list; a value that is none is its only entry."""
        value = self.value(name)
        return value if isinstance(value, list) else [] if value is None else [value]

    def words(self, name: str) -> list[str]:
        """The words of the setting's list, which may be written as text: `[a, b]`, `a b`."""
        value = self.value(name)
        given = value if isinstance(value, list) else re.findall(r"[\w+.-]+", str("" if value is None else value))
        return [str(each) for each in given]

    def flag(self, name: str) -> bool:
        """The setting as true or false; false where it is absent."""
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return self.chosen(name, words, False, "true or false")

    def count(self, *names: str) -> int | None:
        """The whole number of the first of these settings that is given."""
        for name in names:
            value = self.value(name)
            if value is None:
                if self.is_in_doubt(name):
                    return None
                continue
            if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,11}", str(value)):
                raise InputError(self.problem(name, rule="a whole number from 1 to 999999999999"))
            return int(value)
        return None

    def whole(self, name: str) -> int | None:
        """The setting's number, written with or without a point; None, with a note, where it is not whole."""
        value = self.value(name)
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError):
            raise InputError(self.problem(name, rule="a number")) from None
        if number is not None and not number.is_integer():
            self.notes.append(f"{self.key(name)} was left out: it is no whole number.")
            return None
        return None if number is None else int(number)

    def default(self, name: str, value: Any) -> Any:
        """The trainer's default where it counts: not for a value in doubt, nor where absent settings are open."""
        is_open = self.leaves_open and not self.is_null(name)
        return None if is_open or self.is_in_doubt(name) else value

    def chosen(self, name: str, values: Mapping[str, T], default: T, rule: str = "") -> T:
        """Value that the setting's word stands for, `default` where it is absent.

        Words are in lower case. InputError, by default with the words as the rule, for a word without meaning.
        """
        value = self.value(name)
        if value is None:
            return default
        if (word := str(value).lower()) not in values:
            raise InputError(self.problem(name, rule or "a known word", f"choose one of {', '.join(values)}"))
        return values[word]

    def is_in_doubt(self, name: str) -> bool:
        """True for a setting that is given by a value that is not known."""
        return name in self.given and self.given[name].doubt is not None

    def is_null(self, name: str) -> bool:
        """True for a setting that is given as null."""
        return name in self.given and self.value(name) is None and not self.is_in_doubt(name)

    @contextmanager
    def tracked(self) -> Iterator[list[str]]:
        """Collects the names of the settings that are asked for inside, whether they are given or not."""
        before, self._asked = self._asked, []
        try:
            yield self._asked
        finally:
            self._asked = [*before, *self._asked]

    def origin(self, names: list[str]) -> str:
        """Origin of a value that these settings decide: the given ones, else the trainer's default."""
        given = dict.fromkeys(self._written(name) for name in dict.fromkeys(names) if self.given.get(name))
        return ", ".join(given) or f"{self.table.trainer}'s default"

    def _written(self, name: str) -> str:
        setting = self.given[name]
        if setting.origin is not None:
            return setting.origin
        variable = f" ${setting.variable}" if setting.variable else ""
        return f"{self.key(name)}{variable}" + (f" (line {setting.line})" if setting.line else "")


def one_of(name: str, values: Collection[str], rule: str) -> ValueRule:
    """The rule that the setting has one of these values, in any case of letters."""
    fix = f"set it to {' or '.join(values)} in a copy of the file if a search with it helps you"
    return ValueRule(name, lambda settings: str(settings.value(name)).lower() in values, rule, fix)


def _is_off(value: Any) -> bool:
    """True for the value of an option that does nothing, such as one expert, no window, or -1 for no limit."""
    return value is not True and str(value).lower() in ("none", "false", "0", "1", "-1", "", "[]", "{}")


def read_fields(settings: FileSettings, section: str, readers: FieldReaders) -> tuple[dict[str, Any], dict[str, str]]:
    """(the values found, by field; the origin of each by its key in the search file) of one section. A field that
    depends on a setting in doubt has no value."""
    values, origins = {}, {}
    for name, read in readers.items():
        with settings.tracked() as asked:
            value = read(settings)
        if any(map(settings.is_in_doubt, asked)):
            settings.in_doubt.append(name)
        elif value is not None:
            values[name], origins[f"{section}.{name}" if section else name] = value, settings.origin(asked)
    return values, origins


def flat(
    config: Mapping[str, Any], table: Table, lines: Callable[[str], int | None] = lambda name: None, above: str = ""
) -> dict[str, Setting]:
    """The settings of a nested configuration by dotted key, below the section `above`. A mapping that the table has as
    a whole stays whole."""
    found: dict[str, Setting] = {}
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value and name not in table.whole:
            found |= flat(value, table, lines, f"{name}.")
        else:
            found[name] = Setting(value, lines(name), doubt=placeholder_doubt(value))
    return found


def placeholder_doubt(value: Any) -> str | None:
    """The reason why a value in a file that no shell reads is not known, if it has a variable or is a placeholder."""
    is_placeholder = isinstance(value, str) and (has_placeholder_form(value) or re.search(r"\$\{?\w", value))
    return "it is a placeholder" if is_placeholder else None


def document_settings(document: Document, table: Table, paths: Mapping[str, KeyPath] | None = None) -> FileSettings:
    """The settings of a document. `paths` tells where its sections are, by the names of the table; absent ones are at
    the top."""
    places = {name: (name,) for name in document.data} if paths is None else paths

    def line(name: str) -> int | None:
        section, *inner = name.split(".")
        return document.location(places.get(name) or (*places.get(section, (section,)), *inner)).line

    data: dict[str, Any] = {name: document.value(path) for name, path in places.items()}
    return FileSettings(flat(data, table, line), table)


EXPERT_LAYERS = "experts are in each expert_layer_every-th layer after the first num_dense_layers"
ROUTING = "a token's experts are weighted by the softmax of their logits"
NO_MODEL_FIELD = "no field of the model section expresses it"


def expert_pattern(has_experts: Sequence[bool]) -> tuple[int, int] | None:
    """(num_dense_layers, expert_layer_every) of a model whose layers have experts or an MLP as said; None where no two
    numbers say it."""
    layers = range(len(has_experts))
    for every, dense in product((number + 1 for number in layers), layers):
        if all(has_experts[layer] == (layer >= dense and (layer - dense + 1) % every == 0) for layer in layers):
            return dense, every
    return None
