"""Table of a trainer's options: what each field of a search file is called there, how it is written, how it is read.

A recipe's export writes a table, `parlay init --from` runs it backwards, and the values that its rows have are rules
of the trainer. A field without a row is what the trainer cannot say. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol, TypeVar

from search_spaces.errors import Problem
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.model_shape import RESOLVED_FIELDS, ModelShape

T = TypeVar("T")
Values = Mapping[str, Any]
"""Values of a trainer's options by name, dotted where they are nested."""
SWITCH = {"true": True, "false": False}
"""Words of a switch, for `Keys.chosen`."""


class Keys(Protocol):
    """The options of a file, as a row reads them: None for one that is absent or whose value is not known.

    InputError for a value that the asked kind does not have. `words` are those of a list, or of text that holds one.
    `default` is the trainer's value where an absent option has it, None where its value is open or not known. `given`
    are the options by name, `notes` what a reader has to say.
    """

    @property
    def given(self) -> Mapping[str, Any]: ...
    @property
    def notes(self) -> list[str]: ...
    def has(self, *names: str) -> bool: ...
    def value(self, name: str) -> Any: ...
    def default(self, name: str, value: Any) -> Any: ...
    def text(self, name: str) -> str | None: ...
    def flag(self, name: str) -> bool: ...
    def listed(self, name: str) -> list[Any]: ...
    def words(self, name: str) -> list[str]: ...
    def count(self, *names: str) -> int | None: ...
    def whole(self, name: str) -> int | None: ...
    def chosen(self, name: str, values: Mapping[str, T], default: T, rule: str = "") -> T: ...
    def problem(self, name: str, rule: str, fix: str = ...) -> Problem: ...
    def is_in_doubt(self, name: str) -> bool: ...


class Trained(Protocol):
    """What a table is written of: a trial, or a layout and a model alone."""

    @property
    def layout(self) -> Layout: ...
    @property
    def model(self) -> ModelShape: ...


@dataclass(frozen=True)
class Row:
    """A field of the search file: of its layout, its model, or the global batch.

    `write` gives the options of a trial, `read` the field's value, None where the options do not decide it; a row
    without one of them is only read, or only written. `values` are the ones that the trainer has, None for any.
    """

    field: str
    write: Callable[[Any], Values] = lambda spec: {}
    read: Callable[[Keys], Any] | None = None
    values: tuple[Any, ...] | None = None


def trained_value(spec: Trained, name: str) -> Any:
    """The value of a field of a trial: of its model, else of its layout, which has the global batch, too."""
    return getattr(spec.model if name in _OF_MODEL else spec.layout, RESOLVED_FIELDS.get(name, name))


_OF_MODEL = ModelShape.__dataclass_fields__


def plain(name: str, key: str, read: Callable[[Keys], Any]) -> Row:
    """A field whose value an option has as it is, and which other options decide, too, where it is read."""
    return Row(name, lambda spec: {key: trained_value(spec, name)}, read)


def number(name: str, key: str, default: int | None = None, instead: tuple[str, ...] = ()) -> Row:
    """A whole number from 1 on, as it is; where it is absent that of the first option `instead`, else `default`, the
    trainer's."""
    return plain(name, key, lambda keys: keys.count(key, *instead) or keys.default(key, default))


def word(
    name: str, key: str, words: Mapping[Any, Any], default: Any = None, also: Mapping[str, Any] | None = None
) -> Row:
    """A field whose value has a word of the trainer's; `also` are further words that mean one of ours.

    A file's word is compared in lower case; another one is refused.
    """
    ours = {str(theirs).lower(): value for value, theirs in reversed([*words.items()])} | dict(also or {})
    rule = f"{name} is written {_listed([*words.values(), *(also or {})])}"
    return Row(
        name,
        lambda spec: {key: words[trained_value(spec, name)]},
        lambda keys: keys.chosen(key, ours, keys.default(key, default), rule),
        tuple(words),
    )


def switch(name: str, key: str, default: bool | None = None, is_inverted: bool = False) -> Row:
    """A field that is on or off; an inverted option is on where the field is off."""
    words = {"true": not is_inverted, "false": is_inverted}
    return Row(
        name,
        lambda spec: {key: trained_value(spec, name) is not is_inverted},
        lambda keys: keys.chosen(key, words, keys.default(key, default)),
        (False, True),
    )


def fixed(**fields: Any) -> tuple[Row, ...]:
    """Fields that have one value with this trainer, which no option says."""
    return tuple(
        Row(name, read=None if _is_default(name, value) else partial(_same, value), values=(value,))
        for name, value in fields.items()
    )


def _is_default(name: str, value: Any) -> bool:
    return name in AXES and AXES[name].default == value


def _same(value: Any, keys: Keys) -> Any:
    return value


def _listed(words: Sequence[Any]) -> str:
    """Words as a file has them: `a, b or c`."""
    *others, last = dict.fromkeys(str(word).lower() if isinstance(word, bool) else str(word) for word in words)
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True)
class Table:
    """The options of a trainer by the release that its rows were written for, whose defaults an import takes.

    `trains_another` are the options by which it trains another model or does another task, with the reason; `*` in a
    name stands for any characters. `whole` are sections that a row reads as one value. `flags` are options of a command
    without a value, `prefix` what precedes each name there.
    """

    trainer: str
    release: str
    rows: tuple[Row, ...] = ()
    trains_another: Mapping[str, str] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()
    prefix: str = ""

    def written(self, spec: Any) -> dict[str, Any]:
        """The options of a trial's layout, model and batch, by name. `spec` is a trial, or has what its rows write."""
        return {name: value for row in self.rows for name, value in row.write(spec).items()}

    def refusal(self, name: str) -> str | None:
        """The reason why an option, or one inside it, is refused wherever it is on; None for others."""
        if self.is_of_unknown_adapters(name):
            return "adapters are read from the files of Megatron-Bridge, NeMo Automodel and TRL, not of this trainer"
        names = (name, *(name[: dot.start()] for dot in re.finditer(r"\.", name)))
        reasons = self.trains_another.items()
        return next((why for known, why in reasons if any(fnmatchcase(each, known) for each in names)), None)

    def is_of_unknown_adapters(self, name: str) -> bool:
        """True for an option that says adapters, where no row reads any: a fork's, without which all weights train."""
        is_of_adapters = _OF_ADAPTERS.search(name) is not None and bool(self.rows)
        return is_of_adapters and all(row.field != "rank" for row in self.rows)

    @property
    def limits(self) -> dict[str, tuple[Any, ...]]:
        """Values of the layout's fields, and of the model's as `model.NAME`, where the rows do not have all."""
        known = dict.fromkeys(AXES, "") | dict.fromkeys(_OF_MODEL, "model.")
        limited = {row.field: row.values for row in self.rows if row.values is not None}
        return {known[name] + name: values for name, values in limited.items() if name in known}


_OF_ADAPTERS = re.compile(r"(^|\.|use_|enable_|with_)(q?lora|dora|peft|adapters?)([._]|$)")
"""Names of adapters' options; q_lora_rank and kv_lora_rank are latent attention's."""


def by_option(names: Mapping[str, str]) -> dict[str, str]:
    """The reason of each option, from the options of each reason, which are separated by blanks."""
    return {name: reason for reason, listed in names.items() for name in listed.split()}


def nested(values: Values) -> dict[str, Any]:
    """Dotted names as nested mappings."""
    whole: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        inner = whole
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return whole


def merged(base: Values, ours: Values) -> dict[str, Any]:
    """Nested merge; `ours` override `base`."""
    found = dict(base)
    for key, value in ours.items():
        inner = base.get(key)
        found[key] = merged(inner, value) if isinstance(value, Mapping) and isinstance(inner, Mapping) else value
    return found


def plain_yaml(data: Any) -> str:
    """The data as JSON in which every float has a point, since YAML 1.1 reads 1e-05 as text. ValueError for NaN."""
    text = json.dumps(data, indent=2, allow_nan=False)
    return _EXPONENT.sub(lambda found: found[1] or f"{found[2]}.0{found[3]}", text) + "\n"


_EXPONENT = re.compile(r'("(?:[^"\\]|\\.)*"|\d+\.\d+e[-+]\d+)|(\d+)(e[-+]\d+)')
"""A text or a number with a point, which stay as they are, or a number with an exponent and without a point."""
