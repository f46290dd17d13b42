"""Variables of a script: what assignments set, and what the words with them expand to."""

from __future__ import annotations

import ast
import operator
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.config.importers.bash.syntax import EXPANSIONS, parse_script
from orchestrator.config.importers.bash.values import (
    Budget,
    Piece,
    Value,
    Variable,
    doubt_of,
    doubted,
    names_in,
    split,
    taken_from,
    text_of,
    unknown,
)
from search_spaces.schema.unsafe_text import looks_secret

if TYPE_CHECKING:
    from orchestrator.config.importers.bash.syntax import Node

_UNSET = "the script does not set it"
_OF_A_JOB = "its default is for a run without Slurm, which sets it in a job"
OUTPUT = "it is the output of a command"
_NOT_READ = "it is computed in a way that is not read"
_NUMBER = re.compile(r"-?\d{1,18}")
_LONGEST_EXPRESSION = 1000
_LARGEST_NUMBER = 2**63
_LARGEST_POWER = 64
_NO_WORD = re.compile(r"^(variable_assignment|comment|ERROR)$|_redirect$")
_WORD_OF_A_FOLDER = re.compile(r"cd|pwd|dirname|realpath|readlink|[fPe012]|dev|null|BASH_SOURCE")


def _removing(escapes: str) -> Callable[[str], str]:
    """A function that removes the backslashes, quotes and continued lines that match from a text."""
    return partial(re.compile(escapes, re.DOTALL).sub, lambda found: (found[1] or "").strip("\n"))


in_quotes = _removing(r"\\([$`\"\\\n])")
"""Text between double quotes, and of a here-document."""
_unquoted = _removing(r"\\(.)")
_of_default = _removing(r"\\(.)|[\"']")


def default_note(name: str, value: str) -> str:
    """Note that the variable has its default; a value that may be a secret is not repeated."""
    shown, other = (f"${name}", "command line") if name.isdigit() else (name, "environment")
    default = "default" if looks_secret(value, name) else f"default {value}"
    return f"{shown} is taken as its {default}; the {other} may set another."


class Expander:
    """Expands words of the source that is read, and reads its assignments.

    `defaults` are those of `${X:-d}` that were taken, and `exported` the exported variables with their values then.
    """

    def __init__(self, text: str):
        self.budget = Budget()
        self.source = parse_script(text, self.budget)
        self.variables: ChainMap[str, Variable] = ChainMap({"PWD": ((Piece(".", 1),),)})
        self.defaults: dict[str, str] = {}
        self.notes: list[str] = []
        self.exported: dict[str, Variable] = {}
        self.unset_parameter = _UNSET

    def words(self, nodes: Iterable[Node]) -> list[Value]:
        """The words that these nodes expand to."""
        words: list[Value] = []
        for node in nodes:
            if not _NO_WORD.search(node.type):
                for is_break, pieces in groupby(self._pieces(node, splits=True), lambda piece: piece is None):
                    if not is_break:
                        words.append(self.budget.value(pieces))
        return words

    def value(self, node: Node | None) -> Value:
        """The one word that this node expands to where bash does not split: in an assignment, a file's name, a test."""
        return self.budget.value(self._pieces(node)) if node is not None else ()

    def spliced(self, node: Node, start: int, end: int, change: Callable[[str], str]) -> Value:
        """The text between these bytes of a node with its expansions filled in, and the rest changed."""
        return self.budget.value(self._spliced(node, start, end, change))

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
            for number, value in enumerate(self._expanded(node)):
                yield from (None,) if number else ()
                yield from split(value) if splits else value

    def _expanded(self, node: Node) -> Sequence[Value]:
        """The value of an expansion, or the elements of an array."""
        if node.type == "simple_expansion":
            return self._parameter(node, self.source.written(node)[1:])
        if node.type == "expansion":
            return self._braces(node)
        return [(self.calculated(node),) if node.type == "arithmetic_expansion" else self._substitution(node)]

    def certain(self, value: Value) -> str | None:
        """What a condition reads, where that is certain; a default that it depends on is noted."""
        self.notes += [default_note(name, self.defaults[name]) for name in names_in(value) if name in self.defaults]
        return None if doubt_of(value) else text_of(value)

    def _code(self, node: Node, doubt: str, *names: str) -> Value:
        return (Piece(self.source.written(node), self.source.line(node), names, doubt, is_code=True),)

    def _parameter(self, node: Node, parameter: str) -> Sequence[Value]:
        """`$X`, `${X}`, `$1`, `$@`, `${A[@]}`, `${A[1]}`."""
        name, _, index = parameter.removesuffix("]").partition("[")
        unset = self.unset_parameter if re.fullmatch(r"[@*#]|[1-9]\d*", name) else _UNSET
        elements = self.variables.get(name, unknown(unset, self.source.line(node)))
        if index not in ("", "0", "@", "*"):
            return [self._code(node, _NOT_READ, name)]
        taken = elements if index in ("@", "*") else elements[:1] or ((),)
        return [taken_from(name, element, self.source.written(node)) for element in taken]

    def _braces(self, node: Node) -> Sequence[Value]:
        """`${...}`."""
        inner = [child for child in node.children if child.type not in ("${", "}")]
        parameter, operation = [*map(self.source.written, inner[:2]), "", ""][:2]
        if re.match(r"[\w@*]", parameter) and operation in ("", ":?", "?"):
            return self._parameter(node, parameter)
        if re.fullmatch(r"\w+", parameter) and operation in (":-", "-", ":=", "="):
            return [self._with_default(node, parameter, operation, inner[1].end_byte)]
        return [self._code(node, _NOT_READ)]

    def _with_default(self, node: Node, name: str, operation: str, start: int) -> Value:
        """`${X:-d}` and `${X:=d}`, and the same without the colon."""
        (found,) = self._parameter(node, name)
        is_absent = bool(found) and all(piece.doubt == _UNSET for piece in found)
        is_empty = not text_of(found) and doubt_of(found) is None
        if not (is_absent or (is_empty and operation.startswith(":"))):
            return found
        value = self.spliced(node, start, node.end_byte - 1, _of_default)
        if not text_of(value):
            value = (Piece("", self.source.line(node), doubt=_UNSET if is_absent else None),)
        elif is_absent and name.startswith("SLURM_"):
            value = doubted(value, _OF_A_JOB)
        elif is_absent:
            self.defaults[name] = text_of(value)
        if operation.endswith("="):
            self.variables[name] = (value,)
        return taken_from(name, value, "")

    def calculated(self, node: Node) -> Piece:
        """The number that `$(( ))` or `(( ))` is; where it is not known, the expression as written."""
        written, line = self.source.written(node), self.source.line(node)
        brackets = 1 if written.startswith("$[") else 2
        start = self.source.start(node) + written.startswith("$") + brackets
        sources = [*self.spliced(node, start, node.end_byte - brackets, str)]
        expression = text_of(sources)

        def known(name: re.Match[str]) -> str:
            (value,) = self._parameter(node, name[0])
            sources.extend(value)
            number = text_of(value) or "0"
            self.budget.spend(1 + len(number) // 64)
            return f"({number})" if _NUMBER.fullmatch(number) else name[0]

        if len(expression) <= _LONGEST_EXPRESSION:
            filled = re.sub(r"(?<![\w#])[A-Za-z_]\w*", known, expression)
            number = None if any(piece.is_code for piece in sources) else arithmetic(filled)
            if number is not None:
                return Piece(str(number), line, names_in(sources), doubt_of(sources))
        return Piece(written, line, names_in(sources), doubt_of(sources) or _NOT_READ, is_code=True)

    def _substitution(self, node: Node) -> Value:
        """`$(...)`: what is not known, but for the folder of the script and the current one, which are both "."."""
        words = re.findall(r"[\w.]+", self.source.written(node))
        if words == ["pwd"]:
            return self._parameter(node, "PWD")[0]
        is_of_script = words.count("dirname") == 1 and {"0", "BASH_SOURCE"} & {*words}
        if is_of_script and all(map(_WORD_OF_A_FOLDER.fullmatch, words)):
            return (Piece(".", self.source.line(node)),)
        return self._code(node, _NOT_READ if node.type == "ansi_c_string" else OUTPUT)

    def read_variable_assignment(self, node: Node) -> bool:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        name, _, index = self.source.written(target).partition("[") if target else ("", "", "")
        old = self.variables.get(name, ()) if any(child.type == "+=" for child in node.children) else ()
        self.budget.spend_on(old)
        is_by_index = bool(index)
        if value is not None and value.type == "array":
            new: Variable = (*old, *self.words(value.named_children))
            is_by_index |= any(re.match(r"\[[^\]]*\]=", text_of(word)) for word in new)
        else:
            first, *others = old or ((),)
            new = ((*first, *self.value(value)), *others)
        why = f"its elements are set one by one (line {self.source.line(node)})"
        self.variables[name] = unknown(why) if is_by_index else new
        return True

    def read_declaration_command(self, node: Node) -> None:
        """`export A=1`, `declare -a A`, `local A`."""
        flags = [self.source.written(child) for child in node.named_children if child.type == "word"]
        exports = node.children[0].type == "export" or any("x" in flag for flag in flags)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.read_variable_assignment(child)
            if exports and child.type in ("variable_assignment", "variable_name"):
                name = re.split(r"\W", self.source.written(child))[0]
                self.exported[name] = self.variables.get(name, ())

    def read_unset_command(self, node: Node) -> None:
        for child in node.named_children:
            self.variables[self.source.written(child)] = unknown(_UNSET)


def _expansions(node: Node) -> Iterator[Node]:
    """The outermost expansions inside."""
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        elif child.child_count:
            yield from _expansions(child)


def arithmetic(expression: str) -> int | None:
    """The value of an integer expression without variables; None for anything else."""
    try:
        return _evaluated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _divide(a: int, b: int) -> int:
    """Division as in C: toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_OPERATIONS: dict[type[ast.AST], Callable[..., int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.Mod: lambda a, b: a - b * _divide(a, b),
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.USub: operator.neg,
}


def _evaluated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    children = list(ast.iter_child_nodes(node))
    values = [_evaluated(child) for child in children if isinstance(child, ast.expr)]
    operations = [type(child) for child in children if not isinstance(child, ast.expr)]
    if len(operations) != 1 or operations[0] not in _OPERATIONS:
        raise ValueError("not an expression of whole numbers")
    if operations[0] in (ast.Pow, ast.LShift) and not 0 <= values[1] <= _LARGEST_POWER:
        raise ValueError("too large")
    value = int(_OPERATIONS[operations[0]](*values))
    if abs(value) >= _LARGEST_NUMBER:
        raise ValueError("too large")
    return value
