"""Syntax tree of a bash script, and where each part of its text comes from."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from orchestrator.importers.bash.budget import Budget, require_few_operators, require_size
from orchestrator.importers.bash.placeholders import asking_comments, masked, unmasked
from orchestrator.importers.bash.values import Piece, Value, text_of

if TYPE_CHECKING:
    from tree_sitter import Node as Node
    from tree_sitter import Parser

EXPANSIONS = (
    *("simple_expansion", "expansion", "arithmetic_expansion", "command_substitution", "process_substitution"),
    "ansi_c_string",
)
_BLANKS = re.compile(rb"(?:\s|\\\n)*")
_COMMAND_PARTS = re.compile(r"[\n;|&({]|(?:\\.|[^\n;|&({\\])+|\\", re.DOTALL)
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class Source:
    """A script's text and its syntax tree. `origins[i]` tells about the bytes from `starts[i]` on, and
    `asked_of_paragraph` which lines a comment above asks to change."""

    root: Node
    text: bytes
    starts: tuple[int, ...]
    origins: tuple[Piece, ...]
    asked_of_paragraph: Mapping[int, str] = field(default_factory=dict)

    def literal(self, start: int, end: int, change: Callable[[str], str] = str) -> Iterator[Piece]:
        """The text of these bytes, changed, as pieces of one line each."""
        first = max(0, bisect_right(self.starts, start) - 1)
        last = max(first + 1, bisect_right(self.starts, end - 1))
        cuts = [start, *self.starts[first + 1 : last], end]
        for origin, (a, b) in zip(self.origins[first:last], pairwise(cuts), strict=True):
            yield replace(origin, text=change(unmasked(self.text[a:b].decode(errors="replace"))))

    def written(self, node: Node) -> str:
        return unmasked(self.text[self.start(node) : node.end_byte].decode(errors="replace"))

    def start(self, node: Node) -> int:
        """The node's first byte: the parser counts blanks and continued lines before `$` as part of an expansion."""
        blanks = _BLANKS.match(self.text, node.start_byte, node.end_byte)
        return blanks.end() if blanks and node.type in EXPANSIONS else node.start_byte

    def line(self, node: Node) -> int:
        return self.origins[max(0, bisect_right(self.starts, node.start_byte) - 1)].line

    def unparsed_lines(self) -> Iterator[int]:
        """Lines of what the parser could not read, or had to complete."""
        nodes = [self.root] if self.root.has_error else []
        while nodes:
            node = nodes.pop()
            nodes += reversed(node.children)
            if node.is_missing or node.is_error:
                yield self.line(node.parent or node) if node.is_missing else self.line(node)


def parse_script(text: str, budget: Budget, line: int | None = None) -> Source:
    """Parse a script. `line` is that of every part of it; by default its own lines.

    InputError for one that is too long, and for one that the budget does not suffice to parse.
    """
    require_size(len(text))
    text = text.replace("\r\n", "\n")
    of_line, of_paragraph = asking_comments("" if line else text)
    lines = enumerate(_LINES.findall(text), 1)
    source = _parse(tuple(Piece(each, line or n, doubt=of_line.get(n)) for n, each in lines), budget)
    return replace(source, asked_of_paragraph=of_paragraph)


def parse_value(value: Value, budget: Budget) -> Source:
    """Parse a script that is a value, as `eval` and `bash -c` do. InputError as for `parse_script`."""
    return _parse(tuple(_with_whole_commands(value)), budget)


def _parse(value: Value, budget: Budget) -> Source:
    require_few_operators(text_of(value))
    texts = [_readable(piece.text).encode(errors="replace") for piece in value]
    origins = tuple(
        replace(piece, text="", doubt=None if piece.is_code else piece.doubt, is_code=False) for piece in value
    )
    starts = tuple(accumulate(map(len, texts[:-1]), initial=0))
    data = b"".join(texts)
    return Source(_parsed(data, budget), data, starts, origins or (Piece("", 1),))


def _with_whole_commands(value: Value) -> Iterator[Piece]:
    """The script with each command in one piece, where bash ends it at a line break inside of a variable's value: what
    is behind the line break is in doubt."""
    names_of_command: Iterable[str] | None = None
    doubt: str | None = None
    for piece in value:
        for text in _COMMAND_PARTS.findall(piece.text):
            if text == "\n" and names_of_command is not None:
                if breaks := [name for name in piece.variables if name not in names_of_command]:
                    text, doubt = " ", doubt or f"bash ends the command at a line break of {breaks[0]} before it"
            if text in "\n;|&({":
                names_of_command, doubt = None, None
            elif names_of_command is None and not text.isspace():
                names_of_command = piece.variables
            yield replace(piece, text=text, doubt=piece.doubt or doubt)


def _parsed(data: bytes, budget: Budget) -> Node:
    """The root of the syntax tree. The parser reads a text like `))))` once for each of its characters, so each read
    is paid for; when nothing is left, the text ends for it."""

    def read(start: int, _: object) -> bytes:
        return data[start : start + _READ_BYTES] if budget.affords(_READ_COST) else b""

    root = _parser().parse(read).root_node
    budget.spend(0)
    return root


_READ_BYTES, _READ_COST = 64, 4


def _readable(text: str) -> str:
    """The script in a form that the parser reads as bash does: without a `# comment` between backticks, where it would
    read on to the next backtick, and with braces in `$A/$B.c`, where it would end the word behind the second `$`."""
    text = re.sub(r"`#[^`\n]*`", lambda found: " " * len(found[0]), masked(text))
    return re.sub(r"(?<=[\w./:,=@%+-])\$([A-Za-z_]\w*)(?=[./:,@%+-])", r"${\1}", text)


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))
