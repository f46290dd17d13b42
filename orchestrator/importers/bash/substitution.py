"""Output of command substitutions that is known without executing them: `pwd`, `dirname`, `basename`, `expr`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.importers.bash.arithmetic import arithmetic
from orchestrator.importers.bash.environment import Environment
from orchestrator.importers.bash.values import Array, Piece, Undecided, Value, derived, is_decided, text_of

if TYPE_CHECKING:
    from orchestrator.importers.bash.syntax import Node

_SCRIPT_NAMES = re.compile(r"\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})")


def simple_commands(node: Node) -> list[list[Node]] | None:
    """The nodes of the words of each command in a substitution; None unless it is one command or `cd ... && pwd`."""
    commands: list[list[Node]] = []
    waiting = [child for child in node.named_children if child.type != "comment"][::-1]
    while waiting:
        child = waiting.pop()
        if child.type == "list" and all(c.type in ("&&", ";") for c in child.children if not c.is_named):
            waiting += child.named_children[::-1]
        elif child.type == "redirected_statement":
            redirects = [c for c in child.named_children[1:] if c.type != "file_redirect"]
            if redirects or child.named_children[0].type != "command":
                return None
            waiting.append(child.named_children[0])
        elif child.type == "command" and not any("assignment" in c.type for c in child.named_children):
            commands.append([c for c in child.named_children if c.type not in ("file_redirect", "herestring_redirect")])
        else:
            return None
    return commands if 1 <= len(commands) <= 2 else None


def output(commands: list[list[Value]], environment: Environment, line: int) -> Value | None:
    """The output of the commands, where it is known."""
    if len(commands) == 2:
        (first, second) = commands
        changes_directory = first and text_of(first[0]) == "cd" and second and text_of(second[0]) == "pwd"
        return first[-1] if changes_directory and len(first) > 1 and is_decided(first[-1]) else None
    (words,) = commands
    texts = [text_of(word) for word in words]
    if texts[:1] == ["pwd"]:
        here = environment.variables.get("PWD")
        return None if isinstance(here, Array | Undecided) else here
    arguments = [word for word, text in zip(words[1:], texts[1:], strict=True) if not text.startswith("-")]
    if texts[:1] == ["expr"] and all(is_decided(word) for word in words):
        number = arithmetic(" ".join(texts[1:]))
        return None if number is None else (derived(str(number), line, [p for word in words for p in word]),)
    if len(arguments) == 1 and texts[0] in _OF_PATHS:
        path = arguments[0]
        if texts[0] == "dirname" and _SCRIPT_NAMES.fullmatch(text_of(path)):
            return (Piece(".", line),)
        if texts[0] in ("realpath", "readlink"):
            return path
        if is_decided(path):
            return (derived(_OF_PATHS[texts[0]](text_of(path)), line, path),)
    return None


_OF_PATHS: dict[str, Callable[[str], str]] = {
    "dirname": lambda path: posixpath.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else "."),
    "basename": lambda path: posixpath.basename(path.rstrip("/")),
    "realpath": str,
    "readlink": str,
}
