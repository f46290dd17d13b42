"""Expansion of a script's words: quotes, variables, arithmetic, and the few commands whose output is known."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from orchestrator.importers.bash.arithmetic import arithmetic
from orchestrator.importers.bash.environment import Environment, Log
from orchestrator.importers.bash.quotes import ansi_c, unescaped, unquoted
from orchestrator.importers.bash.substitution import output, simple_commands
from orchestrator.importers.bash.syntax import EXPANSIONS, Source
from orchestrator.importers.bash.values import (
    Array,
    Break,
    Budget,
    Parameter,
    Part,
    Piece,
    State,
    Value,
    derived,
    is_decided,
    is_unset,
    joined,
    num_pieces,
    split,
    taken_from,
    text_of,
    whole_number,
)

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node

_LONGEST_MATCHED, _LONGEST_NUMBER = 4096, 100
_POSITIONAL = re.compile(rb"\\.|\$([0-9@*#])", re.DOTALL)


class Expander:
    """Expands the words of one source in an environment, which it may change by `${X:=d}`."""

    def __init__(self, source: Source, environment: Environment, log: Log):
        self.source = source
        self.environment = environment
        self.log = log

    def words(self, nodes: Iterable[Node]) -> list[Value]:
        """The words that these nodes expand to."""
        words: list[Value] = []
        for group in _touching(nodes):
            for word in split(self._joined_parts(group)):
                self.log.budget.spend(16)
                words.append(self.log.budget.value(word) if word else ())
        return words

    def _joined_parts(self, group: Sequence[Node]) -> Iterator[Part | Break]:
        """The parts of one word. The parser ends a word at the `$` of `$A/$B.c`, and `B.c` is a node of its own."""
        for before, node in zip((None, *group), group, strict=False):
            cut = before is not None and before.children and before.children[-1].type == "$"
            name = re.match(r"[A-Za-z_]\w*", self.source.written(node)) if cut else None
            if name is None:
                yield from self._parts(node, False)
                continue
            found = self._lookup(Parameter(name[0]))
            start = node.start_byte + len(name[0])
            unknown = Piece(f"${name[0]}", self.source.line(node), State.UNSET)
            yield Part((unknown,) if found is None else taken_from(name[0], found, unknown.line), splits=True)
            yield Part(tuple(self.source.literal(start, node.end_byte, unquoted)) if start < node.end_byte else ())

    def value(self, node: Node | None) -> Value:
        """The one word that this node expands to where bash does not split: in an assignment, a file's name, a test."""
        return self._unsplit(self._parts(node, False)) if node is not None else ()

    def _unsplit(self, parts: Iterable[Part | Break]) -> Value:
        pieces: list[Piece] = []
        for part in parts:
            pieces += [Piece(" ", 1)] if isinstance(part, Break) else part.value
        return self.log.budget.value(pieces)

    def spliced(self, node: Node, start: int | None = None, end: int | None = None, quoted: bool = True) -> Value:
        """The text of a string, here-document or pattern with its expansions filled in."""
        begin, stop = node.start_byte if start is None else start, node.end_byte if end is None else end
        return self._unsplit(self._spliced(list(_expansions(node)), begin, stop, unescaped if quoted else str))

    def _spliced(
        self, nodes: Sequence[Node], start: int, end: int, change: Callable[[str], str]
    ) -> Iterator[Part | Break]:
        for node in nodes:
            yield from self._literal(start, self.source.start(node), change)
            yield from self._parts(node, True)
            start = node.end_byte
        yield from self._literal(start, end, change)

    def _literal(self, start: int, end: int, change: Callable[[str], str]) -> Iterator[Part]:
        """Text without expansions but those of `$1` and the like, which the parser has as text in a here-document."""
        for found in _POSITIONAL.finditer(self.source.text, start, max(start, end)) if change is unescaped else ():
            if found[1] is None:
                continue
            yield Part(tuple(self.source.literal(start, found.start(), change)) if found.start() > start else ())
            (written,) = self.source.literal(*found.span())
            value = self._joined_value(Parameter(written.text[1:]))
            yield Part((replace(written, state=State.UNSET),) if value is None else value)
            start = found.end()
        if end > start:
            yield Part(tuple(self.source.literal(start, end, change)))

    def _parts(self, node: Node, quoted: bool) -> Iterator[Part | Break]:
        """The parts of a word."""
        self.log.budget.spend(4)
        kind = node.type
        if kind in ("concatenation", "command_name", "translated_string"):
            for child in node.named_children:
                yield from self._parts(child, quoted)
        elif kind == "string":
            yield from self._string(node)
        elif kind == "raw_string":
            yield Part(tuple(self.source.literal(node.start_byte + 1, node.end_byte - 1)))
        elif kind == "ansi_c_string":
            yield Part(tuple(self.source.literal(node.start_byte + 2, node.end_byte - 1, ansi_c)))
        elif kind == "simple_expansion":
            yield from self._variable(node, Parameter.of(self.source.written(node)[1:]), quoted)
        elif kind == "expansion":
            yield from self._expansion(node, quoted)
        elif kind == "arithmetic_expansion":
            yield Part(self._arithmetic(node))
        elif kind == "command_substitution":
            yield Part(self._substitution(node), splits=not quoted)
        elif kind == "process_substitution":
            yield Part(self._unknown(node))
        else:
            yield Part(tuple(self.source.literal(node.start_byte, node.end_byte, str if quoted else unquoted)))

    def _string(self, node: Node) -> Iterator[Part | Break]:
        start, end = node.start_byte + 1, node.end_byte - 1
        if start >= end:
            yield Part(())
        yield from self._spliced(list(_expansions(node)), start, end, unescaped)

    def _unknown(self, node: Node, state: State = State.UNKNOWN, names: Iterable[str] = ()) -> Value:
        return (Piece(self.source.written(node), self.source.line(node), state, tuple(names)),)

    def _variable(self, node: Node, parameter: Parameter, quoted: bool) -> Iterator[Part | Break]:
        """`$X`, `${X}`, `$1`, `$@`, `${A[@]}`."""
        name = parameter.name
        if parameter.list_sign:
            yield from self._all(node, parameter, quoted)
            return
        found = self._lookup(parameter)
        if found is None:
            state = State.UNKNOWN if self._is_set(name) or not re.fullmatch(r"\w+", name) else State.UNSET
            yield Part(self._unknown(node, state, (name,) if state is State.UNKNOWN else ()), splits=not quoted)
        else:
            yield Part(taken_from(name, found, self.source.line(node)), splits=not quoted)

    def _is_set(self, name: str) -> bool:
        return name in self.environment.variables or name == "0" or name.startswith("BASH_")

    def _all(self, node: Node, parameter: Parameter, quoted: bool) -> Iterator[Part | Break]:
        elements = self._elements(parameter.name)
        if elements is None:
            yield Part(self._unknown(node, State.UNKNOWN if self._is_set(parameter.name) else State.UNSET))
            return
        yield from self._listed(elements, parameter.list_sign, quoted, self.source.line(node))

    def _listed(self, elements: Sequence[Value], sign: str, quoted: bool, line: int) -> Iterator[Part | Break]:
        if sign == "*" and quoted:
            yield Part(joined(elements, line))
            return
        for index, element in enumerate(elements):
            if index:
                yield Break()
            yield Part(element, splits=not quoted)

    def _elements(self, name: str) -> tuple[Value, ...] | None:
        if name in ("@", "*"):
            return self.environment.positional
        variable = self.environment.variables.get(name)
        self.log.budget.spend(8 * num_pieces(variable))
        if isinstance(variable, Array):
            line_kept = [taken_from(name, element, element[0].line if element else 1) for element in variable.elements]
            return tuple(line_kept)
        return (taken_from(name, variable, variable[0].line if variable else 1),) if type(variable) is tuple else None

    def _lookup(self, parameter: Parameter) -> Value | None:
        """The value of a variable, an element or a positional parameter; None where there is none that is known."""
        name, index, positional = parameter.name, parameter.index, self.environment.positional
        if number := whole_number(name):
            return None if positional is None else positional[number - 1] if number <= len(positional) else ()
        if name == "#":
            return None if positional is None else (Piece(str(len(positional)), 1),)
        variable = self.environment.variables.get(name)
        if isinstance(variable, tuple):
            self.log.budget.spend(len(variable))
        if isinstance(variable, Array):
            element = arithmetic(self._with_names(index)) if index else 0
            if element is not None and -len(variable.elements) <= element < len(variable.elements):
                return variable.elements[element]
            return None
        return variable if isinstance(variable, tuple) and index in ("", "0") else None

    def _with_names(self, index: str) -> str:
        def known(name: re.Match[str]) -> str:
            text = text_of(self._lookup(Parameter(name[1])) or ())
            return text if 0 < len(text) <= _LONGEST_NUMBER else name[0]

        return re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", known, index)

    def _expansion(self, node: Node, quoted: bool) -> Iterator[Part | Break]:
        """`${...}`."""
        inner = [child for child in node.children if child.type not in ("${", "}")]
        if not inner or inner[0].type == "!":
            yield Part(self._unknown(node))
            return
        if inner[0].type == "#" and len(inner) > 1:
            yield Part(self._length(node, Parameter.of(self.source.written(inner[1]))))
            return
        parameter = Parameter.of(self.source.written(inner[0]))
        if len(inner) == 1:
            yield from self._variable(node, parameter, quoted)
            return
        operation, first_byte = self.source.written(inner[1]), inner[1].end_byte
        if operation in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            operand = self._operand(inner[2:], first_byte, node.end_byte - 1, quoted)
            yield from self._conditional(node, parameter, operation, operand, quoted)
            return
        if operation == ":" and parameter.list_sign:
            yield from self._slice(node, parameter, quoted)
            return
        yield Part(self._changed(node, parameter, operation, first_byte), splits=not quoted)

    def _operand(self, nodes: Sequence[Node], start: int, end: int, quoted: bool) -> list[Part | Break]:
        """The parts of what follows the operator. The parser has several words as one concatenation."""
        parts: list[Part | Break] = []
        for node in chain(*(node.named_children if node.type == "concatenation" else [node] for node in nodes)):
            if node.start_byte > start:
                parts.append(Part(tuple(self.source.literal(start, node.start_byte)), splits=not quoted))
            for part in self._parts(node, quoted):
                is_plain = isinstance(part, Part) and node.type not in ("string", "raw_string")
                parts.append(Part(part.value, splits=not quoted) if isinstance(part, Part) and is_plain else part)
            start = node.end_byte
        if end > start:
            parts.append(Part(tuple(self.source.literal(start, end)), splits=not quoted))
        return parts

    def _conditional(
        self, node: Node, parameter: Parameter, operation: str, operand: list[Part | Break], quoted: bool
    ) -> Iterator[Part | Break]:
        """`${X:-d}`, `${X:=d}`, `${X:+y}`, `${X:?message}` and the same without the colon."""
        found = self._joined_value(parameter)
        is_undecided = found is None and self._is_set(parameter.name)
        is_filled = found is not None and any(piece.text and piece.state is State.KNOWN for piece in found)
        is_empty = found is not None and not found
        takes_empty = is_empty and operation.startswith(":")
        if operation.endswith("+"):
            if is_filled or (is_empty and not takes_empty):
                yield from operand
            elif takes_empty:
                yield Part((), splits=not quoted)
            else:
                added = (text_of(part.value) if isinstance(part, Part) else " " for part in operand)
                self.log.note_left_out("".join(added))
                yield Part((Piece("", self.source.line(node), State.UNSET),), splits=not quoted)
        elif is_filled or (is_empty and not takes_empty):
            yield from self._variable(node, parameter, quoted)
        elif is_undecided or (found and not is_unset(found)):
            yield Part(self._unknown(node, names=(parameter.name,)))
        elif operation.endswith("?"):
            yield Part(self._unknown(node, State.UNSET))
        else:
            yield from self._default(node, parameter.name, operation, operand, bool(takes_empty), quoted)

    def _joined_value(self, parameter: Parameter) -> Value | None:
        if not parameter.list_sign:
            return self._lookup(parameter)
        elements = self._elements(parameter.name)
        return None if elements is None else joined(elements, 1)

    def _default(
        self, node: Node, name: str, operation: str, operand: list[Part | Break], is_certain: bool, quoted: bool
    ) -> Iterator[Part | Break]:
        value = self._unsplit(operand)
        if not is_certain:
            self.log.defaults[name] = text_of(value)
            value = value or (Piece("", self.source.line(node), State.UNSET),)
        if operation.endswith("=") and re.fullmatch(r"[A-Za-z_]\w*", name):
            self.environment.variables[name] = value
        for part in operand or [Part(value, splits=not quoted)]:
            taken = taken_from(name, part.value, self.source.line(node)) if isinstance(part, Part) else ()
            yield Part(taken, part.splits) if isinstance(part, Part) else part

    def _length(self, node: Node, parameter: Parameter) -> Value:
        if parameter.list_sign:
            elements = self._elements(parameter.name)
            if elements is None:
                return self._unknown(node)
            return (derived(str(len(elements)), self.source.line(node), ()),)
        found = self._lookup(parameter)
        if found is None or not is_decided(found):
            return self._unknown(node)
        return (derived(str(len(text_of(found))), self.source.line(node), found),)

    def _slice(self, node: Node, parameter: Parameter, quoted: bool) -> Iterator[Part | Break]:
        """`${A[@]:first:count}`."""
        elements = self._elements(parameter.name)
        found = re.search(r"[\]@*]:\s*([0-9]{1,9})(?::([0-9]{1,9}))?\}$", self.source.written(node))
        if elements is None or not found:
            yield Part(self._unknown(node))
            return
        first = int(found[1]) - (not parameter.index)
        count = int(found[2]) if found[2] else len(elements)
        chosen = elements[max(0, first) : max(0, first) + count]
        yield from self._listed(chosen, parameter.list_sign, quoted, self.source.line(node))

    def _changed(self, node: Node, parameter: Parameter, operation: str, start: int) -> Value:
        """`${X%pattern}`, `${X/a/b}`, `${X:first:count}`, `${X^^}` and the like."""
        name = parameter.name
        operand = text_of(self.spliced(node, start, node.end_byte - 1)) if start < node.end_byte - 1 else ""
        if name in ("0", "BASH_SOURCE") and operation == "%" and operand == "/*":
            return (Piece(".", self.source.line(node)),)
        found = self._lookup(parameter)
        if found is None or not is_decided(found) or len(text_of(found)) > _LONGEST_MATCHED or "$" in operand:
            return self._unknown(node, names=(name,) if self._is_set(name) else ())
        text = _changed_text(text_of(found), operation, operand, self.log.budget)
        if text is None:
            return self._unknown(node, names=(name,))
        line = self.source.line(node)
        return taken_from(name, (derived(text, line, found),), line)

    def _arithmetic(self, node: Node) -> Value:
        written = self.source.written(node)
        start = node.start_byte + (3 if written.startswith("$((") else 2)
        end = node.end_byte - (2 if written.startswith("$((") else 1)
        value, sources = self.calculated(self.spliced(node, start, end, quoted=False))
        if value is None:
            return self._unknown(node)
        return (derived(str(value), self.source.line(node), sources),)

    def calculated(self, expression: Value) -> tuple[int | None, list[Piece]]:
        """The value of an arithmetic expression, and the pieces that it comes from."""
        sources = list(expression)
        if not is_decided(expression):
            return None, sources

        def known(name: re.Match[str]) -> str:
            value = self._lookup(Parameter(name[0]))
            if value is None or not is_decided(value) or len(text_of(value)) > _LONGEST_NUMBER:
                return name[0]
            sources.extend(taken_from(name[0], value, 1))
            return f"({text_of(value)})" if value else "0"

        text = text_of(expression)
        if len(text) > 1000:
            return None, sources
        return arithmetic(re.sub(r"(?<![\w#])[A-Za-z_]\w*", known, text)), sources

    def _substitution(self, node: Node) -> Value:
        """`$(...)`: the output of `pwd`, `dirname`, `basename`, `expr` and the like, which need no execution."""
        commands = simple_commands(node)
        if commands is None:
            return self._unknown(node)
        lists = [self.words(command) for command in commands]
        line = self.source.line(node)
        return output(lists, self.environment, line) or self._unknown(node)


def _touching(nodes: Iterable[Node]) -> Iterator[list[Node]]:
    """The nodes, those without a blank between them together."""
    group: list[Node] = []
    for node in nodes:
        if group and group[-1].end_byte != node.start_byte:
            yield group
            group = []
        group.append(node)
    if group:
        yield group


def _expansions(node: Node) -> Iterator[Node]:
    """The outermost expansions inside."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        elif child.child_count:
            yield from _expansions(child)


def _changed_text(text: str, operation: str, operand: str, budget: Budget) -> str | None:
    if operation in ("%", "%%"):
        starts = range(len(text), -1, -1) if operation == "%" else range(len(text) + 1)
        return next((text[:i] for i in starts if budget.matches(text[i:], operand)), text)
    if operation in ("#", "##"):
        ends = range(len(text) + 1) if operation == "#" else range(len(text), -1, -1)
        return next((text[i:] for i in ends if budget.matches(text[:i], operand)), text)
    if operation in ("/", "//"):
        old, _, new = operand.partition("/")
        if not old or re.search(r"[*?\[\\]", old):
            return None
        return text.replace(old, new, 1 if operation == "/" else -1)
    if operation in ("^^", ",,"):
        return None if operand else text.upper() if operation == "^^" else text.lower()
    found = re.fullmatch(r"\s*([0-9]{1,9})(?::([0-9]{1,9}))?", operand) if operation == ":" else None
    if found is None:
        return None
    return text[int(found[1]) :][: int(found[2]) if found[2] else None]
