"""Users other than us who could replace the target of a path: those who may rename on the way to it."""

from __future__ import annotations

import enum
import errno
import functools
import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from search_spaces.errors import InputError

TRUSTED_OWNERS = "PARLAY_TRUSTED_OWNERS"
"""Environment variable: trusted users whose folders may be on a path, names or numbers separated by commas."""

OVERFLOW_UID = 65534
"""The kernel's uid for users without a number in this user namespace."""
_MOST_LINKS = 40  # the kernel's limit


class WriterKind(enum.StrEnum):
    """Kind of a user who may rename on a path: the owner of a folder or link, everybody, or a group."""

    OWNER = enum.auto()
    EVERYBODY = enum.auto()
    GROUP = enum.auto()


@dataclass(frozen=True)
class UntrustedWriter:
    """A user or group besides us and root who may rename at `path`."""

    path: Path
    kind: WriterKind
    name: str


_OWNER_FIX = (
    f"name a folder below folders of yours or root's only; or set {TRUSTED_OWNERS}=NAME, if you trust that user with "
    "your account"
)


def require_trusted_path(path: Path, code: str, key: str) -> None:
    """InputError where another user could replace the target of `path`; OSError as below.

    Groups are accepted: whether to trust one is the user's decision (docs/security.md), and `parlay doctor` names it.
    """
    writer = next((found for found in untrusted_writers(path) if found.kind is not WriterKind.GROUP), None)
    if writer is None:
        return
    if writer.kind is WriterKind.EVERYBODY:
        words, fix = f"is world-writable at {writer.path}", f"chmod o-w {writer.path}"
    else:
        at = "" if writer.path == path else f"is reached by {writer.path}, which "
        words, fix = f"{at}belongs to {writer.name}", _OWNER_FIX
    rule = "every folder and link on the path belongs to you or root and is not world-writable"
    raise InputError.of(code, f"{path} {words}", key=key, value=str(path), rule=rule, fix=fix)


def untrusted_writers(path: Path) -> Iterator[UntrustedWriter]:
    """Those besides us, root and trusted owners who could replace the target of `path`, from the root on.

    Every folder and link on the way counts, also behind links; what does not exist yet will be ours. The owner of a
    folder may rename in it whatever its mode, the sticky bit included. OSError where the way cannot be read.
    """
    for entry in _entries(path.absolute()):
        found = entry.lstat()
        if not _is_ours(found.st_uid, entry):
            yield UntrustedWriter(entry, WriterKind.OWNER, f"user {_user_name(found.st_uid)}")
        elif stat.S_ISDIR(found.st_mode) and not found.st_mode & stat.S_ISVTX:
            yield from _writers(entry, found)


@dataclass(frozen=True)
class FolderIdentity:
    """Identity of a folder, so that a replacement is noticed."""

    path: Path
    _device: int
    _inode: int
    _owner: int

    @classmethod
    def at(cls, path: Path) -> FolderIdentity:
        found = path.stat()
        return cls(path, found.st_dev, found.st_ino, found.st_uid)

    def require_same(self) -> None:
        """InputError for another folder in its place; OSError where it cannot be read just now."""
        if self == FolderIdentity.at(self.path):
            return
        raise InputError.of(
            "folder_swapped",
            f"{self.path} was replaced by another folder",
            key="folder",
            value=str(self.path),
            rule="jobs run the code in a search's folder, so it must stay the same folder while a driver runs",
            fix="nothing more was launched; find out who replaced it, and restore the search's folder",
        )


def uid_as_seen_by(folder: Path) -> int:
    """Owner uid of files that we create in `folder`; the kernel's uid for us where we may not write.

    NFS may map all users to one, or to the numbers of another machine. The probe file is anonymous or unlinked at once,
    so that nobody can replace it.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".owner.") as stream:
            return os.fstat(stream.fileno()).st_uid
    except OSError:
        return os.geteuid()


def _entries(path: Path) -> Iterator[Path]:
    """The folders and links by which the kernel resolves `path`, in its order, as far as they exist."""
    here, left, num_links = Path("/"), [*reversed(path.parts[1:])], 0
    yield here
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        entry = here / name
        if not os.path.lexists(entry):
            return
        yield entry
        if not entry.is_symlink():
            here = entry
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = entry.readlink()
        here = Path("/") if target.is_absolute() else here
        left += [part for part in reversed(target.parts) if part != target.anchor]


def _is_ours(owner: int, entry: Path) -> bool:
    if owner in (0, os.geteuid()) or (owner == OVERFLOW_UID and not _maps_all_users()):
        return True
    if {str(owner), _name_of(owner)} & {*os.environ.get(TRUSTED_OWNERS, "").split(",")}:
        return True
    return owner == uid_as_seen_by(entry if entry.is_dir() and not entry.is_symlink() else entry.parent)


@functools.cache
def _maps_all_users() -> bool:
    """True if every user of the machine has a number here. In a container's user namespace the others, the host's root
    among them, share one."""
    try:
        _, _, num_users = Path("/proc/self/uid_map").read_text().split()
    except (OSError, ValueError):  # no such file, or several ranges
        return not Path("/proc/self/uid_map").exists()
    return int(num_users) == 2**32 - 1


def _writers(folder: Path, found: os.stat_result) -> Iterator[UntrustedWriter]:
    """Users besides its owner who may write to a folder. A group named as its user is that user's alone."""
    if found.st_mode & stat.S_IWOTH:
        yield UntrustedWriter(folder, WriterKind.EVERYBODY, "everybody")
    elif found.st_mode & stat.S_IWGRP:
        try:
            group, own = grp.getgrgid(found.st_gid), pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            yield UntrustedWriter(folder, WriterKind.GROUP, f"group {found.st_gid}")
            return
        if group.gr_name != own or {*group.gr_mem} - {own}:
            yield UntrustedWriter(folder, WriterKind.GROUP, f"group {group.gr_name}")


def _user_name(uid: int) -> str:
    name = _name_of(uid)
    return str(uid) if name is None else f"{name} ({uid})"


def _name_of(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
