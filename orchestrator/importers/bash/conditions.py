"""Value of the conditions of `[ ]`, `[[ ]]` and `test`: true, false, or None where the script does not decide it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrator.importers.bash.arithmetic import arithmetic
from orchestrator.importers.bash.values import Budget, State, Value, is_decided, text_of


@dataclass(frozen=True)
class Operand:
    """Operand of a condition; `pattern` is the text of an unquoted one, which `[[ ]]` matches as a glob."""

    value: Value
    pattern: str | None = None

    @property
    def text(self) -> str | None:
        return text_of(self.value) if is_decided(self.value) else None


Token = Operand | str
_OR, _AND = ("||", "-o"), ("&&", "-a")
_BINARY = ("=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef")
OPERATORS = (*_OR, *_AND, *_BINARY, "!", "(", ")")


def condition(tokens: Sequence[Token], budget: Budget) -> bool | None:
    """The condition's value; the budget pays for its globs."""
    try:
        reader = _Reader(list(tokens), budget)
        value = reader.alternatives()
        return value if reader.is_at_end() else None
    except IndexError:
        return None


def negated(value: bool | None) -> bool | None:
    return None if value is None else not value


class _Reader:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[Token], budget: Budget):
        self._tokens = tokens
        self._budget = budget
        self._next = 0

    def is_at_end(self) -> bool:
        return self._next >= len(self._tokens)

    def _peek(self) -> Token | None:
        return None if self.is_at_end() else self._tokens[self._next]

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def alternatives(self) -> bool | None:
        return self._joined(_OR, self._conjunction, decisive=True)

    def _conjunction(self) -> bool | None:
        return self._joined(_AND, self._negation, decisive=False)

    def _joined(self, operators: Sequence[str], read: Callable[[], bool | None], decisive: bool) -> bool | None:
        """Operands between these operators; one with the decisive value decides."""
        values = [read()]
        while self._peek() in operators:
            self._take()
            values.append(read())
        return decisive if decisive in values else None if None in values else not decisive

    def _negation(self) -> bool | None:
        if self._peek() == "!":
            self._take()
            return negated(self._negation())
        return self._primary()

    def _primary(self) -> bool | None:
        first = self._take()
        if first == "(":
            value = self.alternatives()
            return value if self._take() == ")" else None
        if isinstance(first, str):
            operand = self._take()
            return _unary(first, operand) if isinstance(operand, Operand) else None
        if self._peek() not in _BINARY:
            return _is_not_empty(first)
        operation, second = self._take(), self._take()
        if isinstance(operation, str) and isinstance(second, Operand):
            return _binary(operation, first, second, self._budget)
        return None


def _unary(operation: str, operand: Operand) -> bool | None:
    if operation == "-n":
        return _is_not_empty(operand)
    if operation == "-z":
        return negated(_is_not_empty(operand))
    return None


def _is_not_empty(operand: Operand) -> bool | None:
    if any(piece.text and piece.state is State.KNOWN for piece in operand.value):
        return True
    return False if is_decided(operand.value) else None


def _binary(operation: str, left: Operand, right: Operand, budget: Budget) -> bool | None:
    if left.text is None or right.text is None:
        return None
    if operation in ("=", "==", "!="):
        return _matches(left.text, right, budget) == (operation != "!=")
    if operation == "=~":
        return _searches(left.text, right.text)
    if operation in _COMPARISONS:
        a, b = arithmetic(left.text), arithmetic(right.text)
        return None if a is None or b is None else _COMPARISONS[operation](a, b)
    return None


_COMPARISONS = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


def _matches(text: str, operand: Operand, budget: Budget) -> bool:
    return budget.matches(text, operand.pattern) if operand.pattern is not None else text == operand.text


def _searches(text: str, pattern: str) -> bool | None:
    """Search for a simple regular expression: literal text, anchors, or digits alone. None for any other."""
    if pattern == "^[0-9]+$":
        return text.isascii() and text.isdigit()
    if not re.fullmatch(r"\^?[\w/:,-]*\$?", pattern):
        return None
    return re.search(pattern, text) is not None
