"""OptionTable: what each option of a trainer's parser means for an import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property

from search_spaces.errors import Problem, did_you_mean

DO_WITHOUT = "remove it from a copy of the script if a search without it helps you"
"""Fix for an option or value that no search file expresses."""


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


@dataclass(frozen=True)
class OptionTable:
    """All options of a parser. `source` is the version that they were read from. An option with its `neutral` value is
    as good as absent."""

    source: str
    groups: tuple[OptionGroup, ...]
    neutral: Mapping[str, str] = field(default_factory=dict)

    def with_groups(self, groups: tuple[OptionGroup, ...]) -> OptionTable:
        """This table and more groups."""
        return replace(self, groups=(*self.groups, *groups))

    @cached_property
    def flags(self) -> frozenset[str]:
        """Options without a value."""
        return frozenset(word for group in self.groups for word in group.names.split() if not word.endswith("="))

    @cached_property
    def group_of(self) -> Mapping[str, OptionGroup]:
        """The group of each option."""
        return {word.rstrip("="): group for group in self.groups for word in group.names.split()}

    def notes(self, options: Mapping[str, str]) -> Iterator[str]:
        """A note for each of these options (name to value) that is left out, unknown ones included."""
        for name, value in options.items():
            group = self.group_of.get(name)
            if group is None:
                suggestion = did_you_mean(name, self.group_of)
                yield f"--{name} was left out: it is no option of {self.source}" + (
                    f"; {suggestion}" if suggestion else "."
                )
            elif group.handling is Handling.NOTED and value != self.neutral.get(name):
                yield f"--{name} was left out: {group.reason}."

    def refused(self, options: Mapping[str, str]) -> Mapping[str, str]:
        """The reason for each of these options that is refused."""
        groups = {name: self.group_of[name] for name in options if name in self.group_of}
        return {
            name: group.reason
            for name, group in groups.items()
            if group.handling is Handling.REFUSED and options[name] != self.neutral.get(name)
        }

    def problems(self, options: Mapping[str, str], code: str) -> Iterator[Problem]:
        """A problem for each of these options that is refused."""
        for name, reason in self.refused(options).items():
            message = "cannot be read" if name in self.flags else f"is {options[name]!r:.60}"
            yield Problem(code, message, rule=reason, fix=DO_WITHOUT, key=f"--{name}", value=options[name] or None)
