"""Limits of the work that reading a script may cause."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from orchestrator.importers.bash.values import Piece, Value
from search_spaces.errors import InputError

LARGEST_TEXT = 2**18
"""Limit of characters of a script, and of any one value after expansion."""
_MOST_OPERATORS = 2000
_LARGEST_WORK = 2**22


class Budget:
    """Steps that are left for reading a script and the files it sources."""

    def __init__(self) -> None:
        self._left = _LARGEST_WORK

    def affords(self, amount: int) -> bool:
        """Spend this much; false if there is nothing left."""
        self._left -= amount
        return self._left >= 0

    def spend(self, amount: int) -> None:
        """Spend this much. InputError if there is nothing left."""
        if not self.affords(amount):
            raise too_large("the script repeats itself too often", "is read in a bounded number of steps")

    def value(self, pieces: Iterable[Piece]) -> Value:
        """The pieces as a value. InputError for one that is too long."""
        value = tuple(pieces)
        size = sum(len(piece.text) or 1 for piece in value)
        require_size(size)
        self.spend(size + 8 * len(value) + sum(len(piece.variables) for piece in value))
        return value

    def matches(self, text: str, pattern: str) -> bool:
        """True if the text matches the glob, whose work is about their lengths multiplied."""
        self.spend(1 + len(pattern) * (1 + len(text) // 64))
        return fnmatch.fnmatchcase(text, pattern)


def require_size(size: int) -> None:
    if size > LARGEST_TEXT:
        rule = f"has at most {LARGEST_TEXT} characters, as written and with its variables filled in"
        raise too_large(f"{size} characters", rule)


def require_few_operators(text: str) -> None:
    """The parser takes quadratic time and memory for a long pipeline or condition."""
    for operator in ("|", "[["):
        if (count := text.count(operator)) > _MOST_OPERATORS:
            rule = f"has at most {_MOST_OPERATORS} pipes, and as many conditions in [[ ]]"
            raise too_large(f"{count} times {operator}", rule)


def too_large(message: str, rule: str) -> InputError:
    fix = "give a script that only starts the training"
    return InputError.of("script_size", message, rule=f"a launch script {rule}", fix=fix)
