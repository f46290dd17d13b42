"""OptionTable: what each option of a trainer's parser means for an import."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from itertools import count
from typing import Any

from search_spaces.errors import did_you_mean

DO_WITHOUT = "remove it from a copy of the file if a search without it helps you"
"""Fix for an option or value that no search file expresses."""


_MOST_SUGGESTIONS = 20
"""Unknown options with a suggestion: each is compared with all options of a table."""


class Handling(Enum):
    """Handling of an option in an import."""

    READ = auto()
    """It becomes a field of the search file, or the reader says why not."""
    NO_EFFECT = auto()
    """It changes neither speed nor memory of the steps that trials measure."""
    NOTED = auto()
    """It is left out with a note: trials run without it."""
    REFUSED = auto()
    """No search file expresses it, and trials without it would measure another training."""


@dataclass(frozen=True)
class OptionGroup:
    """Options that are handled alike, for one reason. `names` are separated by blanks; an option with a value ends in
    `=`."""

    handling: Handling
    reason: str
    names: str


_NONE: Mapping[str, str] = {}


def option_groups(
    read: str = "",
    no_effect: Mapping[str, str] = _NONE,
    noted: Mapping[str, str] = _NONE,
    refused: Mapping[str, str] = _NONE,
) -> tuple[OptionGroup, ...]:
    """Groups by handling: the names of the options that are read, and those of the others by the reason."""
    by_reason = {
        Handling.READ: {"": read} if read else _NONE,
        Handling.NO_EFFECT: no_effect,
        Handling.NOTED: noted,
        Handling.REFUSED: refused,
    }
    return tuple(OptionGroup(handling, *group) for handling, groups in by_reason.items() for group in groups.items())


@dataclass(frozen=True)
class OptionTable:
    """All options of a parser, or all keys of a configuration (`a.b` for a nested one; a mapping that is handled as a
    whole has its own name).

    `trainer` is the program, `source` the version that they were read from. An option with its `neutral` value is as
    good as absent: false, or one of those named here, separated by `|`. So are null, what is empty, and a mapping whose
    `enabled` is false.
    """

    trainer: str
    source: str
    groups: tuple[OptionGroup, ...]
    neutral: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def with_groups(self, groups: tuple[OptionGroup, ...]) -> OptionTable:
        """This table and more groups; an option that these have again is handled as they say."""
        again = {word.rstrip("=") for group in groups for word in group.names.split()}
        return replace(self, groups=(*self._groups(self.group_of.keys() - again), *groups))

    def only(self, names: Iterable[str]) -> OptionTable:
        """This table with these of its options alone."""
        kept = {*names}
        neutral = {name: value for name, value in self.neutral.items() if name in kept}
        return replace(self, groups=self._groups(kept), neutral=neutral)

    def _groups(self, kept: Collection[str]) -> tuple[OptionGroup, ...]:
        """The groups with these options alone."""
        words = (" ".join(w for w in group.names.split() if w.rstrip("=") in kept) for group in self.groups)
        return tuple(replace(group, names=names) for group, names in zip(self.groups, words, strict=True))

    @cached_property
    def flags(self) -> frozenset[str]:
        """Options without a value."""
        return frozenset(word for group in self.groups for word in group.names.split() if not word.endswith("="))

    @cached_property
    def group_of(self) -> Mapping[str, OptionGroup]:
        """The group of each option."""
        return {word.rstrip("="): group for group in self.groups for word in group.names.split()}

    @cached_property
    def sections(self) -> frozenset[str]:
        """Mappings whose keys are options."""
        paths = [name.split(".") for name in self.group_of]
        return frozenset(".".join(path[:depth]) for path in paths for depth in range(1, len(path)))

    def notes(self, options: Mapping[str, Any]) -> Iterator[str]:
        """A note for each of these options (name to value) that is left out, unknown ones included."""
        num_unknown = count(1)
        for name, value in options.items():
            group = self.group_of.get(name)
            if group is None:
                suggestion = did_you_mean(name, self.group_of) if next(num_unknown) <= _MOST_SUGGESTIONS else None
                yield f"{self.prefix}{name} was left out: it is no option of {self.source}" + (
                    f"; {suggestion}" if suggestion else "."
                )
            elif group.handling is Handling.NOTED and not self._is_neutral(name, value):
                yield f"{self.prefix}{name} was left out: {group.reason}."

    def refused(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        """The reason for each of these options that is refused."""
        groups = {name: self.group_of[name] for name in options if name in self.group_of}
        return {
            name: group.reason
            for name, group in groups.items()
            if group.handling is Handling.REFUSED and not self._is_neutral(name, options[name])
        }

    def _is_neutral(self, name: str, value: Any) -> bool:
        if isinstance(value, Mapping) and value.get("enabled") is False:
            return True
        neutral = self.neutral.get(name, "false").lower().split("|")
        return value is None or value in ("", [], {}) or str(value).lower() in neutral
