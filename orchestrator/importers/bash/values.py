"""Values of shell variables as pieces of text, each with its line and the variables that it comes from."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from search_spaces.errors import InputError

LARGEST_TEXT = 2**18
"""Limit of characters of a script, and of any one value after expansion."""


class State(Enum):
    """State of a piece of a value. `UNSET` comes from the environment or the command line alone."""

    KNOWN = "known"
    UNSET = "unset"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a value. One that is not known has the text that the script has for it."""

    text: str
    line: int
    state: State = State.KNOWN
    variables: tuple[str, ...] = ()
    placeholder: str | None = None


Value = tuple[Piece, ...]


@dataclass(frozen=True)
class Array:
    """The elements of an array variable; one that is not known as a whole has elements of no known text."""

    elements: tuple[Value, ...] = ()


class Undecided(Enum):
    """The variable is set, but the script does not decide to what."""

    VALUE = "undecided"


Variable = Value | Array | Undecided


@dataclass(frozen=True)
class Parameter:
    """A parameter as an expansion names it: `A`, and what is in the brackets of `A[1]`."""

    name: str
    index: str = ""

    @classmethod
    def of(cls, written: str) -> Parameter:
        name, _, index = written.removesuffix("]").partition("[")
        return cls(name, index)

    @property
    def list_sign(self) -> str:
        """The sign of all elements, `@` or `*`; "" for a single value."""
        return next((sign for sign in (self.index, self.name) if sign in ("@", "*")), "")


@dataclass(frozen=True)
class Part:
    """Part of a word. `splits` for an expansion outside quotes: its blanks separate words."""

    value: Value
    splits: bool = False


@dataclass(frozen=True)
class Break:
    """End of a word inside `"${A[@]}"`."""


def text_of(value: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in value)


def known_text(value: Value) -> str | None:
    """The text; None where a piece is not known. An unset variable whose default is empty is known."""
    if any(piece.state is not State.KNOWN and piece.text for piece in value):
        return None
    return text_of(value)


def whole_number(text: str) -> int | None:
    """The number that these digits are; None for other text, and for more digits than any count has."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def num_pieces(variable: Variable | None) -> int:
    """Number of pieces of a variable, to which the work of reading or changing it is proportional."""
    if isinstance(variable, Array):
        return len(variable.elements) + sum(map(len, variable.elements))
    return len(variable) if isinstance(variable, tuple) else 0


def is_decided(value: Value) -> bool:
    return all(piece.state is State.KNOWN for piece in value)


def is_unset(value: Value) -> bool:
    """True for a value that only the environment or the command line could give."""
    return bool(value) and all(piece.state is State.UNSET for piece in value)


def names_in(value: Iterable[Piece]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for piece in value for name in piece.variables))


def derived(text: str, line: int, sources: Iterable[Piece]) -> Piece:
    """A known piece computed from others."""
    sources = tuple(sources)
    placeholder = next((piece.placeholder for piece in sources if piece.placeholder), None)
    return Piece(text, line, variables=names_in(sources), placeholder=placeholder)


def taken_from(name: str, value: Value, line: int) -> Value:
    """The value where the variable is used. An option or a list of words keeps its own lines."""
    text = text_of(value)
    keeps_lines = text.startswith("-") or any(character.isspace() for character in text)
    return tuple(
        replace(
            piece,
            line=piece.line if keeps_lines else line,
            variables=piece.variables if name in piece.variables else (*piece.variables, name),
        )
        for piece in value
    )


def joined(values: Iterable[Value], line: int) -> Value:
    """The values with a blank between them, as `"${A[*]}"` has them."""
    pieces: list[Piece] = []
    for index, value in enumerate(values):
        pieces += [Piece(" ", line)] if index else []
        pieces += value
    return tuple(pieces)


def split(parts: Iterable[Part | Break]) -> Iterator[Value]:
    """The words that the parts form."""
    word: list[Piece] | None = None
    for part in parts:
        if isinstance(part, Break):
            if word is not None:
                yield tuple(word)
            word = None
            continue
        if not part.splits:
            word = word or []
            word.extend(part.value)
            continue
        for piece in part.value:
            for text in _WORDS.findall(piece.text) if piece.state is State.KNOWN else [piece.text]:
                if text.isspace():
                    if word is not None:
                        yield tuple(word)
                    word = None
                elif text:
                    word = word or []
                    word.append(replace(piece, text=text))
    if word is not None:
        yield tuple(word)


_WORDS = re.compile(r"\s+|(?:<[A-Za-z][^<>\n]*>|\S)+")
"""Words, and the blanks between them. `<a placeholder>` is one word."""


def require_size(size: int) -> None:
    if size > LARGEST_TEXT:
        raise InputError.of(
            "script_size",
            f"{size} characters",
            rule=f"a launch script has at most {LARGEST_TEXT} characters, as written and with its variables filled in",
            fix="give a script that only starts the training",
        )


def require_few_operators(text: str) -> None:
    """The parser takes quadratic time and memory for a long pipeline or condition."""
    for operator in ("|", "[["):
        if (count := text.count(operator)) > _MOST_OPERATORS:
            raise InputError.of(
                "script_size",
                f"{count} times {operator}",
                rule=f"a launch script has at most {_MOST_OPERATORS} pipes, and as many conditions in [[ ]]",
                fix="give a script that only starts the training",
            )


_MOST_OPERATORS = 2000
_LARGEST_WORK = 2**22


class Budget:
    """Bounds the work that a script may cause."""

    def __init__(self) -> None:
        self._left = _LARGEST_WORK

    def affords(self, amount: int) -> bool:
        """Spend this much; false if there is nothing left."""
        self._left -= amount
        return self._left >= 0

    def spend(self, amount: int) -> None:
        """Spend this much. InputError if there is nothing left."""
        if not self.affords(amount):
            raise InputError.of(
                "script_size",
                "the script repeats itself too often",
                rule="a launch script's values, functions and branches are read in a bounded number of steps",
                fix="give a script that only starts the training",
            )

    def value(self, pieces: Iterable[Piece]) -> Value:
        """The pieces as a value, without those that are empty and known."""
        value = tuple(piece for piece in pieces if piece.text or piece.state is not State.KNOWN)
        size = sum(len(piece.text) or 1 for piece in value)
        require_size(size)
        self.spend(size + sum(len(piece.variables) for piece in value))
        return value

    def matches(self, text: str, pattern: str) -> bool:
        """True if the text matches the glob, whose work is about their lengths multiplied."""
        self.spend(1 + len(pattern) * (1 + len(text) // 64))
        return fnmatch.fnmatchcase(text, pattern)
