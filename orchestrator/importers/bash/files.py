"""Files that a script writes, and what is in them where that follows from the script."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from orchestrator.importers.bash.values import Piece, Value, joined, text_of

Files = Mapping[str, Value | None]
"""Text of each file that the script has written so far, by path; None where it is not known."""
_CHANGE_OPERANDS = ("tee", "rm", "unlink", "truncate", "sponge", "wget", "curl")
_CHANGE_IN_PLACE = ("sed", "perl", "awk", "gawk", "yq")
_COPY = ("cp", "mv", "ln", "install", "rsync")
_PREFIXES = ("sudo", "command", "srun", "env", "time", "nice", "nohup", "find", "xargs")
_ONLY_READ = (
    *("cat", "head", "tail", "less", "more", "grep", "wc", "diff", "cmp", "ls", "stat", "echo", "printf", "jq", "test"),
    *("chmod", "chown", "touch", "sync", "source", ".", "[", "[["),
    *_CHANGE_IN_PLACE,  # but in place
    *_COPY,  # the sources
)
_RUN_PROGRAMS = re.compile(r"(.*/)?(python[\d.]*|bash|sh)|.*\.(py|sh)")
_DS_CONFIG = re.compile(r"--deepspeed[-_]config\b")


def path_of(name: str) -> str:
    """The path under which a file is known."""
    return posixpath.normpath(name)


def output_text(command: Sequence[Value], document: Value | None, files: Files) -> Value | None:
    """The text that a command with this here-document writes to its standard output; None where it is not known."""
    texts = [text_of(word) for word in command]
    name, arguments = (texts[0], texts[1:]) if texts else ("", [])
    if document is not None:
        return document if name == "tee" or (name == "cat" and arguments in ([], ["-"])) else None
    if not arguments:
        return None
    end = Piece("\n", command[0][0].line if command[0] else 1)
    if name == "echo" and "-e" in arguments:
        return None
    if name == "echo":
        words = [word for word, text in zip(command[1:], arguments, strict=True) if text not in ("-e", "-n")]
        return (*joined(words, end.line), end)
    if name == "printf" and len(arguments) == 1 and "%" not in arguments[0]:
        return tuple(replace(piece, text=piece.text.replace("\\n", "\n")) for piece in command[1])
    if name == "printf" and len(arguments) == 2 and arguments[0] in ("%s", r"%s\n"):
        return (*command[2], end)
    if name == "cat":
        parts = [files.get(path_of(argument)) for argument in arguments]
        return None if None in parts else tuple(piece for part in parts for piece in part or ())
    return None


def changed_files(command: Sequence[Value], files: Files) -> Iterator[tuple[str, Value | None]]:
    """Names and texts of the files that a command changes."""
    texts = [text_of(word) for word in command]
    names = [posixpath.basename(text) for text in texts]
    changing = (*_CHANGE_OPERANDS, *_CHANGE_IN_PLACE, *_COPY)
    first = next((i for i, each in enumerate(names) if each in changing), 0) if names[0] in _PREFIXES else 0
    name, operands = names[first], [text for text in texts[first + 1 :] if not text.startswith("-")]
    is_in_place = any(re.match(r"-[a-zA-Z]*i|--in-?place", text) for text in texts[1:])
    if name in _CHANGE_OPERANDS or (name in _CHANGE_IN_PLACE and is_in_place):
        yield from ((operand, None) for operand in operands)
    elif name in _COPY and len(operands) > 1:
        for source in operands[:-1]:
            text = files.get(path_of(source))
            yield operands[-1], text
            yield posixpath.join(operands[-1], posixpath.basename(source)), text
            if name == "mv":
                yield source, None


def given_files(command: Sequence[Value], document: Value | None, files: Files) -> list[str]:
    """Files that a program is told in its words or its here-document, and which it may write. A training only reads its
    configuration."""
    texts = [text_of(word) for word in command]
    if not texts or posixpath.basename(texts[0]) in _ONLY_READ:
        return []
    words = [w for before, w in pairwise(texts) if not (_DS_CONFIG.fullmatch(before) or _DS_CONFIG.search(w))]
    if not any(_RUN_PROGRAMS.fullmatch(text) for text in texts):
        return [word for word in words if path_of(word) in files]
    parts = re.split(r"[^\w./${}-]+", " ".join([*words, text_of(document or ())]))
    return [part for part in parts if part.endswith(".json") or path_of(part) in files]
