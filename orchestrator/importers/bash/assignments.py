"""Assignments of a script: scalars, arrays, declarations and arithmetic commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.importers.bash.environment import Environment, Log
from orchestrator.importers.bash.expansion import Expander
from orchestrator.importers.bash.syntax import Source
from orchestrator.importers.bash.values import (
    Array,
    Piece,
    State,
    Undecided,
    Value,
    Variable,
    is_decided,
    names_in,
    num_pieces,
    text_of,
    whole_number,
)

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node


class Assigner:
    """The state while a script is read, and its assignments."""

    def __init__(self) -> None:
        self.environment = Environment()
        self.log = Log()
        self._current: Source | None = None
        self._depth = 0
        self._read: set[str] = set()
        self._locals: dict[str, Variable | None] = {}

    @property
    def _source(self) -> Source:
        assert self._current is not None
        return self._current

    @property
    def _expander(self) -> Expander:
        return Expander(self._source, self.environment, self.log)

    def _copy(self) -> Environment:
        self.log.budget.spend(64 + len(self.environment.variables))
        return self.environment.copy()

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _assignments(self, node: Node) -> bool | None:
        for child in node.named_children:
            self._assign(child)
        return True

    def _assign(self, node: Node, exports: bool = False) -> bool | None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return True
        name, _, index = self._source.written(target).removesuffix("]").partition("[")
        adds = any(child.type == "+=" for child in node.children)
        old = self.environment.variables.get(name)
        if value is not None and value.type == "array":
            new: Variable = self._array(value)
        else:
            new = self._scalar(node, value)
        if adds or index:
            self.log.budget.spend(num_pieces(old))
        self.environment.variables[name] = _stored(old, new, adds, index)
        if exports:
            self.environment.exported.add(name)
        return True

    def _array(self, node: Node) -> Variable:
        words = self._expander.words(child for child in node.named_children if child.type != "comment")
        if any(re.match(r"\[[^\]]*\]=", text_of(word)) for word in words):
            return Undecided.VALUE
        return Array(tuple(words))

    def _scalar(self, assignment: Node, node: Node | None) -> Value:
        """The value; one that is written out has the placeholder that a comment of its paragraph gives it."""
        value = self._expander.value(node)
        if any(piece.variables or piece.state is not State.KNOWN for piece in value):
            return value
        line = self._source.line(assignment)
        comments = self._source.comments
        asked = comments.of_line.get(line) or comments.of_paragraph.get(line)
        if node is None or not asked or node.type not in ("word", "number", "string", "raw_string", "concatenation"):
            return value
        return tuple(replace(piece, placeholder=piece.placeholder or asked) for piece in value)

    def _declaration(self, node: Node) -> bool | None:
        kind = node.children[0].type
        options = [self._source.written(child) for child in node.named_children if child.type == "word"]
        flags = "".join(option for option in options if option.startswith("-"))
        exports = (kind == "export" and "n" not in flags) or (kind in ("declare", "typeset") and "x" in flags)
        for child in node.named_children:
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else child
            if name is None or child.type not in ("variable_assignment", "variable_name"):
                continue
            text = self._source.written(name).partition("[")[0]
            if kind == "local" and self._depth:
                self._locals.setdefault(text, self.environment.variables.get(text))
            if child.type == "variable_assignment":
                self._assign(child, exports)
            elif exports:
                self.environment.exported.add(text)
            elif "a" in flags:
                self.environment.variables.setdefault(text, Array())
        return True

    def _unset(self, node: Node) -> bool | None:
        for child in node.named_children:
            self.environment.variables.pop(self._source.written(child), None)
        return True

    def _calculation(self, node: Node) -> bool | None:
        """`((...))`."""
        return self._calculate(self._expander.spliced(node, node.start_byte + 2, node.end_byte - 2, quoted=False))

    def _calculate(self, expression: Value) -> bool | None:
        """An arithmetic command: an assignment, a step, or a condition."""
        self._read.update(names_in(expression))
        text = text_of(expression)
        found = _CALCULATION.fullmatch(text)
        if found is None:
            number, sources = self._expander.calculated(expression)
            self._read.update(names_in(sources))
            return None if number is None else number != 0
        name, operation, operand = found[1] or found[6], found[2] or found[4] or found[5], found[3]
        if operation in ("++", "--"):
            operation, operand = operation[0] + "=", "1"
        line = expression[0].line
        term = f"({operand})" if operation == "=" else f"{name} {operation[:-1]} ({operand})"
        number, sources = self._expander.calculated(
            (Piece(term, line), *(p for p in expression if not is_decided((p,))))
        )
        variables = tuple(dict.fromkeys(v for piece in sources for v in piece.variables))
        self.environment.variables[name] = (
            Undecided.VALUE if number is None else (Piece(str(number), line, variables=variables),)
        )
        return None if number is None else number != 0


_CALCULATION = re.compile(
    r"\s*(?:([A-Za-z_]\w*)\s*(?:([-+*/%]?=)(?!=)(.*)|(\+\+|--))|(\+\+|--)([A-Za-z_]\w*))\s*", re.DOTALL
)


def _stored(old: Variable | None, new: Variable, adds: bool, index: str) -> Variable:
    """The variable after an assignment."""
    if isinstance(new, Undecided):
        return new
    if index:
        return _with_element(old, new, adds, index)
    if not adds or old is None:
        return new
    if isinstance(old, Undecided):
        return old
    if isinstance(new, Array):
        return Array((*(old.elements if isinstance(old, Array) else (old,)), *new.elements))
    if isinstance(old, Array):
        first = old.elements[0] if old.elements else ()
        return Array(((*first, *new), *old.elements[1:]))
    return (*old, *new)


def _with_element(old: Variable | None, new: Value | Array, adds: bool, index: str) -> Variable:
    elements = list(old.elements) if isinstance(old, Array) else [] if old is None else None
    number = whole_number(index)
    if elements is None or isinstance(new, Array) or adds or number is None or number > len(elements):
        return Undecided.VALUE
    elements[number : number + 1] = [new]
    return Array(tuple(elements))
