"""CommandOptions: the options of a Megatron training command."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.importers.option_table import DO_WITHOUT, OptionTable
from search_spaces.errors import InputError, Problem
from trials.trainers.common.options import option_name


class CommandOptions:
    """The options of a training command, and the notes made while reading them. `table` has the trainer's options."""

    def __init__(self, words: list[str], notes: list[str], table: OptionTable):
        self.notes = notes
        self.table = table
        self._values: dict[str, str] = {}
        takes_value = False
        for word, following in zip(words, [*words[1:], "--"], strict=True):
            if name := option_name(word):
                takes_value = name not in table.flags and "=" not in word
                value = word.partition("=")[2] or following
                self._values[name] = "true" if name in table.flags or value.startswith("--") else value
                continue
            if _is_unknown_word(word) and not takes_value:
                notes.append(f"{word} is in the training command, but the script does not set it.")
            takes_value = False

    def problems(self) -> Iterator[Problem]:
        """Problems with the options that no search file expresses and whose value the script sets."""
        for name, reason in self.table.refused(self._known()).items():
            value = self._values[name]
            message = "cannot be read" if name in self.table.flags else f"is {value!r:.60}"
            yield Problem("megatron_script", message, rule=reason, fix=DO_WITHOUT, key=f"--{name}", value=value or None)

    def left_out(self) -> Iterator[str]:
        """Notes on the options that were left out; by name only, as a value may be a secret."""
        yield from self.table.notes(self._values)
        known = self._known()
        for name, reason in self.table.refused(self._values).items():
            if name not in known:
                yield f"--{name} was left out, since the script does not set its value: {reason}."

    def _known(self) -> dict[str, str]:
        return {name: value for name, value in self._values.items() if not _is_unset(value)}

    def has(self, *names: str) -> bool:
        return any(name in self._values for name in names)

    def text(self, name: str) -> str | None:
        """The option's value; None, with a note, where the script does not set it."""
        value = self._values.get(name)
        if value is not None and _is_unset(value):
            self.notes.append(f"--{name} is {value}, whose value the script does not set.")
            return None
        return value

    def count(self, *names: str) -> int | None:
        """The whole number of the first of these options that is given."""
        name = next((n for n in names if n in self._values), None)
        value = None if name is None else self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[1-9]\d{0,11}", value):
            raise InputError.of(
                "megatron_script", f"--{name} is {value!r}", key=f"--{name}", rule="a whole number of at least 1"
            )
        return int(value)


def _is_unset(value: str) -> bool:
    return "$" in value or "`" in value


def _is_unknown_word(word: str) -> bool:
    """True for a word that is only an unset variable, which may hold options."""
    return re.fullmatch(r"\$\{?\w+(\[[@*]\])?\}?", word) is not None
