"""Syntax tree of a bash script, and where each part of its text comes from."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator.importers.bash.placeholders import Comments, asking_comments, masked, unmasked
from orchestrator.importers.bash.values import Budget, Piece, Value, require_few_operators, require_size, text_of

if TYPE_CHECKING:
    from tree_sitter import Node as Node
    from tree_sitter import Parser

EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "process_substitution")
_BLANKS = re.compile(rb"(?:\s|\\\n)*")


@dataclass(frozen=True)
class Source:
    """A script's text and its syntax tree. `origins[i]` tells about the bytes from `starts[i]` on."""

    root: Node
    text: bytes
    starts: tuple[int, ...]
    origins: tuple[Piece, ...]
    comments: Comments
    notes: tuple[str, ...] = ()

    def literal(self, start: int, end: int, change: Callable[[str], str] = str) -> Iterator[Piece]:
        """The text of these bytes, changed, as pieces of one line each."""
        first = max(0, bisect_right(self.starts, start) - 1)
        last = max(first + 1, bisect_right(self.starts, end - 1))
        cuts = [start, *self.starts[first + 1 : last], end]
        for origin, (a, b) in zip(self.origins[first:last], pairwise(cuts), strict=True):
            if text := change(unmasked(self.text[a:b].decode(errors="replace"))):
                placeholder = origin.placeholder or self.comments.of_line.get(origin.line)
                yield replace(origin, text=text, placeholder=placeholder)

    def written(self, node: Node) -> str:
        return unmasked(self.text[self.start(node) : node.end_byte].decode(errors="replace"))

    def start(self, node: Node) -> int:
        """The node's first byte: the parser counts blanks and continued lines before `$` as part of an expansion."""
        blanks = _BLANKS.match(self.text, node.start_byte, node.end_byte)
        return blanks.end() if blanks and node.type in EXPANSIONS else node.start_byte

    def line(self, node: Node) -> int:
        return self.origins[max(0, bisect_right(self.starts, node.start_byte) - 1)].line


def parse_script(text: str, budget: Budget, line: int | None = None) -> Source:
    """Parse a script. `line` is that of every part of it; by default its own lines.

    InputError for one that is too long, and for one that the budget does not suffice to parse.
    """
    require_size(len(text))
    require_few_operators(text)
    text = masked(text.replace("\r\n", "\n"))
    comments = asking_comments(text)
    text, notes = _without_comments_in_commands(_without_comments_in_backticks(text))
    data = text.encode(errors="replace")
    starts = (0, *(found.end() for found in re.finditer(b"\n", data)))
    origins = tuple(Piece("", line or number) for number in range(1, len(starts) + 1))
    root = _parsed(data, budget)
    return Source(root, data, starts, origins, comments, (*notes, *_unclosed(root, line)))


def _unclosed(root: Node, line: int | None) -> Iterator[str]:
    """Notes on what the parser had to add to make sense of the script; the words before it may be another's."""
    nodes = [root] if root.has_error else []
    while nodes:
        node = nodes.pop()
        nodes += reversed(node.children)
        if node.is_missing:
            opened = node.parent.start_point.row + 1 if node.parent else 1
            yield f"Line {line or opened} could not be parsed: {node.type} is missing; what follows may be incomplete."


def parse_value(value: Value, budget: Budget) -> Source:
    """Parse a script that is the value of words, as `eval` and `bash -c` do. InputError as for `parse_script`."""
    require_few_operators(text_of(value))
    texts = [_without_comments_in_backticks(masked(piece.text)).encode(errors="replace") for piece in value]
    starts, size = [], 0
    for text in texts:
        starts.append(size)
        size += len(text)
    origins = tuple(Piece("", piece.line, variables=piece.variables, placeholder=piece.placeholder) for piece in value)
    data = b"".join(texts)
    return Source(_parsed(data, budget), data, tuple(starts) or (0,), origins or (Piece("", 1),), Comments())


def _parsed(data: bytes, budget: Budget) -> Node:
    """The root of the syntax tree. The parser reads a text like `))))` once for each of its characters, so each read
    is paid for; when nothing is left, the text ends for it."""

    def read(start: int, _: object) -> bytes:
        return data[start : start + _READ_BYTES] if budget.affords(_READ_COST) else b""

    root = _parser().parse(read).root_node
    budget.spend(0)
    return root


_READ_BYTES, _READ_COST = 64, 4


def _without_comments_in_commands(text: str) -> tuple[str, tuple[str, ...]]:
    """The script without the comment lines inside of a continued command, and a note where bash ends the command."""
    lines, notes = text.split("\n"), list[str]()
    is_inside = False
    for index, line in enumerate(lines):
        if is_inside and line.lstrip().startswith("#"):
            following = lines[index + 1].lstrip() if index + 1 < len(lines) else ""
            is_inside = (line.endswith("\\") and following != "") or following.startswith(("-", "#"))
            lines[index] = "\\" if is_inside else ""
            if following.startswith("-"):
                notes.append(f"Line {index + 1}: bash ends the command at this comment; what follows was read as well.")
            continue
        is_inside = line.endswith("\\") and not line.lstrip().startswith("#")
    return "\n".join(lines), tuple(notes)


def _without_comments_in_backticks(text: str) -> str:
    """The script with blanks for each `# comment` between backticks: the parser would read on to the next backtick."""
    return re.sub(r"`#[^`\n]*`", lambda found: " " * len(found[0]), text)


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))
