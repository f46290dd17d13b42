"""State of a git checkout, read without git, whose configuration and hooks may start programs. Standard library only.

Format of the index: git's Documentation/gitformat-index.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.plain_file import read_referenced


@dataclass(frozen=True)
class Checkout:
    """A work tree: its `commit`, and the Python files that git tracks in it.

    `python_files` is a SHA-256 over their names and contents; the commit where the index cannot be read. `modified`
    are those that differ from the index, by name within the work tree, with git's id of the content; "" without the
    file.
    """

    commit: str
    python_files: str
    modified: Mapping[str, str] = field(default_factory=dict)


def checkout_of(folder: Path) -> Checkout | None:
    """The checkout that this folder belongs to; None where none tracks a Python file in it, or it has no commit yet.

    OSError where git's files cannot be read.
    """
    top = next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)
    commit = None if top is None else commit_of(top)
    if top is None or commit is None:
        return None
    tracked = _tracked(top, bytes_of_id=len(commit) // 2)
    if tracked is None:
        return Checkout(commit, commit)
    if not any((top / file.name).is_relative_to(folder) for file in tracked):
        return None
    found = {file.name: file.id_on_disk(top) for file in tracked}
    modified = {file.name: found[file.name] for file in tracked if found[file.name] != file.id}
    listing = "".join(f"{name}\0{content}\n" for name, content in sorted(found.items()))
    return Checkout(commit, hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest(), modified)


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


@dataclass(frozen=True)
class _TrackedFile:
    """An entry of the index. `size` and `mtime_ns` are the file's when its content had this `id`; `mtime_ns` is None
    where a later change may have left them."""

    name: str
    id: str
    size: int
    mtime_ns: int | None

    def id_on_disk(self, top: Path) -> str:
        """Git's id of the file's present content; "" without the file, or with one that is not read."""
        path = top / self.name
        with suppress(OSError):
            found = path.lstat()
            if (found.st_size & 0xFFFFFFFF, found.st_mtime_ns) == (self.size, self.mtime_ns):
                return self.id
            content = read_referenced(path)
            kind = hashlib.sha1 if len(self.id) == 2 * hashlib.sha1().digest_size else hashlib.sha256
            return kind(b"blob %d\0" % len(content) + content).hexdigest()
        return ""


def _tracked(top: Path, bytes_of_id: int) -> list[_TrackedFile] | None:
    """The tracked Python files; None without an index, and for one that is damaged or of another form than git's
    usual ones (versions 2 and 3, not split)."""
    path = _git_folder(top / ".git") / "index"
    try:
        return list(_entries(read_referenced(path), bytes_of_id, path.stat().st_mtime_ns))
    except (FileNotFoundError, ValueError, struct.error):
        return None


def _entries(index: bytes, bytes_of_id: int, written_ns: int) -> Iterator[_TrackedFile]:
    """Files of an index written at `written_ns`. ValueError and struct.error for a form that is not known."""
    signature, version, count = _HEADER.unpack_from(index)
    if signature != b"DIRC" or version not in (2, 3):
        raise ValueError("not an index of version 2 or 3")
    at = _HEADER.size
    for _ in range(count):
        seconds, ns, mode, size = _ENTRY.unpack_from(index, at)
        flags_at = at + _ENTRY.size + bytes_of_id
        flags, more_flags = struct.unpack_from(">HH", index, flags_at)
        is_extended = bool(flags & _IS_EXTENDED)
        name_at = flags_at + (4 if is_extended else 2)
        end = index.index(b"\0", name_at)
        name, content = os.fsdecode(index[name_at:end]), index[at + _ENTRY.size : flags_at].hex()
        is_left_out = is_extended and bool(more_flags & _SKIP_WORKTREE)
        if name.endswith(".py") and stat.S_ISREG(mode) and not is_left_out:
            mtime_ns = seconds * 10**9 + ns
            yield _TrackedFile(name, content, size, mtime_ns if mtime_ns < written_ns else None)
        at += (end - at) // 8 * 8 + 8  # one to eight NULs follow the name
    if index[at : at + 4] == b"link":
        raise ValueError("a split index")


_HEADER, _ENTRY = struct.Struct(">4sII"), struct.Struct(">8xII8xI8xI")
"""The index's header; an entry's modification time, mode and size, in front of its id."""
_IS_EXTENDED = _SKIP_WORKTREE = 0x4000
"""A bit of an entry's flags, and one of the further flags: the file is outside a sparse checkout."""


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
