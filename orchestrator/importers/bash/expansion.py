"""Variables of a script: what assignments set, and what the words with them expand to."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.importers.bash.conditions import NUMBER, arithmetic
from orchestrator.importers.bash.syntax import EXPANSIONS, Source
from orchestrator.importers.bash.values import (
    OF_A_JOB,
    UNSET,
    Budget,
    Piece,
    Value,
    Variable,
    doubt_of,
    names_in,
    size_of,
    split,
    taken_from,
    text_of,
    unknown,
)

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node

_OUTPUT = "it is the output of a command"
_NOT_READ = "it is computed in a way that is not read"
_LONGEST_EXPRESSION = 1000
_CHANGED_NUMBER = re.compile(r"\b([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))|(?:\+\+|--)([A-Za-z_]\w*)")
_WORD_OF_A_FOLDER = re.compile(r"cd|pwd|dirname|realpath|readlink|[fPe012]|dev|null|BASH_SOURCE")


class Expander:
    """Expands words of the source that is read, and reads its assignments.

    `defaults` are those of `${X:-d}` that were taken, `names_read` the variables that conditions have read, and
    `exported` the exported ones with their values then.
    """

    def __init__(self, source: Source, budget: Budget):
        self.source = source
        self.budget = budget
        self.variables: ChainMap[str, Variable] = ChainMap({"PWD": ((Piece(".", 1),),)})
        self.defaults: dict[str, str] = {}
        self.names_read: set[str] = set()
        self.exported: dict[str, Variable] = {}

    def words(self, nodes: Iterable[Node]) -> list[Value]:
        """The words that these nodes expand to."""
        words: list[Value] = []
        for node in nodes:
            for is_break, pieces in groupby(self._pieces(node, splits=True), lambda piece: piece is None):
                if not is_break:
                    self.budget.spend(16)
                    words.append(self.budget.value(piece for piece in pieces if piece is not None))
        return words

    def value(self, node: Node | None) -> Value:
        """The one word that this node expands to where bash does not split: in an assignment, a file's name, a test."""
        return self._whole(self._pieces(node)) if node is not None else ()

    def spliced(self, node: Node, start: int, end: int, change: Callable[[str], str]) -> Value:
        """The text between these bytes of a node with its expansions filled in, and the rest changed."""
        return self._whole(self._spliced(node, start, end, change))

    def _whole(self, pieces: Iterable[Piece | None]) -> Value:
        words = (Piece(" ", 1) if piece is None else piece for piece in pieces)
        return self.budget.value(piece for piece in words if piece.text or piece.doubt)

    def _spliced(self, node: Node, start: int, end: int, change: Callable[[str], str]) -> Iterator[Piece | None]:
        for inner in [each for each in _expansions(node) if each.start_byte >= start]:
            if (first := self.source.start(inner)) > start:
                yield from self.source.literal(start, first, change)
            yield from self._pieces(inner, quoted=True)
            start = inner.end_byte
        yield from self.source.literal(start, end, change)

    def _pieces(self, node: Node, quoted: bool = False, splits: bool = False) -> Iterator[Piece | None]:
        """The pieces of a word, None between words: where expansions are split, and inside of `${A[@]}`."""
        self.budget.spend(4)
        kind, start, end = node.type, node.start_byte, node.end_byte
        if kind in ("concatenation", "command_name"):
            for child in node.named_children:
                yield from self._pieces(child, quoted, splits)
        elif kind == "string":
            yield from self._spliced(node, start + 1, end - 1, in_quotes)
        elif kind == "raw_string":
            yield from self.source.literal(start + 1, end - 1)
        elif kind not in EXPANSIONS:
            yield from self.source.literal(start, end, str if quoted else _unquoted)
        else:
            for value in self._expanded(node, quoted):
                yield from (None,) if value is None else split(value) if splits else value

    def _expanded(self, node: Node, quoted: bool) -> Iterator[Value | None]:
        """The value of an expansion; the elements of an array with None between them."""
        if node.type == "simple_expansion":
            yield from self._parameter(node, self.source.written(node)[1:], quoted)
        elif node.type == "expansion":
            yield from self._braces(node, quoted)
        elif node.type == "arithmetic_expansion":
            written = self.source.written(node)
            brackets = 2 if written.startswith("$((") else 1
            expression = self.spliced(node, node.start_byte + 1 + brackets, node.end_byte - brackets, str)
            yield (self.calculated(expression, written),)
        elif node.type == "ansi_c_string":
            yield self._code(node, _NOT_READ)
        else:
            yield self._substitution(node)

    def _code(self, node: Node, doubt: str, *names: str) -> Value:
        return (Piece(self.source.written(node), self.source.line(node), names, doubt, is_code=True),)

    def _parameter(self, node: Node, parameter: str, quoted: bool) -> Iterator[Value | None]:
        """`$X`, `${X}`, `$1`, `$@`, `${A[@]}`, `${A[1]}`."""
        name, _, index = parameter.removesuffix("]").partition("[")
        elements = self.variables.get(name)
        if elements is None or index in ("", "0"):
            yield self._scalar(name, self.source.written(node), self.source.line(node))
        elif index not in ("@", "*"):
            yield self._code(node, _NOT_READ, name)
        else:
            for number, element in enumerate(elements):
                if number:
                    yield (Piece(" ", 1),) if index == "*" and quoted else None
                yield taken_from(name, element, self.source.written(node))

    def _scalar(self, name: str, written: str, line: int) -> Value:
        """The value of a variable, or of the first element of an array."""
        elements = self.variables.get(name, unknown(UNSET, line))
        return taken_from(name, elements[0] if elements else (), written)

    def _braces(self, node: Node, quoted: bool) -> Iterator[Value | None]:
        """`${...}`."""
        inner = [child for child in node.children if child.type not in ("${", "}")]
        parameter = self.source.written(inner[0]) if inner else ""
        operation = self.source.written(inner[1]) if len(inner) > 1 else ""
        if re.match(r"[\w@*]", parameter) and operation in ("", ":?", "?"):
            yield from self._parameter(node, parameter, quoted)
        elif re.fullmatch(r"\w+", parameter) and operation in (":-", "-", ":=", "="):
            yield self._with_default(node, parameter, operation, inner[1].end_byte)
        else:
            yield self._code(node, _NOT_READ)

    def _with_default(self, node: Node, name: str, operation: str, start: int) -> Value:
        """`${X:-d}` and `${X:=d}`, and the same without the colon."""
        line = self.source.line(node)
        found = self._scalar(name, "", line)
        is_absent = bool(found) and all(piece.doubt == UNSET for piece in found)
        is_empty = not text_of(found) and doubt_of(found) is None
        if not (is_absent or (is_empty and operation.startswith(":"))):
            return self._scalar(name, self.source.written(node), line)
        value = self.spliced(node, start, node.end_byte - 1, _without_quotes)
        if not text_of(value):
            value = (Piece("", line, doubt=UNSET if is_absent else None),)
        elif is_absent and name.startswith("SLURM_"):
            value = tuple(replace(piece, doubt=OF_A_JOB) for piece in value)
        elif is_absent:
            self.defaults[name] = text_of(value)
        if operation.endswith("="):
            self.variables[name] = (value,)
        return taken_from(name, value, "")

    def calculated(self, expression: Value, written: str) -> Piece:
        """The number that this expression is; where it is not known, the expression as written."""
        text, line = text_of(expression), expression[0].line if expression else 1
        sources = list(expression)

        def known(name: re.Match[str]) -> str:
            value = self._scalar(name[0], name[0], line)
            sources.extend(value)
            number = text_of(value) or "0"
            return f"({number})" if NUMBER.fullmatch(number) else name[0]

        if len(text) <= _LONGEST_EXPRESSION:
            filled = re.sub(r"(?<![\w#])[A-Za-z_]\w*", known, text)
            number = None if any(piece.is_code for piece in sources) else arithmetic(filled)
            if number is not None:
                return Piece(str(number), line, names_in(sources), doubt_of(sources))
        return Piece(written, line, names_in(sources), doubt_of(sources) or _NOT_READ, is_code=True)

    def _substitution(self, node: Node) -> Value:
        """`$(...)`: what is not known, but for the folder of the script and the current one, which are both "."."""
        line = self.source.line(node)
        words = re.findall(r"[\w.]+", self.source.written(node))
        if words == ["pwd"]:
            return self._scalar("PWD", self.source.written(node), line)
        is_of_script = words.count("dirname") == 1 and {"0", "BASH_SOURCE"} & {*words}
        if is_of_script and all(map(_WORD_OF_A_FOLDER.fullmatch, words)):
            return (Piece(".", line),)
        return self._code(node, _OUTPUT)

    def read_variable_assignment(self, node: Node) -> bool | None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name, _, index = self.source.written(target).partition("[") if target else ("", "", "")
        is_array = value is not None and value.type == "array"
        old = self.variables.get(name, ()) if any(child.type == "+=" for child in node.children) else ()
        self.budget.spend(size_of(old))
        if index:
            self.variables[name] = unknown(f"its elements are set one by one (line {self.source.line(node)})")
        elif value is not None and is_array:
            self.variables[name] = (*old, *self._array(value))
        else:
            first, *others = old or ((),)
            self.variables[name] = ((*first, *self.value(value)), *others)
        return True

    def read_variable_assignments(self, node: Node) -> bool | None:
        for child in node.named_children:
            self.read_variable_assignment(child)
        return True

    def _array(self, node: Node) -> Variable:
        words = self.words(child for child in node.named_children if child.type != "comment")
        is_named = any(re.match(r"\[[^\]]*\]=", text_of(word)) for word in words)
        return unknown(f"its elements have names (line {self.source.line(node)})") if is_named else tuple(words)

    def read_declaration_command(self, node: Node) -> bool | None:
        """`export A=1`, `declare -a A`, `local A`."""
        flags = [self.source.written(child) for child in node.named_children if child.type == "word"]
        exports = node.children[0].type == "export" or any("x" in flag for flag in flags)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.read_variable_assignment(child)
            if exports and child.type in ("variable_assignment", "variable_name"):
                name = re.split(r"\W", self.source.written(child))[0]
                self.exported[name] = self.variables.get(name, ())
        return True

    def read_unset_command(self, node: Node) -> bool | None:
        for child in node.named_children:
            self.variables[self.source.written(child)] = unknown(UNSET)
        return True

    def _calculate(self, expression: Value) -> bool | None:
        """An arithmetic command: a condition. What it sets is in doubt."""
        text, line = text_of(expression), expression[0].line if expression else 1
        for names in _CHANGED_NUMBER.findall(text):
            self.variables[names[0] or names[1]] = unknown(f"it is set by an arithmetic command (line {line})")
        number = self.calculated(expression, text)
        self.names_read.update(number.variables)
        return None if number.doubt else number.text != "0"


def _expansions(node: Node) -> Iterator[Node]:
    """The outermost expansions inside."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        elif child.child_count:
            yield from _expansions(child)


def in_quotes(text: str) -> str:
    """Text between double quotes, and of a here-document."""
    return re.sub(r"\\([$`\"\\\n])", lambda found: found[1].strip("\n"), text)


def _unquoted(text: str) -> str:
    """Text outside quotes."""
    return re.sub(r"\\(.)", lambda found: found[1].strip("\n"), text, flags=re.DOTALL)


def _without_quotes(text: str) -> str:
    """Text of a default."""
    return re.sub(r"\\(.)|[\"']", lambda found: (found[1] or "").strip("\n"), text, flags=re.DOTALL)
