"""Redirections of a command: the files that it writes, and its here-document."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.importers.bash.expansion import Expander, in_quotes
from orchestrator.importers.bash.values import Value, text_of

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node

_ONLY_READ = ("cat", "head", "tail", "less", "grep", "diff", "ls", "stat", "echo", "printf", "chmod", "rm", "test")
_DS_CONFIG = re.compile(r"--deepspeed[-_]config[= ]\S+")
Redirections = tuple[list["Node"], list[str], Value | None]


def redirections(node: Node, expander: Expander) -> Redirections:
    """(words of a command that stand behind a redirection, files that are written, the here-document)."""
    words: list[Node] = []
    files: list[str] = []
    document: Value | None = None
    for each in _redirects(node):
        targets = each.children_by_field_name("destination")
        words += [*each.children_by_field_name("argument"), *targets[1:]]
        if each.type == "heredoc_redirect":
            document = _document(each, expander)
        elif targets and each.children[0].type in (">", ">>", "&>", "&>>", ">|"):
            files.append(text_of(expander.value(targets[0])))
    return words, files, document


def _redirects(node: Node) -> Iterator[Node]:
    """The redirections; the parser has those behind a here-document inside of it."""
    for child in node.children_by_field_name("redirect"):
        yield child
        yield from _redirects(child)


def _document(node: Node, expander: Expander) -> Value:
    """The text of a here-document; one whose end is quoted is kept as it is written."""
    start = next((expander.source.written(child) for child in node.named_children if child.type == "heredoc_start"), "")
    body = next((child for child in node.named_children if child.type == "heredoc_body"), None)
    if body is None:
        return ()
    if start[:1] in ("'", '"', "\\"):
        return tuple(expander.source.literal(body.start_byte, body.end_byte))
    return expander.spliced(body, body.start_byte, body.end_byte, in_quotes)


def json_files(words: Sequence[Value], document: Value | None) -> Iterator[str]:
    """JSON files that a command is told, in its words or its here-document, and which it may write. A training only
    reads its configuration."""
    texts = [*map(text_of, words), text_of(document or ())]
    if posixpath.basename(texts[0]) not in _ONLY_READ:
        for part in re.split(r"[^\w./${}-]+", _DS_CONFIG.sub("", " ".join(texts))):
            if part.endswith(".json"):
                yield path_of(part)


def path_of(name: str) -> str:
    """The path under which a file is known."""
    return posixpath.normpath(name)
