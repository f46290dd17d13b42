"""Spelling of megatron-core's fields as the options of a command line, and back. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trials.trainers.common.megatron_core import all_fields
from trials.trainers.table import Row, Values

Option = Sequence[str]


@dataclass(frozen=True)
class Spelling:
    """Words of a command line for megatron-core's fields: an option with a hyphen for each underscore, a flag for true,
    nothing for false and None.

    A flag of `flags` stands for values of one or several fields: `--swiglu` is a gate and SiLU. Of those that fit, the
    first is written, and the fields it stands for are written no more. Flags of `older` are only read.

    `names` are options by field where they have another name; `also` are further names by option. An option is left out
    where its field has the value of `defaults`, or is one of `implied` by others.
    """

    flags: Mapping[str, Values]
    older: Mapping[str, Values]
    names: Mapping[str, str]
    also: Mapping[str, str]
    defaults: Values
    implied: frozenset[str]

    def options(self, fields: Values) -> Iterator[Option]:
        """The options of these fields: flags that stand for several of them first, then each field that is left by its
        own name, unless it has its default."""
        left = {name: value for name, value in fields.items() if name not in self.implied}
        for flag, said in self.flags.items():
            if said.items() <= left.items():
                yield [f"--{flag}"]
                left = {name: value for name, value in left.items() if name not in said}
        for name, value in left.items():
            if value is not None and value is not False and value != [] and value != self.defaults.get(name):
                yield [f"--{self.option(name)}", *([] if value is True else _words(name, value))]

    def option(self, field: str) -> str:
        return self.names.get(field, field.replace("_", "-"))

    def fields(self, option: str, value: Any) -> Values:
        """The fields that an option of a file says, by name."""
        said = self.flags.get(option) or self.older.get(option)
        if said and value is True:
            return said
        theirs = (field for field, name in self.names.items() if name == option)
        return {self.also.get(option) or next(theirs, option.replace("-", "_")): value}

    def all_options(self, rows: Sequence[Row]) -> frozenset[str]:
        """Every option that says something about a field of these rows."""
        fields = all_fields(rows)
        also = {option for option, name in self.also.items() if name in fields}
        return self.all_flags(rows) | {self.option(name) for name in fields} | also

    def all_flags(self, rows: Sequence[Row]) -> frozenset[str]:
        """Every option without a value that says something about a field of these rows."""
        fields = all_fields(rows)
        said = {flag for flag, said in {**self.flags, **self.older}.items() if said.keys() <= fields.keys()}
        return frozenset(said | {self.option(name) for name, value in fields.items() if type(value) is bool})


def _words(name: str, value: Any) -> list[str]:
    if name == "window_size":
        return [",".join(map(str, value))]
    if name == "moe_layer_freq":
        return [f"({'+'.join(f'[{kind}]*{len([*run])}' for kind, run in groupby(value))})"]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
