"""Commit of a git checkout, read without git. Standard library only."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.plain_file import read_referenced


def commit_of(folder: Path) -> str | None:
    """Commit that is checked out in this folder, the top of a work tree; None where it is not one, or has no commit
    yet.

    OSError where git's files cannot be read.
    """
    git = _git_folder(folder / ".git")
    head = _line(git / "HEAD")
    if not head.startswith(_REF):
        return _hash(head)
    ref, shared = head.removeprefix(_REF), git / (_line(git / "commondir") or ".")
    return _hash(_line(git / ref)) or _hash(_line(shared / ref)) or _packed(shared / "packed-refs", ref)


def _git_folder(named: Path) -> Path:
    """Git's own folder, which a file of its name points to in a linked work tree and in a submodule."""
    pointer = "" if named.is_dir() else _line(named)
    return named.parent / pointer.removeprefix(_POINTER) if pointer.startswith(_POINTER) else named


def _packed(refs: Path, ref: str) -> str | None:
    lines = (line.split(" ") for line in _text(refs).splitlines())
    return next((_hash(words[0]) for words in lines if words[1:] == [ref]), None)


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    """A file's text; "" without the file."""
    try:
        return read_referenced(path).decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _hash(text: str) -> str | None:
    return text if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", text) else None


_POINTER, _REF = "gitdir: ", "ref: "
