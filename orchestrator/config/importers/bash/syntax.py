"""Syntax tree of a bash script, and where each part of its text comes from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.config.importers.bash.placeholders import asking_comments, masked, unmasked
from orchestrator.config.importers.bash.values import Budget, Piece, Value, require_size, text_of, too_large

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
_MOST_OPERATORS = 2000
_READ_BYTES, _READ_COST = 64, 4


@dataclass(frozen=True)
class Source:
    """A script's text and its syntax tree, and of each byte the piece that it comes from."""

    root: Node
    text: bytes
    origins: tuple[Piece, ...]

    def literal(self, start: int, end: int, change: Callable[[str], str] = str) -> Iterator[Piece]:
        """The text of these bytes, changed, as pieces of one line each."""
        for origin, same in groupby(self.origins[start:end] or self.origins[start : start + 1]):
            cut = min(start + len([*same]), end)
            yield replace(origin, text=change(self._decoded(start, cut)))
            start = cut

    def written(self, node: Node) -> str:
        return self._decoded(self.start(node), node.end_byte)

    def _decoded(self, start: int, end: int) -> str:
        return unmasked(self.text[start:end].decode(errors="replace"))

    def start(self, node: Node) -> int:
        """The node's first byte: the parser counts blanks and continued lines before `$` as part of an expansion."""
        blanks = _BLANKS.match(self.text, node.start_byte, node.end_byte)
        return blanks.end() if blanks and node.type in EXPANSIONS else node.start_byte

    def line(self, node: Node) -> int:
        return self.origins[min(node.start_byte, len(self.origins) - 1)].line

    def unparsed_lines(self) -> Iterator[int]:
        """Lines of what the parser could not read, or had to complete."""
        nodes = [self.root] if self.root.has_error else []
        while nodes:
            node = nodes.pop()
            nodes += reversed(node.children)
            if node.is_missing or node.is_error:
                yield self.line(node)


def parse_script(text: str, budget: Budget, line: int | None = None) -> Source:
    """Parse a script. `line` is that of every part of it; by default its own lines.

    InputError for one that is too long, and for one that the budget does not suffice to parse.
    """
    require_size(len(text))
    text = re.sub(r"(?<!\\)\\\n?\Z", "", text.replace("\r\n", "\n"))
    asked = asking_comments("" if line else text)
    lines = enumerate(_LINES.findall(text), 1)
    return _parse([Piece(each, line or n, doubt=asked.get(n)) for n, each in lines], budget)


def parse_value(value: Value, budget: Budget) -> Source:
    """Parse a script that is a value, as `eval` and `bash -c` do. InputError as for `parse_script`."""
    return _parse([*_with_whole_commands(value)], budget)


def _with_whole_commands(value: Value) -> Iterator[Piece]:
    """The script with each command in one piece, where bash ends it at a line break inside of a variable's value: what
    is behind the line break is in doubt."""
    names_of_command: Iterable[str] | None = None
    doubt: str | None = None
    for piece in value:
        for text in [piece.text] if piece.is_code else _COMMAND_PARTS.findall(piece.text):
            of_command = piece.variables if names_of_command is None else names_of_command
            others = [name for name in piece.variables if name not in of_command]
            if others and text == "\n":
                text, doubt = " ", doubt or f"bash ends the command at a line break of {others[0]} before it"
            elif not others and text in "\n;|&({":
                names_of_command, doubt = None, None
            elif names_of_command is None and not text.isspace():
                names_of_command = piece.variables
            yield replace(piece, text=text, doubt=piece.doubt or doubt)


def _parse(pieces: list[Piece], budget: Budget) -> Source:
    if any(text_of(pieces).count(operator) > _MOST_OPERATORS for operator in ("|", "[[")):
        # The parser takes quadratic time and memory for a long pipeline or condition.
        rule = f"has at most {_MOST_OPERATORS} pipes, and as many conditions in [[ ]]"
        raise too_large("the script has too many pipes or conditions", rule)
    texts = [_readable(piece.text).encode(errors="replace") for piece in pieces]
    data = b"".join(texts)
    origins: list[Piece] = []
    for piece, text in zip(pieces, texts, strict=True):
        origin = replace(piece, text="", doubt=None if piece.is_code else piece.doubt, is_code=False)
        origins += [origin] * len(text)

    def read(start: int, _: object) -> bytes:
        # The parser reads a text like `))))` once for each of its characters, so each read is paid for; when nothing is
        # left, the text ends for it.
        budget.left -= _READ_COST
        return data[start : start + _READ_BYTES] if budget.left >= 0 else b""

    root = _parser().parse(read).root_node
    budget.spend(0)
    return Source(root, data, tuple(origins) or (Piece("", 1),))


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
