"""Values of shell variables: pieces of text with their lines, the variables that they come from, and doubts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.importers.bash.budget import Budget

UNSET = "the script does not set it"
OF_A_JOB = "its default is for a run without Slurm, which sets it in a job"


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


def size_of(variable: Variable) -> int:
    """Number of pieces, to which the work of reading or changing a variable is proportional."""
    return len(variable) + sum(map(len, variable))


def taken_from(name: str, value: Value, written: str) -> Value:
    """The value where the variable is used as `written`."""
    return tuple(
        Piece(
            written if piece.is_code and not piece.text else piece.text,
            piece.line,
            piece.variables if name in piece.variables else (*piece.variables, name),
            piece.doubt,
            piece.is_code,
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


def merged(
    before: Mapping[str, Variable], after: Sequence[Mapping[str, Variable]], reason: str, budget: Budget
) -> dict[str, Variable]:
    """The variables after code that left them so in each of its branches.

    One that a branch changes is in doubt. Of a list of options, what a branch adds to it is in doubt and the rest is
    not; where a branch replaces it, all of them are.
    """
    found = dict(before)
    budget.spend((1 + len(after)) * (64 + len(before)))
    for name in dict.fromkeys(chain(before, *after)):
        old = before.get(name)
        changed = [value for branch in after if (value := branch.get(name)) is not old]
        if changed:
            budget.spend(4 * sum(size_of(value or ()) for value in (old, *changed)))
            found[name] = unknown(reason) if None in changed else _either(old, [v for v in changed if v], reason)
    return found


def _either(old: Variable | None, values: Sequence[Variable], reason: str) -> Variable:
    is_scalar = all(len(value) == 1 for value in (old or values[0], *values)) if values else False
    before, *after = [value[0] if is_scalar and value else value for value in (old or (), *values)]
    added = [_added(before, items) for items in after]
    are_options = any(map(_starts_with_option, (before, *after)))
    if None not in added and (are_options or any(map(_text, before))):
        certain, others = before, added
    elif are_options:
        certain, others = (), [before, *after]
    else:
        return unknown(reason)
    if is_scalar:
        blank = Piece(" ", 1)
        return ((*certain, *(piece for items in others for piece in doubted((blank, *(items or ())), reason))),)
    return (*certain, *(doubted(element, reason) for items in others for element in items or ()))


def _text(item: Any) -> str:
    """Text of a piece or of an element."""
    return item.text if isinstance(item, Piece) else text_of(item)


def _starts_with_option(items: Iterable[Any]) -> bool:
    return next((text for item in items if (text := _text(item).strip())), "").startswith("-")


def _added(old: Sequence[Any], new: Sequence[Any]) -> Sequence[Any] | None:
    """What a list has before or behind an older one; None where the older one is not in it."""
    count, texts = len(old), [*map(_text, old)]
    if texts == [*map(_text, new[:count])]:
        return new[count:]
    return new[: len(new) - count] if texts == [*map(_text, new[len(new) - count :])] else None
