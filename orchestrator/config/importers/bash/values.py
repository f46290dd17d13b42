"""Values of shell variables: pieces of text with their lines, the variables that they come from, and doubts.

The `Budget` limits their sizes, and the work that reading a script may cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from search_spaces.errors import InputError

LARGEST_TEXT = 2**18
"""Limit of characters of a script, and of any one value after expansion."""
_LARGEST_WORK = 2**22


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a value. `doubt` is the reason why it may be another. With `is_code` it is not known at all, and the text
    is what the script has for it; "" stands for `$` and the variable's name."""

    text: str
    line: int
    variables: tuple[str, ...] = ()
    doubt: str | None = None
    is_code: bool = False


Value = tuple[Piece, ...]
Variable = tuple[Value, ...]
"""The elements of a variable: one of a scalar, any number of an array."""


def text_of(value: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in value)


def doubt_of(value: Iterable[Piece]) -> str | None:
    """The first reason to doubt the value; None for one that is certain."""
    return next((piece.doubt for piece in value if piece.doubt), None)


def names_in(value: Iterable[Piece]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for piece in value for name in piece.variables))


def doubted(value: Iterable[Piece], reason: str) -> Value:
    """The value, of which nothing is certain for this reason."""
    return tuple(piece if piece.doubt else replace(piece, doubt=reason) for piece in value)


def unknown(reason: str, line: int = 1) -> Variable:
    """A variable whose value is not known."""
    return ((Piece("", line, doubt=reason, is_code=True),),)


def taken_from(name: str, value: Value, written: str) -> Value:
    """The value where the variable is used as `written`."""
    return tuple(
        replace(
            piece,
            text=written if piece.is_code and not piece.text else piece.text,
            variables=piece.variables if name in piece.variables else (*piece.variables, name),
        )
        for piece in value
    )


def split(value: Value) -> Iterator[Piece | None]:
    """The pieces of the words that an expansion outside quotes has, None between words."""
    for piece in value:
        if piece.is_code:
            yield piece
        else:
            for text in _WORDS.findall(piece.text):
                yield None if text.isspace() else replace(piece, text=text)


_WORDS = re.compile(r"\s+|(?:<[A-Za-z][^<>\n]*>|\S)+")
"""Words, and the blanks between them. `<a placeholder>` is one word."""


def either(old: Variable, values: Sequence[Variable], reason: str) -> Variable:
    """A variable that was `old`, after branches of which any may have set it to one of the values.

    It is in doubt. Of a list of options, what a branch adds is in doubt and the rest is not; where a branch replaces
    the list, all of them are.
    """
    is_scalar = all(len(value) == 1 for value in (old or values[0], *values))
    before, *after = [
        tuple((piece,) for element in value for piece in element) if is_scalar else value for value in (old, *values)
    ]
    are_options = any("".join(map(text_of, items)).lstrip().startswith("-") for items in (before, *after))
    texts = [*map(text_of, before)]
    is_longer = all([*map(text_of, items[: len(before)])] == texts for items in after)
    if is_longer and (are_options or any(texts)):
        certain, others = before, [items[len(before) :] for items in after]
    elif are_options:
        certain, others = (), [before, *after]
    else:
        return unknown(reason)
    between = ((Piece(" ", 1),),) if is_scalar else ()
    items = (*certain, *(doubted(item, reason) for each in others for item in (*between, *each)))
    return (tuple(piece for item in items for piece in item),) if is_scalar else items


class Budget:
    """Steps that are left for reading a script and the files it sources."""

    def __init__(self) -> None:
        self.left = _LARGEST_WORK

    def spend(self, amount: int) -> None:
        """Spend this much. InputError if there is nothing left."""
        self.left -= amount
        if self.left < 0:
            raise too_large("the script repeats itself too often", "is read in a bounded number of steps")

    def spend_on(self, *variables: Variable) -> None:
        """Spend the work of changing these, to whose elements and pieces it is proportional."""
        self.spend(sum(len(variable) + sum(map(len, variable)) for variable in variables))

    def value(self, pieces: Iterable[Piece | None]) -> Value:
        """The pieces as a value, with a blank where they are None. InputError for one that is too long."""
        filled = (Piece(" ", 1) if piece is None else piece for piece in pieces)
        value = tuple(piece for piece in filled if piece.text or piece.doubt)
        size = sum(len(piece.text) or 1 for piece in value)
        require_size(size)
        self.spend(16 + size + 8 * len(value) + sum(len(piece.variables) for piece in value))
        return value


def require_size(size: int) -> None:
    if size > LARGEST_TEXT:
        rule = f"has at most {LARGEST_TEXT} characters, as written and with its variables filled in"
        raise too_large(f"{size} characters", rule)


def too_large(message: str, rule: str) -> InputError:
    fix = "give a script that only starts the training"
    return InputError.of("script_size", message, rule=f"a launch script {rule}", fix=fix)
