"""Settings: the named values of a command or a configuration, read against the options of its trainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator.importers.option_table import DO_WITHOUT, OptionTable
from search_spaces.errors import InputError, Problem, choice_fix, format_value
from search_spaces.model_shape import DEFAULT_ROTARY_BASE
from search_spaces.schema.unsafe_text import hidden, is_printable
from search_spaces.schema.validation import FILL_IN

CODE = "import"
"""Code of the problems with a file that `parlay init --from` reads."""

FieldReaders = Mapping[str, Callable[["Settings"], Any]]
"""Reader of each field of the search file; None for a value that the settings do not have."""


class ValueRule(NamedTuple):
    """Rule for a setting that is read: whether a search file expresses its value; otherwise the rule and the fix."""

    name: str
    is_expressed: Callable[[Settings], bool]
    rule: str
    fix: str = DO_WITHOUT


ValueRules = tuple[ValueRule, ...]

SWITCH = {"true": True, "false": False}
"""Words of a switch, for `Settings.chosen`."""


@dataclass(frozen=True)
class Setting:
    """A value as the file has it: an option's text, True for a flag, or a value of YAML or JSON.

    `line` is where it is written, `variable` the variable that holds it there. `doubt` is the reason why the value is
    not known, for example that the script does not set it. `origin` says where it is from if not from the file itself.
    `words` are those of a command: the option, and the value's.
    """

    value: Any
    line: int | None = None
    variable: str | None = None
    doubt: str | None = None
    origin: str | None = None
    words: tuple[str, ...] = ()


class Settings:
    """The settings of a file, the notes made while reading them, and what was read for which field.

    `in_doubt` are the fields that a setting decides whose value is not known: no default stands for them.
    """

    def __init__(self, given: Mapping[str, Setting], table: OptionTable, notes: list[str] | None = None):
        self.given = given
        self.table = table
        self.notes: list[str] = [] if notes is None else notes
        self.in_doubt: list[str] = []
        self._asked: list[str] = []

    def problems(self, rules: ValueRules = ()) -> Iterator[Problem]:
        """Problems with the settings that no search file expresses, or not with their value, where that is known."""
        for name, reason in self.table.refused(self._known()).items():
            yield self.problem(name, rule=reason, fix=DO_WITHOUT)
        for name, is_expressed, rule, fix in rules:
            if self.has(name) and not self.is_in_doubt(name) and not is_expressed(self):
                yield self.problem(name, rule, fix)

    def left_out(self, kept: Container[str] = ()) -> Iterator[str]:
        """Notes on the settings that were left out, all but the `kept` ones; by name only, as a value may be a
        secret."""
        unnamed = dict.fromkeys(self.unnamed)
        others = {name: setting for name, setting in self.given.items() if name not in kept}
        values = {name: setting.value for name, setting in others.items() if name not in unnamed}
        yield from self.table.notes(values)
        yield from (f"{self.key(name)} was left out: {self.given[name].doubt}." for name in unnamed)
        known = self._known()
        for name, reason in self.table.refused(values).items():
            if name not in known:
                yield f"{self.key(name)} was left out, since {self.given[name].doubt}: {reason}."

    def words_of(self, names: Container[str]) -> Iterator[str]:
        """The words of a command's options with these names, as given; FILL_IN for a value that is not known, or may be
        a secret."""
        for name, setting in self.given.items():
            if name in names:
                option, *values = setting.words
                yield option
                is_told = setting.doubt is None and self._shown(name) == setting.value
                yield from values if is_told and all(map(is_printable, values)) else (FILL_IN,)

    @property
    def unnamed(self) -> list[str]:
        """Options whose name is not known, such as `--$DTYPE`; each may be any flag."""
        return [name for name in self.given if re.search(r"[$`]", name)]

    def _known(self) -> dict[str, Any]:
        return {name: setting.value for name, setting in self.given.items() if setting.doubt is None}

    def problem(self, name: str, rule: str, fix: str = "correct it in the file") -> Problem:
        """The problem that this setting breaks a rule."""
        setting = self.given[name]
        is_set = setting.value is True
        value = None if is_set else self._shown(name)
        message = "cannot be read" if is_set else f"is {format_value(value):.60}"
        return Problem(CODE, message, rule, fix, key=self.key(name), value=value, line=setting.line)

    def key(self, name: str) -> str:
        """The setting as its file names it."""
        return self.table.prefix + name

    def has(self, *names: str) -> bool:
        """True if one of these settings is given and is not false or null."""
        self._asked += names
        return any(found.value not in (None, False) for name in names if (found := self._setting(name)))

    def value(self, name: str) -> Any:
        """The setting's value; None where it is absent or null, and, with a note, where it is not known."""
        self._asked.append(name)
        setting = self._setting(name)
        if setting is None or setting.doubt is None:
            return setting.value if setting else None
        shown = f"{format_value(self._shown(name)):.60}"
        self.notes.append(f"{self.key(name)} is {shown}, which was not used: {setting.doubt}.")
        return None

    def _shown(self, name: str) -> Any:
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

    def flag(self, name: str, default: bool = False) -> bool:
        """The setting as true or false."""
        value = self.value(name)
        if value is None:
            return default
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        found = words.get(str(value).lower())
        if found is None:
            raise InputError(self.problem(name, rule="true or false"))
        return found

    def count(self, *names: str) -> int | None:
        """The whole number of the first of these settings that is given."""
        name = next((n for n in names if self._is_given(n)), None)
        value = None if name is None else self.value(name)
        if name is None or value is None:
            return None
        if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,11}", str(value)):
            raise InputError(self.problem(name, rule="a whole number of at least 1"))
        return int(value)

    def counted(self, name: str, default: int | None) -> int | None:
        """The setting's whole number, `default` where it is absent."""
        return self.count(name) or default

    def chosen(self, name: str, values: Mapping[str, Any], default: Any) -> Any:
        """Value that the setting's word stands for, `default` where it is absent.

        Words are in lower case. InputError for a word without meaning.
        """
        value = self.value(name)
        if value is None:
            return default
        if (word := str(value).lower()) not in values:
            raise InputError(self.problem(name, "one of " + ", ".join(values), choice_fix(word, values)))
        return values[word]

    def is_in_doubt(self, name: str) -> bool:
        """True for a setting that is given by a value that is not known."""
        return name in self.given and self.given[name].doubt is not None

    def is_null(self, name: str) -> bool:
        """True for a setting that is given as null."""
        return name in self.given and self.value(name) is None and not self.is_in_doubt(name)

    def _is_given(self, name: str) -> bool:
        self._asked.append(name)
        setting = self._setting(name)
        return setting is not None and setting.value is not None

    def _setting(self, name: str) -> Setting | None:
        """The setting; None where it is absent, and where the trainer does not know it."""
        return self.given.get(name) if name in self.table.group_of else None

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
        given = dict.fromkeys(self._written(name) for name in dict.fromkeys(names) if self._setting(name))
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


def positive(name: str, rule: str) -> ValueRule:
    """The rule that the setting is a number above 0, and none that stands for infinity."""

    def is_positive(settings: Settings) -> bool:
        value = settings.value(name)
        return type(value) in (int, float) and 0 < value <= _LARGEST

    return ValueRule(name, is_positive, rule)


_LARGEST = 10**12


def rotary_base(settings: Settings, name: str) -> int | None:
    """The base of rotary positions; None where it is absent or the usual one, and with a note where it is no whole
    number."""
    value = settings.value(name)
    if value is None:
        return None
    try:
        base = float(value)
    except (TypeError, ValueError):
        raise InputError(settings.problem(name, rule="a number")) from None
    if not base.is_integer() or not 2 <= base <= 10**9:
        settings.notes.append(f"{settings.key(name)} was left out: rotary_base is a whole number from 2 to 1000000000.")
        return None
    return None if base == DEFAULT_ROTARY_BASE else int(base)


def head_size(settings: Settings, name: str, hidden_size: str, heads: str) -> int | None:
    """The size of a head; None where it is absent, null or what the other two settings say."""
    size, hidden, count = settings.count(name), settings.count(hidden_size), settings.count(heads)
    return None if size and count and size * count == hidden else size


def other_biases(has_biases: bool | None, norm: str | None) -> bool | None:
    """linear_biases of a model; None where it is unknown or goes with the norm."""
    return None if has_biases is None or has_biases == (norm == "layernorm") else has_biases


def read_fields(settings: Settings, section: str, readers: FieldReaders) -> tuple[dict[str, Any], dict[str, str]]:
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


def turn_off_sequence_parallel(layout: dict[str, Any], settings: Settings) -> None:
    """Turn off, with a note, sequence parallelism over one tensor-parallel rank, which every trainer does without."""
    if layout.get("sequence_parallel") and layout.get("tensor_parallel") == 1:
        layout["sequence_parallel"] = False
        trainer = settings.table.trainer
        settings.notes.append(
            f"Sequence parallelism is on in the file; with tensor_parallel 1 {trainer} trains without it."
        )


def flat(config: Mapping[str, Any], table: OptionTable, lines: Callable[[str], int | None]) -> dict[str, Setting]:
    """The settings of a nested configuration by dotted key. A mapping that the table has as a whole stays whole."""
    found: dict[str, Setting] = {}
    for name, value in _leaves(config, table, ""):
        found[name] = Setting(value, lines(name), doubt=_doubt(value))
    return found


def _leaves(config: Mapping[str, Any], table: OptionTable, above: str) -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value and name not in table.group_of:
            yield from _leaves(value, table, f"{name}.")
        elif value not in (None, {}) or name not in table.sections:
            yield name, value


def _doubt(value: Any) -> str | None:
    is_placeholder = isinstance(value, str) and (re.fullmatch(r"<.*>", value) or re.search(r"\$\{?\w", value))
    return "it is a placeholder" if is_placeholder else None
