"""Variables while a script is read, and what is known of them after branches that are not decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.importers.bash.files import Files
from orchestrator.importers.bash.values import (
    Array,
    Budget,
    Piece,
    Undecided,
    Value,
    Variable,
    joined,
    known_text,
    num_pieces,
    text_of,
)
from search_spaces.schema.unsafe_text import looks_secret

_HERE = (Piece(".", 1),)
"""The value of `$PWD`: paths are relative to the script."""


@dataclass
class Log:
    """Notes of reading a script, and its budget."""

    budget: Budget = field(default_factory=Budget)
    notes: dict[str, None] = field(default_factory=dict)
    defaults: dict[str, str] = field(default_factory=dict)

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def note_defaults(self, names: Iterable[str]) -> None:
        """Note the variables that have their default, where a condition on them decides what is read."""
        for name in names:
            if name in self.defaults:
                self.note(default_note(name, self.defaults[name]))

    def note_left_out(self, added: str) -> None:
        """Note the options that were left out, by name only: a value may be a secret."""
        for option in (word.split("=")[0] for word in added.split() if word.startswith("--")):
            self.note(f"{option} is added under a condition that the script does not decide; it was left out.")


def default_note(name: str, value: str) -> str:
    """Note that the variable has its default; a value that may be a secret is not repeated."""
    shown, other = (f"${name}", "command line") if name.isdigit() else (name, "environment")
    default = "default" if looks_secret(value, name) else f"default {value}"
    return f"{shown} is taken as its {default}; the {other} may set another."


@dataclass
class Environment:
    """Variables by name, names of the exported ones, the positional parameters, None where they are not known, and the
    files that the script has written, which all its shells share."""

    variables: dict[str, Variable] = field(default_factory=lambda: {"PWD": _HERE})
    exported: set[str] = field(default_factory=set)
    positional: tuple[Value, ...] | None = None
    files: Files = field(default_factory=dict)

    def start_with(self, variables: Mapping[str, str]) -> None:
        """Export the variables that are set before the script begins."""
        self.variables |= {name: (Piece(value, 1),) for name, value in variables.items()}
        self.exported |= variables.keys()

    def copy(self) -> Environment:
        return Environment(dict(self.variables), set(self.exported), self.positional, self.files)

    def of_exported(self) -> Environment:
        """The environment of another shell that this one starts."""
        kept = {name: value for name, value in self.variables.items() if name in self.exported or name == "PWD"}
        return Environment(kept, set(self.exported), files=self.files)

    def known(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Names and texts of the scalars among these that are known."""
        for name in names:
            value = self.variables.get(name)
            text = known_text(value) if isinstance(value, tuple) else None
            if text is not None and name != "PWD":
                yield name, text


def merged(before: Environment, after: Sequence[Environment], log: Log) -> Environment:
    """The environment after branches of which one is taken. A variable is known if all branches agree on it.

    What every branch leaves in place stays; options that a branch adds are left out, with a note.
    """
    names = dict.fromkeys(name for environment in after for name in environment.variables)
    variables: dict[str, Variable] = {}
    for name in names:
        values = [environment.variables.get(name) for environment in after]
        first = values[0]
        if any(value is not first for value in values):
            log.budget.spend(4 * sum(map(num_pieces, values)))
        if first is not None and all(value is first or _same(value, first) for value in values):
            variables[name] = first
        else:
            variables[name] = _common(before.variables.get(name), values, log)
    exported = set.intersection(*(environment.exported for environment in after))
    return Environment(variables, exported, after[0].positional, _merged_files([e.files for e in after]))


def _merged_files(after: Sequence[Files]) -> Files:
    """The files after branches: one that is not the same in all of them is not known."""
    if all(files is after[0] for files in after):
        return after[0]
    first, *others = after
    return {
        name: text if text is not None and all(_same(files.get(name), text) for files in others) else None
        for name, text in {**dict.fromkeys(name for files in others for name in files), **first}.items()
    }


def _same(a: Variable | None, b: Variable) -> bool:
    if isinstance(a, Array) and isinstance(b, Array):
        return [text_of(element) for element in a.elements] == [text_of(element) for element in b.elements]
    return isinstance(a, tuple) and isinstance(b, tuple) and text_of(a) == text_of(b)


def _common(old: Variable | None, values: Sequence[Variable | None], log: Log) -> Variable:
    """The value before the branches if they only add to it."""
    if not isinstance(old, tuple | Array):
        return _undecided(values, log)
    additions = [_addition(old, value) for value in values]
    if None in additions:
        return _undecided((old, *values), log)
    for added in additions:
        log.budget.spend(len(added or ""))
        log.note_left_out(added or "")
    return old


def _undecided(values: Sequence[Variable | None], log: Log) -> Variable:
    """No value, with a note on the options in the possible ones."""
    for value in values:
        log.note_left_out(_text(value))
    return Undecided.VALUE


def _text(value: Variable | None) -> str:
    if isinstance(value, Array):
        return text_of(joined(value.elements, 1))
    return text_of(value) if isinstance(value, tuple) else ""


def _addition(old: Variable, new: Variable | None) -> str | None:
    if isinstance(old, Array) and isinstance(new, Array):
        count = len(old.elements)
        if _same(Array(new.elements[:count]), old):
            return text_of(joined(new.elements[count:], 1))
    elif isinstance(old, tuple) and isinstance(new, tuple):
        before, after = text_of(old), text_of(new)
        if after.startswith(before):
            return after[len(before) :]
    return None
